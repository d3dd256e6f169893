"""Deleting in PostgreSQL: one call of the table's batch function per transaction, in physical order or by an index.

There are three statements, from the fastest to the most careful; each falls back on the next.

A sweep deletes what has expired in a range of blocks that probably holds fewer rows than the limit; if it was more, it
is rolled back. The second lists the addresses of at most n expired rows without locking anything, then deletes those
that have still expired. Both can meet a row that another session has locked: they wait a few milliseconds and roll
back. The careful one locks what it can with SKIP LOCKED before it deletes, at about two thirds of the speed; so only
places where there is a lock pay for it.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from threading import Lock
from time import perf_counter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Batch, Checkpoint, Deleter
from lapse.engines.postgres import ledger_keys, origin
from lapse.engines.postgres.calling import CHECKPOINT_LOCKS, BatchFunction
from lapse.engines.postgres.errors import LOCK_NOT_AVAILABLE, sqlstate
from lapse.engines.postgres.names import SEE_EXPIRED, literal
from lapse.engines.postgres.replicas import Reader
from lapse.engines.postgres.session import BEGIN, roll_back, send, set_locally, transaction
from lapse.errors import RowUndeletable
from lapse.model.job import KeyRange
from lapse.model.ledger_keys import Noted
from lapse.model.table import Table

STATEMENT_MS = 2_000
CHANCE_MS = 10
"""How long the first attempt waits for a row that another session has locked."""
CAREFUL_MS = 200
"""How long a careful one waits: only the table itself, and rows that a cascade reaches, can make it."""
SKIP_LOCKED_STEPS = 20
"""Steps that stay careful after a lock was met."""

QUERY_CANCELED = "57014"
CANCEL_SECONDS = 5
"""How long a cancellation is waited for."""
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

    `threshold` is that of the cutoff. `holding` are the foreign keys of the owner's own tables that may keep rows, by
    oid; `is_held` says that there are any, of whatever owner. `keeps_last`: rows are locked before they are judged.
    `has_row_triggers`: a trigger or rule may keep rows from being deleted. `is_keyed`: the keys of deleted rows are
    recorded. `message` marks its transactions in a change
    stream; None where nothing decodes it. `origin` is the replication origin under which they are made, `job` the
    number that archived rows carry. `reader` looks for rows on a standby.
    """

    table: Table
    function: BatchFunction
    cutoff: datetime
    threshold: str | None
    span: KeyRange
    cursor: str | None
    connect: Connect
    holding: tuple[int, ...] = ()
    is_held: bool = False
    keeps_last: bool = False
    statement_ms: int = STATEMENT_MS
    rows_per_block: float = 0.0
    has_row_triggers: bool = False
    is_keyed: bool = False
    message: str | None = None
    origin: str | None = None
    job: int = 0
    reader: Reader | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a call found: how many rows, the last of them, how many it deleted; of those that are left, how many there
    are in all and how many no other session has locked. `keys` are hashes of the keys of deleted rows, by that secret,
    where they are to be recorded."""

    count: int
    deleted: int
    last: Any = None
    left: tuple[int, int] = (0, 0)
    keys: str | None = None
    secret: int | None = None

    @property
    def noted(self) -> Noted | None:
        return None if self.secret is None else ledger_keys.noted(self.secret, self.keys or "", self.deleted)


def marked(message: str) -> str:
    """SQL that marks its transaction in a change stream; `message` is SQL, too."""
    return f"pg_catalog.pg_logical_emit_message(true, {literal(MESSAGE_PREFIX)}, {message})"


class InterruptibleDeleter(Deleter):
    """The lock keeps a late cancellation from reaching the next user of the connection."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: Any = None

    def interrupt(self) -> None:
        with self._lock:
            if self._running is not None:
                self._running.cancel_safe(timeout=CANCEL_SECONDS)

    @contextmanager
    def watched(self, connection: Connection) -> Iterator[None]:
        with self._lock:
            self._running = connection.connection.driver_connection
        try:
            yield
        finally:
            with self._lock:
                self._running = None


class PostgresDeleter(InterruptibleDeleter):
    """The paths differ in what they list and in what a cursor is; the rest is the same for all."""

    is_steady = True

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._cursor = work.cursor
        self._skip_locked_steps = 0
        self._trip = inf

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        with self._work.connect() as connection, self.watched(connection):
            batch = self._attempt(connection, limit, checkpoint)
        self._cursor = batch.cursor
        return batch

    def _attempt(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        try:
            if self._skip_locked_steps:
                self._skip_locked_steps -= 1
                return self._skip_locked(connection, limit, checkpoint)
            try:
                return self._optimistic(connection, limit, checkpoint)
            except DBAPIError as error:
                if sqlstate(error.orig) != LOCK_NOT_AVAILABLE:
                    raise
            self._skip_locked_steps = SKIP_LOCKED_STEPS
            return self._skip_locked(connection, limit, checkpoint)
        except DBAPIError as error:
            code = sqlstate(error.orig)
            if code.startswith(_REFUSALS):
                raise RowUndeletable(reason_of(error)) from error
            if code == QUERY_CANCELED:
                self._shrink()
            raise

    def _optimistic(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        """As if nothing were locked."""
        return self._once(connection, limit, checkpoint, careful=False)

    def _skip_locked(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        try:
            return self._once(connection, limit, checkpoint, careful=True)
        except DBAPIError as error:
            if sqlstate(error.orig) != LOCK_NOT_AVAILABLE or limit > 1:
                raise
        # This very row cannot be had, perhaps because a cascade needs a row that is locked: the next sweep tries again.
        return self._pass_over(connection, checkpoint, skipped=1)

    def _once(self, connection: Connection, limit: int, checkpoint: Checkpoint, *, careful: bool) -> Batch:
        started = perf_counter()
        call = self._call(limit, careful=careful)
        try:
            seen = self._asked(connection, call, begin=self._begin(CAREFUL_MS if careful else CHANCE_MS))
            batch = replace(self._batch(seen, limit), busy_seconds=self._busy(perf_counter() - started))
            if not seen.count:
                # Nothing to commit, and no mark to leave in the change stream.
                self._close(connection, origin.rollback(self._work.origin))
            else:
                held, skipped = self._left_behind(seen)
                batch = replace(batch, held=held, skipped=skipped, noted=seen.noted)
                checkpoint(connection, batch)
                self._close(connection, origin.commit(self._work.origin))
        except BaseException:
            roll_back(connection, origin.rollback(self._work.origin))
            raise
        seconds = perf_counter() - started
        self._learn(seen, limit, seconds)
        return replace(batch, locked_seconds=seconds)

    def _asked(self, connection: Connection, call: str, *, begin: str = "") -> Seen:
        return Seen(**self._work.function.call(connection, call, begin=begin, then=CHECKPOINT_LOCKS))

    def _begin(self, lock_ms: int, **settings: str) -> str:
        """What opens a transaction, to be said in the message of its call."""
        under_origin = [] if self._work.origin is None else origin.enter(self._work.origin)
        limits = {"statement_timeout": str(self._work.statement_ms), "lock_timeout": str(lock_ms)}
        statements = [BEGIN, *under_origin, *set_locally(WORKING | limits | settings)]
        if self._work.message is not None:
            statements.append(f"SELECT {marked(literal(self._work.message))}")
        return "; ".join([*statements, ""])

    def _close(self, connection: Connection, how: str) -> None:
        """The quickest trip to the server there is, as it waits for nothing."""
        asked = perf_counter()
        send(connection, how)
        self._trip = min(self._trip, perf_counter() - asked)

    def _busy(self, seconds: float) -> float:
        """How much of the time from a statement to its answer the server was at work; the rest is a quick trip's."""
        # Never next to nothing, or one answer that came quicker than any COMMIT would multiply the batch.
        return seconds if self._trip == inf else max(seconds - self._trip, seconds / 4)

    def _left_behind(self, seen: Seen) -> tuple[int, int]:
        """(held, skipped): a row that is left although no other session has locked it is kept by a foreign key or a
        trigger, where there is one; otherwise it was locked a moment ago."""
        total, unlocked = seen.left
        held = min(unlocked, total) if self._work.is_held or self._work.has_row_triggers else 0
        return held, total - held

    def _message(self, operation: str, *, limit: int, careful: bool = False, places: Sequence[str | None]) -> str:
        return self._work.function.message(
            operation,
            [(self._work.cutoff, self._work.threshold)],
            numbers=[limit, int(careful), self._work.job],
            places=places,
            holding=self._work.holding,
        )

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        with self._work.connect() as connection:
            batch = self._pass_over(connection, checkpoint, held=1)
        self._cursor = batch.cursor
        return batch

    def _pass_over(self, connection: Connection, checkpoint: Checkpoint, *, held: int = 0, skipped: int = 0) -> Batch:
        """Move past the next expired row, leaving it where it is."""
        with transaction(connection, WORKING):
            seen = self._asked(connection, self._call(1, passing=True))
            batch = self._batch(seen, 1, everything=True)
            if seen.count:
                batch = replace(batch, held=held, skipped=skipped)
            checkpoint(connection, batch)
        return batch

    def restart(self) -> None:
        self._cursor = None

    @abstractmethod
    def _call(self, limit: int, *, careful: bool = False, passing: bool = False) -> str:
        """A call that deletes at most `limit` expired rows after the cursor; `passing`, it only finds them, and looks
        to the end of the range."""

    @abstractmethod
    def _batch(self, seen: Seen, limit: int, *, everything: bool = False) -> Batch: ...

    def _learn(self, seen: Seen, limit: int, seconds: float) -> None:
        pass

    def _shrink(self) -> None:
        pass


class IndexDeleter(PostgresDeleter):
    """Expiry order by an index. A cursor is the expiry and the address of the last row seen."""

    def _call(self, limit: int, *, careful: bool = False, passing: bool = False) -> str:
        operation = "pass index" if passing else "index"
        places = [None, None] if self._cursor is None else json.loads(self._cursor)
        return self._message(operation, limit=limit, careful=careful, places=places)

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
