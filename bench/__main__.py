"""`python -m bench [--engine …] [--part …]`: measure, then write docs/performance.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

from bench import kv, page, record, tidb, turns
from bench.archives import archives
from bench.busy import busy
from bench.cost import cost
from bench.crowd import crowd
from bench.foreground import foreground
from bench.plans import SIZE, STOCK_ROWS, STOCK_WAYS, Size, design, full
from bench.proof import proof
from bench.quiet import compare
from bench.scale import scale
from bench.servers import SERVERS, STOCK_SERVERS, NotHere, Server
from lapse.bench import Shape, table_for

STOCK = ("stock", "stock-foreground")
"""The same questions asked of a server as its packages start it, and of a table larger than its memory."""
PARTS = ("base", "axes", "idle", "skip", "growing", "cost", "proof", "foreground", "scale", "crowd", "archive", *STOCK)
FULL = "full"
"""Ten million rows. It takes most of an hour, so it is measured only where it is named."""
OF_ONE = {"mysql": ("busy",), "tidb": ("native",)}
"""Servers that one question is asked of, which no other one is asked."""
TIME_TYPES = {"postgres": "TIMESTAMPTZ", "mariadb": "DATETIME(6)"}
FOREGROUND_EXPIRED = 50.0
PROOF_ROWS = 2_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=[*SERVERS, page.KV], action="append")
    parser.add_argument(
        "--part", choices=[*PARTS, FULL, *(part for parts in OF_ONE.values() for part in parts)], action="append"
    )
    parser.add_argument(
        "--rows", type=int, help="rows of the base design, of runs that find nothing, and of key-value stores"
    )
    parser.add_argument("--rounds", type=_rounds, help="how often each contender is measured, at least three times")
    parser.add_argument(
        "--slow-rivals",
        action="store_true",
        help="those that take minutes, too: pg_cron, and beside an application `whisper` and bare ranges of blocks",
    )
    parser.add_argument("--page-only", action="store_true", help="write the page from the figures on disk")
    options = parser.parse_args()
    if options.part and page.KV in (options.engine or ()):
        parser.error("the key-value stores are measured as a whole: leave --part away")
    if not options.page_only:
        for engine in options.engine or (list(SERVERS) if options.part else [*SERVERS, page.KV]):
            _measure(engine, _size(options), options.part or OF_ONE.get(engine, PARTS))
    page.write()


def _size(options: argparse.Namespace) -> Size:
    return replace(
        SIZE,
        rows=options.rows or SIZE.rows,
        idle_rows=options.rows or SIZE.idle_rows,
        kv_rows=options.rows or SIZE.kv_rows,
        rounds=options.rounds or SIZE.rounds,
        slow_rivals=options.slow_rivals,
    )


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 3:
        raise argparse.ArgumentTypeError("the median of fewer than three rounds says nothing")
    return rounds


def _measure(engine: str, size: Size, parts: Sequence[str]) -> None:
    started = monotonic()
    try:
        if engine == page.KV:
            found = kv.compare(size.kv_rows, rounds=size.rounds, progress=_say)
            _keep(engine, "all", found | {"by_turns": turns.by_turns(kv.make_rows(size.kv_rows), rounds=size.rounds)})
        else:
            _measure_server(engine, size, parts)
    except NotHere as reason:
        _say(f"{engine} is left out: {reason}")
    _say(f"{engine} took {monotonic() - started:.0f} s")


def _measure_server(engine: str, size: Size, parts: Sequence[str]) -> None:
    asked = [part for part in parts if part in OF_ONE.get(engine, (*PARTS, FULL))]
    if not asked:
        return
    tuned = [part for part in asked if part not in STOCK]
    if tuned or engine not in STOCK_SERVERS:
        with SERVERS[engine]() as server:
            _measure_parts(engine, server, size, tuned)
    stock = [part for part in asked if part in STOCK and engine in STOCK_SERVERS]
    if stock:
        with STOCK_SERVERS[engine]() as server:
            _measure_parts(engine, server, size, stock)


def _measure_parts(engine: str, server: Server, size: Size, parts: Sequence[str]) -> None:
    record.save(engine, {"server": server.version})
    for part in parts:
        started = monotonic()
        found = _part(engine, server, size, part)
        if found is not None:
            _keep(engine, part, found)
            _say(f"{engine} {part} took {monotonic() - started:.0f} s")


def _keep(engine: str, part: str, found: Any) -> None:
    record.save(engine, {part: {"under": record.conditions(), "found": found}})


def _part(engine: str, server: Server, size: Size, part: str) -> Any:
    if part in ("busy", "native"):
        measure = busy if part == "busy" else tidb.native
        return record.results_record(measure(server, size.rows, rounds=size.rounds, progress=_say))
    table = table_for(server.url, "bench_rows")
    if part == "cost":
        return record.cost_record(cost(table, rounds=size.rounds, progress=_say))
    if part == "proof":
        rows = min(size.rows, PROOF_ROWS)
        return [asdict(each) for each in proof(table, rows=rows, rounds=size.rounds, progress=_say)]
    if part in ("foreground", "stock-foreground"):
        rows = size.foreground_rows if part == "foreground" else max(size.foreground_rows, STOCK_ROWS)
        return _foreground(server, replace(size, foreground_rows=rows)) if engine != "sqlite" else None
    if part == "stock":
        shape = Shape(rows=max(size.rows, STOCK_ROWS))
        return record.results_record(compare(table, {shape: STOCK_WAYS}, rounds=size.rounds, progress=_say))
    if part == "archive":
        return archives(engine, table, size, _say)
    if part in ("scale", "crowd"):
        return _many(engine, server, part)
    if part == FULL:
        return record.results_record(compare(table, full(engine), rounds=size.rounds, progress=_say))
    plan = design(engine, size)
    record.save(engine, {"missing": list(plan.missing)})
    results = compare(table, getattr(plan, part), rounds=size.rounds, progress=_say)
    return record.results_record(results)


def _many(engine: str, server: Server, part: str) -> Any:
    if engine not in TIME_TYPES:
        return None
    if part == "crowd":
        return crowd(server, time_type=TIME_TYPES[engine], progress=_say)
    url = server.url.render_as_string(hide_password=False)
    return [asdict(look) for look in scale(url, time_type=TIME_TYPES[engine], progress=_say)]


def _foreground(server: Server, size: Size) -> Any:
    shape = Shape(rows=size.foreground_rows, expired_percent=FOREGROUND_EXPIRED)
    table = table_for(server.url, "bench_rows")
    rate, felt = foreground(table, shape, rounds=size.rounds, slow=size.slow_rivals, progress=_say)
    return record.felt_record(felt, rate, int(shape.rows * FOREGROUND_EXPIRED / 100))


def _say(line: str) -> None:
    print(f"[load {os.getloadavg()[0]:4.1f}] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
