"""The ways people delete expired rows, each as its users would write it, and Lapse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from time import perf_counter
from typing import Any

from lapse.app import Lapse
from lapse.bench.tables import BenchTable, Key
from lapse.runner.events import BatchDone, NullListener

SELECT_BATCH, DELETE_BATCH = 500, 100
"""The batch sizes of the reference documents."""
LOOP_BATCH = 10_000


@dataclass(kw_only=True)
class Timed:
    """What a contender took: all of it, and how long each of its transactions lasted."""

    seconds: float = 0.0
    holds: list[float] = field(default_factory=list)

    def statement(self, cursor: Any, sql: str) -> int:
        started = perf_counter()
        cursor.execute(sql)
        self.holds.append(perf_counter() - started)
        return int(cursor.rowcount)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    name: str
    run: Callable[[BenchTable], Timed]


def timed(work: Callable[[BenchTable, Timed], None]) -> Callable[[BenchTable], Timed]:
    def run(table: BenchTable) -> Timed:
        clock = Timed()
        started = perf_counter()
        work(table, clock)
        clock.seconds = perf_counter() - started
        return clock

    return run


def one_delete(table: BenchTable, clock: Timed) -> None:
    with table.cursor() as cursor:
        clock.statement(cursor, f"DELETE FROM {table.name} WHERE {table.expired}")


def limit_loop(table: BenchTable, clock: Timed) -> None:
    """What cron recipes and MariaDB events do: each statement reads again what the others have left."""
    with table.cursor() as cursor:
        while clock.statement(cursor, table.delete_some(LOOP_BATCH)):
            pass


def references_loop(table: BenchTable, clock: Timed, span: str = "1 = 1") -> None:
    """SELECT 500 keys in key order, DELETE 100 of them at a time, with the condition repeated."""
    columns = ", ".join(table.key)
    last: Key | None = None
    with table.cursor() as cursor:
        while True:
            after = f" AND {table.after(last)}" if last is not None else ""
            cursor.execute(
                f"SELECT {columns} FROM {table.name} WHERE {table.expired} AND {span}{after}"
                f" ORDER BY {columns} LIMIT {SELECT_BATCH}"
            )
            keys: list[Key] = list(cursor.fetchall())
            for start in range(0, len(keys), DELETE_BATCH):
                bound = table.among(keys[start : start + DELETE_BATCH])
                clock.statement(cursor, f"DELETE FROM {table.name} WHERE {bound} AND {table.expired}")
            if len(keys) < SELECT_BATCH:
                return
            last = keys[-1]


def references_loops(clients: int) -> Callable[[BenchTable, Timed], None]:
    """As many clients, each with its own part of a numeric key."""

    def work(table: BenchTable, clock: Timed) -> None:
        step = table.shape.rows // clients + 1
        spans = [f"id > {part * step} AND id <= {(part + 1) * step}" for part in range(clients)]
        threads = [Thread(target=references_loop, args=(table, clock, span)) for span in spans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return work


class _Watch(NullListener):
    """How long each transaction lasted, told by the task that ran it."""

    def __init__(self) -> None:
        self.holds: list[float] = []

    def batch_done(self, event: BatchDone) -> None:
        self.holds += event.batch.transactions


def lapse(name: str = "Lapse", *, declared: str = "", **settings: str) -> Contender:
    """`settings` are set for the whole database, so they are for servers of one's own; `declared` are more parameters
    of the policy."""

    def run(table: BenchTable) -> Timed:
        watch = _Watch()
        with Lapse(table.lapse_url) as database:
            for setting, value in settings.items():
                database.set_setting(setting, value)
            declare(database, table, always=declared)
            started = perf_counter()
            database.run(table.name, listener=watch)
            seconds = perf_counter() - started
            database.execute(f"ALTER TABLE {table.name} RESET (ttl)")
        return Timed(seconds=seconds, holds=watch.holds)

    return Contender(name=name, run=run)


def declare(database: Lapse, table: BenchTable, more: str = "", *, always: str = "") -> None:
    """A worker has been at work before: what it does once in its life, on another table, is not measured. The policy
    says `more` on the table itself, and `always` on both."""
    small = f"{table.name}_small"
    table.create_small(small)
    try:
        parameters = ", ".join(filter(None, ("ttl_expiration_expression = 'expire_at'", "ttl_guard = 'off'", always)))
        for name in (small, table.name):
            database.execute(f"ALTER TABLE {name} SET ({parameters})")
        database.run(small)
        if more:
            database.execute(f"ALTER TABLE {table.name} SET ({more})")
    finally:
        database.execute(f"DROP TABLE {small}")


STANDARD = (
    Contender(name="one DELETE", run=timed(one_delete)),
    Contender(name="references' loop", run=timed(references_loop)),
    Contender(name="LIMIT loop", run=timed(limit_loop)),
)
"""Those that every engine has; the statement for everything is what the others are compared with."""
__all__ = ["STANDARD", "Contender", "Timed", "declare", "lapse", "one_delete", "references_loops", "timed"]
