"""What holds and proof cost a run: with ten holds, and with the keys of deleted rows on record, against a plain one."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.quiet import undisturbed
from lapse.app import Lapse
from lapse.bench import BenchTable, Shape
from lapse.bench.measure import Progress

PLAIN, HOLDS, KEYS = "plain", "ten holds", "keys"
SHAPES = ((10.0, "bigint"), (10.0, "uuid"), (50.0, "bigint"))
"""Percent of the rows that have expired, and the key: as in all other tables, and where a row costs least."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """`seconds` and `processor`, that of Lapse and of the server together, are those of a plain run times so much: the
    median of the rounds, in each of which every variant had its turn."""

    variant: str
    key: str
    expired_percent: float
    seconds: float
    processor: float


def proof(table: BenchTable, *, rows: int, rounds: int, progress: Progress) -> list[Proof]:
    found = []
    for percent, key in SHAPES:
        taken: dict[str, list[tuple[float, float]]] = {PLAIN: [], HOLDS: [], KEYS: []}
        for number in range(1, rounds + 1):
            for variant in random.sample(list(taken), len(taken)):
                shape = Shape(rows=rows, expired_percent=percent, key=key)
                taken[variant].append(undisturbed(partial(_one, table, shape, variant), progress))
                wall, processor = taken[variant][-1]
                progress(f"round {number}, {key}, {percent:g} %: {variant} {wall:.2f} s, processor {processor:.2f} s")
        for variant in (HOLDS, KEYS):
            pairs = list(zip(taken[variant], taken[PLAIN], strict=True))
            ratios = [statistics.median(mine[at] / plain[at] for mine, plain in pairs) for at in (0, 1)]
            found.append(
                Proof(variant=variant, key=key, expired_percent=percent, seconds=ratios[0], processor=ratios[1])
            )
    return found


def _one(table: BenchTable, shape: Shape, variant: str) -> tuple[float, float]:
    table.create(shape)
    options = "ttl_expiration_expression = 'expire_at', ttl_guard = 'off'"
    options += ", ttl_ledger_keys = 'on'" if variant == KEYS else ""
    with Lapse(table.lapse_url) as database:
        database.execute(f"ALTER TABLE {table.name} SET ({options})")
        if variant == HOLDS:
            for number in range(10):
                database.hold(table.name, f"r1 = {-1 - number}")
        processor = _processor(table)
        started, spent = time.perf_counter(), processor()
        (job,) = database.run(table.name).jobs
        seconds, used = time.perf_counter() - started, processor() - spent
        for each in database.holds():
            database.release(each.id)
        database.execute(f"ALTER TABLE {table.name} RESET (ttl)")
    left = table.contents()
    if left.expired or job.counts.deleted + left.rows != shape.rows:
        raise AssertionError(f"{variant}: {left.expired} expired rows are left of {shape.rows}")
    return seconds, used


def _processor(table: BenchTable) -> Callable[[], float]:
    """The processor time of this process and of the server's, which is one of ours."""
    server = _server(table)

    def spent() -> float:
        return time.process_time() + sum(_used(pid) for pid in _family(server) if server is not None)

    return spent


def _server(table: BenchTable) -> int | None:
    asked = {"postgresql": "SHOW data_directory", "mysql": "SELECT @@pid_file", "mariadb": "SELECT @@pid_file"}
    sql = asked.get(table.url.get_backend_name())
    if sql is None:
        return None
    with table.cursor() as cursor:
        cursor.execute(sql)
        place = Path(str(cursor.fetchone()[0]))
    return int((place / "postmaster.pid" if place.is_dir() else place).read_text().split()[0])


def _family(pid: int | None) -> list[int]:
    """A process and its children, those that have ended counted by itself."""
    if pid is None:
        return []
    listed = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
    return [pid, *(int(each.name) for each in listed if _field(each, 3) == str(pid))]


def _used(pid: int) -> float:
    place = Path("/proc") / str(pid)
    return sum(int(_field(place, at) or 0) for at in (13, 14, 15, 16)) / TICKS


def _field(process: Path, number: int) -> str | None:
    """Of /proc/PID/stat, counted from 0; the name, which is field 1, may hold spaces."""
    try:
        text = (process / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[number - 2]
