"""What an application feels while rows are deleted under it: latencies at half load, with each way of deleting."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import Any

from bench.plans import FAST, WHISPER
from bench.quiet import undisturbed
from lapse.bench import STANDARD, BenchTable, Contender, Shape, lapse
from lapse.bench.contenders import Timed, timed
from lapse.bench.measure import Progress, percentile
from lapse.bench.tables import MysqlTable, PostgresTable

SETTLE_SECONDS = 1.5
CALIBRATE_SECONDS = 3.0
QUIET_SECONDS = 6.0
"""How long the application is watched alone."""
WRITTEN_SECONDS, FEW_PAGES = 120.0, 50
HALF = 0.5
RANGE_BLOCKS = 60
"""About a millisecond of work where half of the rows have expired."""
NO_JOB = "no job"


@dataclass(frozen=True, kw_only=True, slots=True)
class Felt:
    """One contender, all rounds: percentiles of the application's latency while it worked, and its own speed."""

    contender: str
    rate: float
    p50: float
    p95: float
    p99: float
    p99_by_round: tuple[float, ...]
    transactions: int


@dataclass(kw_only=True)
class Application:
    """The load generator while it runs; `samples` are there when it has ended."""

    samples: list[tuple[float, float]] = field(default_factory=list)
    inserted: int = 0

    def between(self, start: float, end: float) -> list[float]:
        """Latencies of the transactions that were under way at some moment of that time."""
        return [seconds for begun, seconds in self.samples if begun <= end and begun + seconds >= start]


@contextmanager
def application(table: BenchTable, rate: float) -> Iterator[Application]:
    seen = Application()
    command = [sys.executable, "-m", "bench.load", table.lapse_url, table.name, str(table.shape.rows), str(rate)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        sleep(SETTLE_SECONDS)
        yield seen
    finally:
        out, _ = process.communicate()
    told: dict[str, Any] = json.loads(out)
    seen.samples = [tuple(sample) for sample in told["samples"]]
    seen.inserted = told["inserted"]


def no_job(table: BenchTable) -> Timed:
    sleep(QUIET_SECONDS)
    return Timed(seconds=QUIET_SECONDS)


def bare_ranges(share: float) -> Contender:
    """Nothing but the rows: a range of blocks per message, which begins, deletes and commits, and a rest after it.

    No books, nobody's locks respected, next to no work for the client, and what the application moves meanwhile is
    left: the least that deleting at this pace can cost an application.
    """

    def run(table: BenchTable, clock: Timed) -> None:
        with table.cursor() as cursor:
            cursor.execute(f"SELECT pg_relation_size('{table.name}') / current_setting('block_size')::int")
            end = cursor.fetchone()[0]
            for first in range(0, end, RANGE_BLOCKS):
                bound = f"ctid >= '({first},0)' AND ctid < '({first + RANGE_BLOCKS},0)'"
                clock.statement(
                    cursor,
                    "BEGIN; SET LOCAL synchronous_commit = off;"
                    f" DELETE FROM {table.name} WHERE {bound} AND {table.expired}; COMMIT",
                )
                sleep(clock.holds[-1] * (1 / share - 1))

    return Contender(name=f"bare ranges of blocks, {share:.0%} of the time", run=timed(run))


CONTENDERS = (
    Contender(name=NO_JOB, run=no_job),
    lapse("Lapse gentle", lapse_mode="gentle"),
    FAST,
    *STANDARD[:2],
)
THOROUGH = (WHISPER, *CONTENDERS[1:])
"""Those that leave no expired row, whatever the application does meanwhile."""


def contenders(table: BenchTable, *, slow: bool) -> tuple[Contender, ...]:
    if not slow:
        return CONTENDERS
    bare = (bare_ranges(0.1), bare_ranges(0.2)) if isinstance(table, PostgresTable) else ()
    return (*CONTENDERS, WHISPER, *bare)


def half_load(table: BenchTable, shape: Shape) -> float:
    """Transactions per second: half of what the same clients reach when nothing holds them back."""
    table.create(shape)
    with application(table, 0.0) as app:
        start = monotonic()
        sleep(CALIBRATE_SECONDS)
        end = monotonic()
    table.drop()
    return HALF * len(app.between(start, end)) / (end - start)


def foreground(
    table: BenchTable, shape: Shape, *, rounds: int, slow: bool, progress: Progress
) -> tuple[float, list[Felt]]:
    rate = undisturbed(partial(half_load, table, shape), progress)
    progress(f"half load is {rate:,.0f} transactions/s")
    everyone = contenders(table, slow=slow)
    felt: dict[str, list[list[float]]] = {contender.name: [] for contender in everyone}
    speeds: dict[str, list[float]] = {contender.name: [] for contender in everyone}
    for number in range(1, rounds + 1):
        for contender in random.sample(everyone, len(everyone)):
            latencies, speed = undisturbed(partial(_one, table, shape, contender, rate), progress)
            felt[contender.name].append(latencies)
            speeds[contender.name].append(speed)
            p99 = percentile(latencies, 0.99) * 1000
            progress(f"round {number}: {contender.name}: p99 {p99:.1f} ms, {speed:,.0f} rows/s")
    return rate, [_summary(name, felt[name], speeds[name]) for name in felt]


def _written(table: BenchTable) -> None:
    """A server that still writes what has filled the table is felt, too. PostgreSQL's has written it when the table is
    there."""
    if not isinstance(table, MysqlTable):
        return
    with table.cursor() as cursor:
        cursor.execute("SELECT @@innodb_max_dirty_pages_pct, @@innodb_max_dirty_pages_pct_lwm")
        most, from_here = cursor.fetchone()
        cursor.execute("SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, GLOBAL innodb_max_dirty_pages_pct = 0")
        until = monotonic() + WRITTEN_SECONDS
        while _dirty(cursor) > FEW_PAGES and monotonic() < until:
            sleep(0.5)
        cursor.execute(f"SET GLOBAL innodb_max_dirty_pages_pct = {most}")
        cursor.execute(f"SET GLOBAL innodb_max_dirty_pages_pct_lwm = {from_here}")


def _dirty(cursor: Any) -> int:
    cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
    return int(cursor.fetchone()[1])


def _one(table: BenchTable, shape: Shape, contender: Contender, rate: float) -> tuple[list[float], float]:
    table.create(shape)
    try:
        _written(table)
        before = table.contents()
        with application(table, rate) as app:
            start = monotonic()
            took = contender.run(table)
            end = monotonic()
        after = table.contents()
        if contender in THOROUGH:
            wanted = before.without_expired()
            left = (after.expired, after.rows - app.inserted, after.checksum)
            assert left == (0, wanted.rows, wanted.checksum), f"{contender.name} left {after}"
    finally:
        table.drop()
    # A contender sets itself up first: what counts is the time at the end in which it worked.
    return app.between(max(start, end - took.seconds), end), before.expired / took.seconds


def _summary(name: str, rounds: list[list[float]], speeds: list[float]) -> Felt:
    def middle(quantile: float) -> float:
        return statistics.median(percentile(latencies, quantile) for latencies in rounds)

    return Felt(
        contender=name,
        rate=0.0 if name == NO_JOB else statistics.median(speeds),
        p50=middle(0.5),
        p95=middle(0.95),
        p99=middle(0.99),
        p99_by_round=tuple(percentile(latencies, 0.99) for latencies in rounds),
        transactions=sum(len(latencies) for latencies in rounds),
    )
