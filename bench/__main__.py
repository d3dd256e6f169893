"""`python -m bench [--size quick|full] [--engine …] [--part …]`: measure, then write docs/performance.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

from bench import kv, page, record
from bench.cost import cost
from bench.foreground import foreground
from bench.plans import SIZES, Size, design
from bench.scale import scale
from bench.servers import SERVERS, NotHere, Server
from lapse.bench import Shape, compare, table_for

PARTS = ("base", "axes", "idle", "skip", "growing", "cost", "foreground", "scale")
TIME_TYPES = {"postgres": "TIMESTAMPTZ", "mariadb": "DATETIME(6)"}
FOREGROUND_EXPIRED = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="quick")
    parser.add_argument("--engine", choices=[*SERVERS, page.KV], action="append")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument(
        "--rows", type=int, help="rows of the base design and of runs that find nothing, instead of the size's own"
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
            _measure(engine, _size(options), options.part or PARTS)
    page.write()


def _size(options: argparse.Namespace) -> Size:
    size = SIZES[options.size]
    return replace(
        size,
        rows=options.rows or size.rows,
        idle_rows=options.rows or size.idle_rows,
        rounds=options.rounds or size.rounds,
        slow_rivals=options.slow_rivals or size.slow_rivals,
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
            _keep(engine, "all", kv.compare(size.kv_rows, rounds=size.rounds, progress=_say))
        else:
            _measure_server(engine, size, parts)
    except NotHere as reason:
        _say(f"{engine} is left out: {reason}")
    _say(f"{engine} took {monotonic() - started:.0f} s")


def _measure_server(engine: str, size: Size, parts: Sequence[str]) -> None:
    with SERVERS[engine]() as server:
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
    table = table_for(server.url, "bench_rows")
    if part == "cost":
        return record.cost_record(cost(table, rounds=size.rounds, progress=_say))
    if part == "foreground":
        return _foreground(server, size) if engine != "sqlite" else None
    if part == "scale":
        return _scale(engine, server)
    plan = design(engine, size)
    record.save(engine, {"missing": list(plan.missing)})
    results = compare(table, getattr(plan, part), rounds=size.rounds, progress=_say)
    return record.results_record(results)


def _scale(engine: str, server: Server) -> Any:
    if engine not in TIME_TYPES:
        return None
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
