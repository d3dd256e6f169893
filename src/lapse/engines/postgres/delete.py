"""Deleting in PostgreSQL: one bounded statement per transaction, in physical order or by an index.

There are three statements, from the fastest to the most careful; each falls back on the next.

A sweep deletes what has expired in a range of blocks that probably holds fewer rows than the limit; if it was more, it
is rolled back. The second lists the addresses of at most n expired rows without locking anything, then deletes those
that have still expired. Both can meet a row that somebody has locked: they wait a few milliseconds and roll back. The
careful one locks what it can with SKIP LOCKED before it deletes, at about two thirds of the speed; so only places where
there is a lock pay for it.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Batch, Checkpoint
from lapse.engines.guard import GuardedDelete
from lapse.engines.postgres import origin
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.interrupting import InterruptibleDeleter
from lapse.engines.postgres.names import SEE_EXPIRED, literal, quote, relation
from lapse.engines.postgres.session import BEGIN, roll_back, set_locally, sqlstate, transaction
from lapse.errors import RowUndeletable
from lapse.model.job import KeyRange
from lapse.model.table import Table

ROW = "lapse_row"
STATEMENT_MS = 2_000
CHANCE_MS = 10
"""How long the first attempt waits for a row that somebody has locked."""
CAREFUL_MS = 200
"""How long a careful one waits: only the table itself, and rows that a cascade reaches, can make it."""
CAREFUL_STEPS = 20
"""Steps that stay careful after a lock was met."""

UNHURRIED = "; SET LOCAL lock_timeout = 0"
"""Said with the statement that deletes: the checkpoint that follows may wait a moment for a heartbeat to commit."""

LOCK_NOT_AVAILABLE, QUERY_CANCELED = "55P03", "57014"
_REFUSALS = ("23", "44", "P0001")
"""Constraint violations, check options, and exceptions raised by the user's own triggers."""

WORKING = {
    # A delete that a crash undoes is simply done again.
    "synchronous_commit": "off",
    "statement_timeout": str(STATEMENT_MS),
    # Plans are pinned: addresses and indexes, never the whole table; and no compilation for a few milliseconds of work.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_tidscan": "on",
    "enable_indexscan": "on",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    SEE_EXPIRED: "on",
}
MESSAGE_PREFIX = "lapse"
"""Of the logical messages that tell TTL deletes apart in a change stream."""

Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a deleter is given.

    `has_row_triggers`: a trigger or rule may keep rows from being deleted. `message` marks its transactions in a change
    stream; None where nobody decodes it. `origin` is the replication origin under which they are made.
    """

    table: Table
    condition: Condition
    span: KeyRange
    cursor: str | None
    connect: Connect
    rows_per_block: float = 0.0
    has_row_triggers: bool = False
    message: str | None = None
    origin: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a statement found: how many rows, the last of them, and how many it deleted."""

    count: int
    last: Any
    deleted: int


class PostgresDeleter(InterruptibleDeleter):
    """The paths differ in what they list and in what a cursor is; the rest is the same for all."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._table = f"ONLY {relation(work.table.name)} AS {ROW}"
        self._cursor = work.cursor
        self._careful_steps = 0
        self._trip = inf
        self._free = _unreferenced(work.table)

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        with self._work.connect() as connection, self.watched(connection):
            batch = self._attempt(connection, limit, checkpoint)
        self._cursor = batch.cursor
        return batch

    def _attempt(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        try:
            if self._careful_steps:
                self._careful_steps -= 1
                return self._careful(connection, limit, checkpoint)
            try:
                return self._take_a_chance(connection, limit, checkpoint)
            except DBAPIError as error:
                if sqlstate(error.orig) != LOCK_NOT_AVAILABLE:
                    raise
            self._careful_steps = CAREFUL_STEPS
            return self._careful(connection, limit, checkpoint)
        except DBAPIError as error:
            code = sqlstate(error.orig)
            if code.startswith(_REFUSALS):
                raise RowUndeletable(reason_of(error)) from error
            if code == QUERY_CANCELED:
                self._shrink()
            raise

    def _take_a_chance(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        """As if nobody had locked anything."""
        return self._once(connection, limit, checkpoint, careful=False)

    def _careful(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        try:
            return self._once(connection, limit, checkpoint, careful=True)
        except DBAPIError as error:
            if sqlstate(error.orig) != LOCK_NOT_AVAILABLE or limit > 1:
                raise
        # This very row cannot be had, perhaps because a cascade needs a row that is locked: the next sweep tries again.
        return self._pass_over(connection, checkpoint, skipped=1)

    def _once(self, connection: Connection, limit: int, checkpoint: Checkpoint, *, careful: bool) -> Batch:
        started = perf_counter()
        sql = self._statement(limit, careful=careful)
        try:
            self._begin(connection, CAREFUL_MS if careful else CHANCE_MS)
            asked = perf_counter()
            seen = Seen(**connection.exec_driver_sql(sql + UNHURRIED).mappings().one())
            batch = replace(self._batch(seen, limit), busy_seconds=self._busy(perf_counter() - asked))
            if not seen.count:
                # Nothing to commit, and no mark to leave in the change stream.
                connection.exec_driver_sql(origin.rollback(self._work.origin))
            else:
                if seen.deleted < seen.count:
                    held, skipped = self._left_behind(connection, seen)
                    batch = replace(batch, held=held, skipped=skipped)
                checkpoint(connection, batch)
                connection.exec_driver_sql(origin.commit(self._work.origin))
        except BaseException:
            roll_back(connection, origin.rollback(self._work.origin))
            raise
        seconds = perf_counter() - started
        self._learn(seen, limit, seconds)
        return replace(batch, locked_seconds=seconds)

    def _begin(self, connection: Connection, lock_ms: int, **settings: str) -> None:
        under_origin = [] if self._work.origin is None else origin.enter(self._work.origin)
        statements = [BEGIN, *under_origin, *set_locally(WORKING | {"lock_timeout": str(lock_ms)} | settings)]
        if self._work.message is not None:
            statements.append(
                f"SELECT pg_logical_emit_message(true, {literal(MESSAGE_PREFIX)}, {literal(self._work.message)})"
            )
        asked = perf_counter()
        connection.exec_driver_sql("; ".join(statements))
        self._trip = min(self._trip, perf_counter() - asked)

    def _busy(self, seconds: float) -> float:
        """How much of the time from a statement to its answer the server was at work; the rest is a quick trip's."""
        # Never next to nothing, or one answer that came quicker than any BEGIN would multiply the batch.
        return max(seconds - self._trip, seconds / 4)

    def _statement(self, limit: int, *, careful: bool) -> str:
        addresses = "(SELECT addresses FROM seen)::tid[]"
        if careful:
            addresses = (
                f"ARRAY(SELECT ctid FROM {self._table} WHERE ctid = ANY({addresses})"
                f" AND {self._work.condition.unindexed} FOR UPDATE SKIP LOCKED)"
            )
        delete = GuardedDelete(
            table=self._table,
            condition=self._work.condition.unindexed,
            bound=f"{ROW}.ctid = ANY({addresses})",
            extra=self._free,
            suffix=" RETURNING 1",
        ).sql()
        return (
            f"WITH seen AS MATERIALIZED ({self._seen(limit)}), gone AS ({delete})"
            " SELECT count, last, (SELECT count(*) FROM gone) AS deleted FROM seen"
        )

    def _seen(self, limit: int, *, everything: bool = False) -> str:
        """One row, with the addresses as an array: cheaper than as many rows, of which each would be stored twice."""
        return (
            f"SELECT array_agg(at) AS addresses, count(*) AS count, {self._last()} AS last"
            f" FROM ({self._list(limit, everything=everything)}) listed"
        )

    def _left_behind(self, connection: Connection, seen: Seen) -> tuple[int, int]:
        """(held, skipped): of the rows still there, those that can be locked are held by a foreign key."""
        left = f"SELECT 1 FROM {self._table} WHERE {self._until(seen)} AND {self._work.condition.unindexed}"
        total, free = connection.exec_driver_sql(
            f"SELECT (SELECT count(*) FROM ({left}) total), (SELECT count(*) FROM ({left} FOR UPDATE SKIP LOCKED) free)"
        ).one()
        held = min(int(free), int(total)) if self._free else 0
        return held, int(total) - held

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        with self._work.connect() as connection:
            batch = self._pass_over(connection, checkpoint, held=1)
        self._cursor = batch.cursor
        return batch

    def _pass_over(self, connection: Connection, checkpoint: Checkpoint, *, held: int = 0, skipped: int = 0) -> Batch:
        """Move past the next expired row, leaving it where it is."""
        with transaction(connection, WORKING):
            row = connection.exec_driver_sql(
                f"SELECT count, last, 0 AS deleted FROM ({self._seen(1, everything=True)}) seen"
            ).mappings()
            seen = Seen(**row.one())
            batch = self._batch(seen, 1, everything=True)
            if seen.count:
                batch = replace(batch, held=held, skipped=skipped)
            checkpoint(connection, batch)
        return batch

    def restart(self) -> None:
        self._cursor = None

    @abstractmethod
    def _list(self, limit: int, *, everything: bool = False) -> str:
        """SELECT the address of at most `limit` expired rows after the cursor AS at. `everything` has no window."""

    @abstractmethod
    def _last(self) -> str:
        """What the next cursor is made of, as an aggregate of the rows listed."""

    @abstractmethod
    def _until(self, seen: Seen) -> str:
        """Rows from the cursor to the last one seen."""

    @abstractmethod
    def _batch(self, seen: Seen, limit: int, *, everything: bool = False) -> Batch: ...

    def _learn(self, seen: Seen, limit: int, seconds: float) -> None:
        pass

    def _shrink(self) -> None:
        pass


class IndexDeleter(PostgresDeleter):
    """Expiry order by an index. A cursor is the expiry and the address of the last row seen."""

    @property
    def _column(self) -> str:
        assert self._work.condition.column is not None
        return quote(self._work.condition.column)

    def _after_cursor(self) -> str:
        if self._cursor is None:
            return "TRUE"
        moment, address = json.loads(self._cursor)
        # The first half finds the place in the index, the second tells rows with the same expiry apart.
        return f"{self._column} >= {literal(moment)} AND ({self._column}, ctid) > ({literal(moment)}, '{address}'::tid)"

    def _list(self, limit: int, *, everything: bool = False) -> str:
        return (
            f"SELECT ctid AS at, {self._column} AS moment FROM {self._table}"
            f" WHERE {self._work.condition.sql} AND {self._after_cursor()}"
            f" ORDER BY {self._column}, ctid LIMIT {int(limit)}"
        )

    def _last(self) -> str:
        # They are listed in order, so the last address belongs to the latest moment.
        return "ARRAY[max(moment)::text, (array_agg(at))[count(*)::integer]::text]"

    def _until(self, seen: Seen) -> str:
        moment, address = seen.last
        last = f"({literal(moment)}, '{address}'::tid)"
        return f"{self._column} <= {literal(moment)} AND {self._after_cursor()} AND ({self._column}, ctid) <= {last}"

    def _batch(self, seen: Seen, limit: int, *, everything: bool = False) -> Batch:
        return Batch(
            examined=seen.count,
            selected=seen.count,
            deleted=seen.deleted,
            cursor=json.dumps(seen.last) if seen.count else self._cursor,
            done=seen.count < limit,
        )


def reason_of(error: DBAPIError) -> str:
    diagnostics = getattr(error.orig, "diag", None)
    return str(getattr(diagnostics, "message_primary", None) or error.orig)


def _unreferenced(table: Table) -> str:
    """True for rows that no RESTRICT or NO ACTION foreign key refers to."""
    conditions = []
    for reference in table.holding_references:
        child = "lapse_child"
        pairs = " AND ".join(
            f"{child}.{quote(own)} = {ROW}.{quote(referred)}"
            for own, referred in zip(reference.columns, reference.referred, strict=True)
        )
        # A row that refers to itself goes with itself.
        pairs += f" AND ({child}.tableoid, {child}.ctid) <> ({ROW}.tableoid, {ROW}.ctid)"
        conditions.append(f"NOT EXISTS (SELECT 1 FROM {relation(reference.table)} AS {child} WHERE {pairs})")
    return " AND ".join(conditions)
