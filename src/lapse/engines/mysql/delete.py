"""Deleting on MariaDB and MySQL: look without a lock, then delete what was found in one short transaction.

One look reads at most a window of rows, however few of them have expired: the key at the window's end is found first
(computed, where keys are numbers with few gaps), then the expired keys up to it, both by plain reads that lock nothing.
The rows are deleted by key, with the condition repeated, by a statement that waits for no lock. If a session holds one
of them, the free ones are picked with SKIP LOCKED and only those deleted. Where a statement cannot refuse to wait
(MySQL), they are always picked that way.

Where much has expired and a statement can refuse to wait, it deletes the expired rows of the window by itself, which
saves sending the keys back and forth. A row in the window that a session holds sends it back to the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.action import Action, Rows
from lapse.engines.base import Batch, Checkpoint
from lapse.engines.keyset import Atomic, Connect, KeysetDeleter
from lapse.engines.mysql import keys
from lapse.engines.mysql.armed import Changed, Watch
from lapse.engines.mysql.keys import INCLUSIVE, Form, Key, Walk
from lapse.engines.mysql.names import quote
from lapse.errors import DatabaseError, Interrupted, Retryable
from lapse.model.job import KeyRange

READ_TARGET_SECONDS = 0.25
"""For a look, which locks nothing: long enough that a busy server is not asked for scraps."""
FIRST_ROWS_PER_EXPIRED = 10.0
MANY_ROWS_PER_EXPIRED = 30.0
"""Up to here deleting straight away is quicker than looking first."""
BLIND_SHARE = 0.7
"""Of the limit, how much a statement that deletes straight away aims at. One that reaches the limit does not know how
far it came, and the next has to pass all it has deleted, which is slow until the server has purged it."""
MIN_WINDOW = 100
MAX_WINDOW = 200_000
DENSE = 4.0
"""Numbers per row, up to which the end of a window is computed and not looked up. It never holds too many rows."""
COMPUTED_WINDOWS = 16
"""After as many, one is looked up again: there may be larger gaps now."""
MAX_KEYS = 5_000
"""Keys in one statement: beyond the server's limit for ranges it would read the whole table instead."""
LOCK_WAIT_TIMEOUT = 1205
NOT_BY_KEY = 1175
"""The server would have read the whole table to find the keys."""

Kill = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All the SQL of one task. `free` is true for rows that no foreign key holds; empty where none can."""

    source: str
    key: Walk
    condition: str
    comment: str
    action: Action
    free: str = ""
    free_in_delete: bool = True
    refuses_to_wait: bool = True
    skips_locked: bool = True
    """Does the storage engine know SKIP LOCKED? MyRocks does not, and waits a second for each lock."""
    rows_per_row: float = 1.0
    """Rows that go with each row deleted, itself included: foreign keys with CASCADE."""
    counts_rows: bool = False
    """Must it be known how many rows a window holds? A limit on reading counts rows, not the gaps between them."""

    def select(self, what: str, where: Sequence[str], walk: Walk, suffix: str = "") -> str:
        conditions = f" WHERE {' AND '.join(where)}" if where else ""
        return f"{self.comment} SELECT {what} FROM {self.source} FORCE INDEX ({quote(walk.index)}){conditions}{suffix}"

    def delete(self, found: Sequence[Key]) -> tuple[str, ...]:
        """Only the key can lead to the rows: `IS TRUE` keeps the server from walking along an index on the expiry."""
        rows = Rows(
            table=self.source,
            condition=f"({self.condition}) IS TRUE",
            bound=self.key.equal(found),
            extra=self.free if self.free_in_delete else "",
        )
        return self._statements(rows)

    def delete_range(self, where: Sequence[str], limit: int) -> tuple[str, ...]:
        """The expired rows of a range of keys, at most `limit`, without waiting for another session."""
        rows = Rows(
            table=self.source,
            condition=f"({self.condition}) IS TRUE",
            bound=" AND ".join(where),
            suffix=f" ORDER BY {self.key.order} LIMIT {limit}",
        )
        return self._statements(rows)

    def _statements(self, rows: Rows) -> tuple[str, ...]:
        no_wait = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR " if self.refuses_to_wait else ""
        return tuple(f"{self.comment} {no_wait}{statement}" for statement in self.action.statements(rows))

    def lock(self, found: Sequence[Key]) -> str:
        """Those of the keys that no other session holds, locked."""
        where = [self.key.equal(found), f"({self.condition}) IS TRUE"]
        if self.free and not self.free_in_delete:
            where.append(self.free)
        return self.select(self.key.selected, where, self.key, " FOR UPDATE SKIP LOCKED")

    def count_expired(self, found: Sequence[Key], *, free: bool) -> str:
        """`free` counts those alone that nothing refers to."""
        where = [self.key.equal(found), f"({self.condition}) IS TRUE", *([self.free] if free else [])]
        return self.select("count(*)", where, self.key)


class MysqlDeleter(KeysetDeleter):
    """`_find` says where the paths differ; the rest is the same for all."""

    def __init__(
        self,
        plan: Plan,
        span: KeyRange,
        cursor: str | None,
        *,
        connect: Connect,
        connect_freely: Connect,
        atomic: Atomic,
        kill: Kill,
        watch: Watch,
        look_again: Callable[[], None],
    ) -> None:
        """`connect` gives sessions that delete by key only, `connect_freely` others, where that is refused."""
        super().__init__(cursor, connect, atomic)
        self._plan = plan
        self._span = span
        self._connect_freely = connect_freely
        self._kill = kill
        self._watch = watch
        self._look_again = look_again
        self._running: int | None = None
        self._was_killed = False
        self._guard = Lock()

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        try:
            return self._checked_step(limit, checkpoint)
        except Changed:
            self._look_again()
            return self._checked_step(limit, checkpoint)

    def _checked_step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        limit = max(1, int(limit / self._plan.rows_per_row))
        try:
            batch = self._step(limit, checkpoint)
        except DatabaseError as error:
            if _number(error.__cause__) != NOT_BY_KEY or self._connect is self._connect_freely:
                raise
            self._connect = self._connect_freely
            batch = self._step(limit, checkpoint)
        self._cursor = batch.cursor
        return batch

    def _step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        with self._connect() as connection:
            self._set_running(_thread_id(connection))
            try:
                quick = self._delete_blindly(connection, limit, checkpoint)
                if quick is not None:
                    return quick
                started = perf_counter()
                found, batch = self._find(connection, min(limit, MAX_KEYS))
                self._trust()
                batch = replace(batch, read_seconds=perf_counter() - started)
                if not found:
                    return batch
                started = perf_counter()
                batch = self._delete(connection, found, batch, checkpoint)
                return replace(batch, locked_seconds=perf_counter() - started)
            finally:
                self._set_running(None)

    def interrupt(self) -> None:
        # Under the lock the connection cannot have gone back to the pool, and so to another task.
        with self._guard:
            if self._running is not None:
                self._was_killed = True
                self._kill(self._running)

    def _trust(self) -> None:
        """After a kill an answer without an error may still be wrong: a statement that says it found nothing."""
        if self._was_killed:
            raise Interrupted("stopped in the middle of a batch")

    def _set_running(self, thread: int | None) -> None:
        with self._guard:
            self._running = thread

    def _delete_blindly(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch | None:
        """Delete without looking first, where that is quicker; None where it is not, or a session holds a row."""
        return None

    def _delete(self, connection: Connection, found: list[Key], batch: Batch, checkpoint: Checkpoint) -> Batch:
        if self._plan.refuses_to_wait or not self._plan.skips_locked:
            try:
                return self._delete_all(connection, found, batch, checkpoint)
            except Retryable as error:
                if _number(error.__cause__) != LOCK_WAIT_TIMEOUT:
                    raise
                if not self._plan.skips_locked:
                    return self._pass_by(connection, found, batch, checkpoint, error)
        return self._delete_free(connection, found, batch, checkpoint)

    def _delete_all(self, connection: Connection, found: list[Key], batch: Batch, checkpoint: Checkpoint) -> Batch:
        with self._atomic(connection):
            asked = perf_counter()
            deleted = _take(connection, self._plan.delete(found))
            batch = replace(batch, busy_seconds=perf_counter() - asked)
            self._watch.confirm(connection)
            held = self._count_left(connection, found) if deleted < len(found) else 0
            self._trust()
            batch = replace(batch, selected=len(found), deleted=deleted, held=held)
            checkpoint(connection, batch)
        return batch

    def _pass_by(
        self, connection: Connection, found: list[Key], batch: Batch, checkpoint: Checkpoint, error: Retryable
    ) -> Batch:
        """A row that a session holds, once it stands alone: the caller halves the batch until it does."""
        if len(found) > 1:
            raise error
        batch = replace(batch, selected=1, skipped=1)
        with self._atomic(connection):
            checkpoint(connection, batch)
        return batch

    def _delete_free(self, connection: Connection, found: list[Key], batch: Batch, checkpoint: Checkpoint) -> Batch:
        waiting = replace(self._plan, refuses_to_wait=False)
        with self._atomic(connection):
            asked = perf_counter()
            free = [tuple(row) for row in connection.exec_driver_sql(waiting.lock(found))]
            busy = perf_counter() - asked
            # Before the delete, which may take every row that the table is known by.
            self._watch.confirm(connection)
            asked = perf_counter()
            taken = set(free)
            others = [key for key in found if key not in taken]
            # Asked before the delete, which may free a row that another one has held.
            picky = bool(others and self._plan.free and not self._plan.free_in_delete)
            locked = self._count_left(connection, others, free=True) if picky else 0
            deleted = _take(connection, waiting.delete(free)) if free else 0
            batch = replace(batch, busy_seconds=busy + perf_counter() - asked)
            skipped = self._count_left(connection, others) if others else 0
            held = self._count_left(connection, free) if deleted < len(free) else 0
            if picky:
                # Those that something refers to were not asked for.
                held, skipped = held + max(skipped - locked, 0), min(skipped, locked)
            self._trust()
            batch = replace(batch, selected=len(found), deleted=deleted, held=held, skipped=skipped)
            checkpoint(connection, batch)
        return batch

    def _count_left(self, connection: Connection, found: list[Key], *, free: bool = False) -> int:
        """How many of the keys have expired and are still there; the rest were renewed or are gone."""
        return int(connection.exec_driver_sql(self._plan.count_expired(found, free=free)).scalar_one())


class KeyDeleter(MysqlDeleter):
    """The order of the key, window by window.

    A window holds as many rows as the batch needs by what the last one held, and no more than can be read in time.
    """

    _rows_per_expired = FIRST_ROWS_PER_EXPIRED
    _most = MAX_WINDOW
    _numbers_per_row: float | None = None
    _computed = 0

    def _find(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        plan, walk = self._plan, self._plan.key
        window, started = self._window_for(limit), perf_counter()
        lower = self._lower()
        last, until = self._edge(connection, window)
        rows = connection.exec_driver_sql(
            plan.select(walk.selected, [*lower, *until, plan.condition], walk, f" ORDER BY {walk.order} LIMIT {limit}")
        ).all()
        found = [tuple(row) for row in rows]
        self._learn(window, len(found), limit, perf_counter() - started)
        examined = self._examined(connection, window, last)
        if len(found) == limit:
            return found, Batch(examined=examined, cursor=keys.encode(found[-1]))
        if last is None:
            return found, Batch(examined=max(examined, len(found)), cursor=self._cursor, done=True)
        return found, Batch(examined=examined, cursor=keys.encode(last))

    def _examined(self, connection: Connection, window: int, last: Key | None) -> int:
        """How many rows a window holds; in the last one there may be fewer than it could."""
        if last is not None or not self._plan.counts_rows:
            return window if last is not None else 0
        rows = self._plan.select("1", [*self._lower(), *self._upper()], self._plan.key, f" LIMIT {window}")
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM ({rows}) AS seen").scalar_one())

    def _lower(self) -> list[str]:
        walk = self._plan.key
        if self._cursor is not None:
            return [walk.after(keys.decode(self._cursor, walk))]
        if self._span.start is not None:
            return [walk.after(keys.decode(self._span.start, walk), inclusive=True)]
        return []

    def _upper(self) -> list[str]:
        if self._span.end is None:
            return []
        inclusive = self._span.end.startswith(INCLUSIVE)
        walk = self._plan.key
        return [walk.until(keys.decode(self._span.end.removeprefix(INCLUSIVE), walk), inclusive=inclusive)]

    def _delete_blindly(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch | None:
        plan = self._plan
        if not plan.refuses_to_wait or plan.free or self._rows_per_expired > MANY_ROWS_PER_EXPIRED:
            return None
        window, started = self._window_for(int(BLIND_SHARE * limit)), perf_counter()
        last, until = self._edge(connection, window)
        where = [*self._lower(), *until]
        if not where:
            return None
        examined = self._examined(connection, window, last)
        locked = perf_counter()
        try:
            with self._atomic(connection):
                deleted = _take(connection, plan.delete_range(where, limit))
                busy = perf_counter() - locked
                if deleted:
                    self._watch.confirm(connection)
                self._trust()
                # A full batch may have left rows in the window: the next one begins where this one did.
                full = deleted >= limit
                cursor = keys.encode(last) if last is not None and not full else self._cursor
                done = last is None and not full
                batch = Batch(
                    examined=max(examined, deleted),
                    selected=deleted,
                    deleted=deleted,
                    cursor=cursor,
                    done=done,
                    busy_seconds=busy,
                )
                if deleted:
                    checkpoint(connection, batch)
        except Retryable as error:
            if _number(error.__cause__) != LOCK_WAIT_TIMEOUT:
                raise
            return None
        self._learn(window, deleted, limit, perf_counter() - started)
        return replace(batch, locked_seconds=perf_counter() - locked)

    def _edge(self, connection: Connection, window: int) -> tuple[Key | None, list[str]]:
        """The last key of the window, None where the range ends before; and the condition for rows up to there."""
        walk, upper, first = self._plan.key, self._upper(), self._number(self._cursor or self._span.start)
        end = self._number((self._span.end or "").removeprefix(INCLUSIVE) or None)
        width = self._width(window)
        last: Key | None = None
        if first is None or end is None or width is None:
            row = connection.exec_driver_sql(
                self._plan.select(
                    walk.selected, [*self._lower(), *upper], walk, f" ORDER BY {walk.order} LIMIT 1 OFFSET {window - 1}"
                )
            ).first()
            last = None if row is None else tuple(row)
            self._computed = 0
            self._numbers_per_row = None if first is None or last is None else abs(int(last[0]) - first) / window
        elif abs(end - first) > width:
            self._computed += 1
            last = (first - width if walk.parts[0].descending else first + width,)
        return (None, upper) if last is None else (last, [walk.until(last, inclusive=True)])

    def _width(self, window: int) -> int | None:
        """How many numbers a window of so many rows spans at most; None where that has to be looked up."""
        per_row = self._numbers_per_row
        if per_row is None or per_row > DENSE or self._computed >= COMPUTED_WINDOWS or self._plan.counts_rows:
            return None
        return max(window, int(window * per_row))

    def _number(self, key: str | None) -> int | None:
        """A key that is one whole number."""
        parts = self._plan.key.parts
        if key is None or len(parts) != 1 or parts[0].form is not Form.NUMBER:
            return None
        return int(keys.decode(key, self._plan.key)[0])

    def _window_for(self, limit: int) -> int:
        return max(MIN_WINDOW, min(int(self._rows_per_expired * limit), self._most))

    def _learn(self, window: int, found: int, limit: int, seconds: float) -> None:
        if found >= limit:
            # Full before its end: how much before cannot be told.
            self._rows_per_expired = max(1.0, 0.75 * window / limit)
        else:
            self._rows_per_expired = window / found if found else 2.0 * window / limit
        self._most = max(MIN_WINDOW, min(MAX_WINDOW, int(window * READ_TARGET_SECONDS / max(seconds, 1e-6))))


class IndexDeleter(MysqlDeleter):
    """The order of the expiry, then of the key, with the last of both as lower bound."""

    def __init__(
        self, plan: Plan, walk: Walk, span: KeyRange, cursor: str | None, **how: Callable[..., object]
    ) -> None:
        super().__init__(plan, span, cursor, **how)  # type: ignore[arg-type]
        self._walk = walk

    def _find(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        walk = self._walk
        after = [walk.after(keys.decode(self._cursor, walk))] if self._cursor is not None else []
        rows = connection.exec_driver_sql(
            self._plan.select(
                walk.selected, [self._plan.condition, *after], walk, f" ORDER BY {walk.order} LIMIT {limit}"
            )
        ).all()
        cursor = keys.encode(tuple(rows[-1])) if rows else self._cursor
        width = len(self._plan.key.parts)
        return [tuple(row)[-width:] for row in rows], Batch(examined=len(rows), cursor=cursor, done=len(rows) < limit)


def _take(connection: Connection, statements: Sequence[str]) -> int:
    """Executes what an action says; returns the rows that the last statement has deleted."""
    deleted = 0
    for statement in statements:
        deleted = connection.exec_driver_sql(statement).rowcount
    return deleted


def _number(cause: BaseException | None) -> int | None:
    """The server's error number."""
    return int(cause.orig.args[0]) if isinstance(cause, DBAPIError) and cause.orig is not None else None


def _thread_id(connection: Connection) -> int:
    return int(connection.connection.driver_connection.thread_id())  # type: ignore[union-attr]
