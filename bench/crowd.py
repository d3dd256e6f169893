"""What many small tables, a table of many leaves and an idle worker cost: real worker processes on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from sqlalchemy import Connection

from bench.quiet import undisturbed
from bench.servers import Server
from lapse.app import Lapse
from lapse.bench.measure import Progress
from lapse.catalog import schema

TABLES, EXPIRED = 1_000, 10
LEAVES, LEAF_ROWS, ROUNDS = 8_760, 1_000, 3
WORKERS = 4
SETTLE_SECONDS = 30.0
IDLE_SECONDS = 30.0
HOUR = timedelta(hours=1)
HOURS = 3 * HOUR
SOON = timedelta(seconds=3)
"""Workers that are told a due time this long before know it when it comes, as they know that of `@hourly`."""
PER_TABLE = f"one of {TABLES:,} small tables, one worker"
FASTER = f"{WORKERS} workers, as fast as one"
LEAF = f"a table of {LEAVES:,} leaves with rows to delete in one, of a plain table with those rows"
TRANSACTIONS, CORE, MEMORY = "idle worker, transactions", "idle worker, of a core", "idle worker, memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """`at_least` tells which side of the value is good."""

    value: float
    unit: str
    at_least: bool = False

    def is_met_by(self, found: float) -> bool:
        return found >= self.value if self.at_least else found <= self.value


AIMS = {
    PER_TABLE: Aim(value=15.0, unit="ms"),
    FASTER: Aim(value=2.5, unit="x", at_least=True),
    LEAF: Aim(value=3.0, unit="x"),
    TRANSACTIONS: Aim(value=2.0, unit="/s"),
    CORE: Aim(value=1.0, unit="%"),
    MEMORY: Aim(value=150.0, unit="MB"),
}


def crowd(server: Server, *, time_type: str, progress: Progress) -> dict[str, float]:
    """Name of a figure → the figure, in the unit of its aim."""
    url = server.url.render_as_string(hide_password=False)
    found: dict[str, float] = {}
    with Lapse(url) as db:
        found |= _small_tables(db, url, time_type, progress)
        found |= _idle(db, url)
        progress(f"{found}")
        if db.engine.dialect == "postgres":
            # MariaDB has at most 8,192 partitions.
            found[LEAF] = _leaves(db, time_type, progress)
    return found


def _small_tables(db: Lapse, url: str, time_type: str, progress: Progress) -> dict[str, float]:
    names = [f"c{number:04}" for number in range(TABLES)]
    with db.engine.user_connection() as client:
        for name in names:
            client.exec_driver_sql(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, ts {time_type})")
    for name in names:
        db.execute(
            f"ALTER TABLE {name} SET (ttl_expiration_expression = 'ts', ttl_grace = '0 seconds', ttl_guard = 'off',"
            " ttl_time_zone = 'UTC')"
        )
    progress(f"{TABLES:,} small tables are declared")
    # The first round is for what is done once in a table's life.
    _worked_off(db, url, names, 1)
    one = undisturbed(partial(_worked_off, db, url, names, 1), progress)
    progress(f"one worker: {one:.1f} s")
    many = undisturbed(partial(_worked_off, db, url, names, WORKERS), progress)
    progress(f"{WORKERS} workers: {many:.1f} s")
    return {PER_TABLE: 1000 * one / TABLES, FASTER: one / many}


def _worked_off(db: Lapse, url: str, names: Sequence[str], workers: int) -> float:
    """The seconds from the first job to the last, as the history has them."""
    values = ", ".join(f"({number}, '2020-01-01 00:00:00')" for number in range(EXPIRED))
    with db.engine.user_connection() as client:
        for name in names:
            client.exec_driver_sql(f"INSERT INTO {name} VALUES {values}")
    job = schema.job.c
    _all_due(db, HOURS)
    with db.catalog.reading() as connection:
        before = connection.exec_driver_sql(f"SELECT max(job_id) FROM {_named(db, 'lapse_job')}").scalar() or 0
    with _workers(url, workers):
        # Those that start take a moment; the tables fall due together when all of them are there.
        sleep(5.0)
        _all_due(db, SOON)
        sleep(SOON.total_seconds())
        while True:
            sleep(0.5)
            with db.catalog.reading() as connection:
                ended = schema.job.select().where(job.job_id > before, job.finished_at.is_not(None))
                rows = connection.execute(ended).mappings().all()
            # Where two workers meet at a table, the job of one may find the rows locked by the other and come again.
            if sum(row["deleted"] for row in rows) >= EXPIRED * len(names):
                break
    began, ended_at = min(row["created_at"] for row in rows), max(row["finished_at"] for row in rows)
    return float((ended_at - began).total_seconds())


def _all_due(db: Lapse, after: timedelta) -> None:
    with db.catalog.writing() as connection:
        connection.execute(schema.table.update().values(next_run_at=db.engine.now(connection) + after))


@contextmanager
def _workers(url: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "lapse", "worker", url]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield running
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait(timeout=30)


def _idle(db: Lapse, url: str) -> dict[str, float]:
    _all_due(db, HOURS)
    with db.engine.connection() as connection:
        if db.engine.dialect == "mysql":
            connection.exec_driver_sql("SET GLOBAL log_output = 'TABLE', GLOBAL general_log = ON")
        before, began = _transactions(db, connection), perf_counter()
        sleep(IDLE_SECONDS)
        # Those of the server itself, which vacuums and analyzes.
        without = (_transactions(db, connection) - before) / (perf_counter() - began)
    with _workers(url, 1) as (worker,), db.engine.connection() as connection:
        # What it does once, when it starts, is told by the server up to ten seconds after it was done.
        sleep(SETTLE_SECONDS)
        before, used, began = _transactions(db, connection), _processor_seconds(worker.pid), perf_counter()
        sleep(IDLE_SECONDS)
        passed = perf_counter() - began
        return {
            TRANSACTIONS: (_transactions(db, connection) - before) / passed - without,
            CORE: 100 * (_processor_seconds(worker.pid) - used) / passed,
            MEMORY: _resident_bytes(worker.pid) / 1e6,
        }


def _transactions(db: Lapse, connection: Connection) -> int:
    """Since the server was started, or its log of statements: one that stands alone is a transaction, too."""
    if db.engine.dialect == "mysql":
        logged = connection.exec_driver_sql(
            "SELECT thread_id, argument FROM mysql.general_log"
            " WHERE command_type = 'Query' AND thread_id <> connection_id()"
        )
        return _ended((int(thread), str(text)) for thread, text in logged)
    connection.exec_driver_sql("SELECT pg_catalog.pg_stat_clear_snapshot()")
    sql = "SELECT xact_commit FROM pg_catalog.pg_stat_database WHERE datname = pg_catalog.current_database()"
    return int(connection.exec_driver_sql(sql).scalar_one())


def _ended(statements: Iterable[tuple[int, str]]) -> int:
    """How many transactions the statements of these sessions were."""
    count, is_open = 0, set[int]()
    for session, text in statements:
        words = text.removeprefix("/* lapse */").split()
        if words[:2] == ["START", "TRANSACTION"]:
            is_open.add(session)
        elif words and words[0] in ("COMMIT", "ROLLBACK") and words[1:2] != ["TO"]:
            is_open.discard(session)
        count += session not in is_open
    return count


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _leaves(db: Lapse, time_type: str, progress: Progress) -> float:
    """How many times as long a run of the partitioned table takes; medians of interleaved rounds."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    first = now - 2 * HOUR
    _create_leaves(db, time_type, first)
    with db.engine.user_connection() as client:
        client.exec_driver_sql(f"CREATE TABLE plain (id BIGINT, ts {time_type}, PRIMARY KEY (id, ts))")
    for name in ("leaves", "plain"):
        db.execute(
            f"ALTER TABLE {name} SET (ttl_expiration_expression = 'ts', ttl_grace = '0 seconds', ttl_guard = 'off',"
            " ttl_partition_drop = 'off', ttl_time_zone = 'UTC')"
        )
    progress(f"{LEAVES:,} leaves are declared")
    taken: dict[str, list[float]] = {"leaves": [], "plain": []}
    for _ in range(1 + ROUNDS):
        for name, seconds in taken.items():
            _fill(db, name, first + HOUR / 2)
            started = perf_counter()
            assert db.run(name).deleted == LEAF_ROWS
            seconds.append(perf_counter() - started)
        progress(f"leaves {taken['leaves'][-1]:.2f} s, plain {taken['plain'][-1]:.2f} s")
    return median(taken["leaves"][1:]) / median(taken["plain"][1:])


def _create_leaves(db: Lapse, time_type: str, first: datetime) -> None:
    edges = [first + number * HOUR for number in range(LEAVES + 1)]
    with db.engine.user_connection() as client:
        client.exec_driver_sql(
            f"CREATE TABLE leaves (id BIGINT, ts {time_type}, PRIMARY KEY (id, ts)) PARTITION BY RANGE (ts)"
        )
        for number in range(LEAVES):
            client.exec_driver_sql(
                f"CREATE TABLE leaf_{number:05} PARTITION OF leaves"
                f" FOR VALUES FROM ('{edges[number]}') TO ('{edges[number + 1]}')"
            )


def _fill(db: Lapse, name: str, at: datetime) -> None:
    with db.engine.user_connection() as client:
        rows = ", ".join(f"({number}, '{at:%Y-%m-%d %H:%M:%S}+00')" for number in range(LEAF_ROWS))
        client.exec_driver_sql(f"INSERT INTO {name} VALUES {rows}")


def _named(db: Lapse, table: str) -> str:
    return f"{db.engine.catalog_schema}.{table}" if db.engine.catalog_schema else table


__all__ = ["AIMS", "crowd"]
