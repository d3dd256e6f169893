"""Deleting on MariaDB and MySQL: look without a lock, then delete what was found in one short transaction.

One look reads at most a window of rows, however few of them have expired: the key at the window's end is found first
(computed, where keys are numbers with few gaps), then the expired keys up to it, both by plain reads that lock nothing.
The rows are deleted by key, with the condition repeated, by a statement that waits for no lock. If a session holds one
of them, the free ones are picked with SKIP LOCKED and only those deleted. Where a statement cannot refuse to wait
(MySQL), they are always picked that way; keys that are whole numbers stay on the server all the while, unless a session
holds one of the rows. TiDB takes SKIP LOCKED and locks nothing: there they are locked with NOWAIT,
and a list that holds a row of another session's is halved until the row stands alone.

Where much has expired and a statement can refuse to wait, it deletes the expired rows of the window by itself, which
saves sending the keys back and forth. A row in the window that a session holds sends it back to the long way. On TiDB
the rows of the window are locked by a statement of its own before, unless no other session can hold one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.action import Action, Delete, Rows, moved
from lapse.engines.base import Batch, Checkpoint
from lapse.engines.keyset import Atomic, Connect, KeysetDeleter
from lapse.engines.mysql import kept, keys
from lapse.engines.mysql.archive import Confirm
from lapse.engines.mysql.armed import Changed
from lapse.engines.mysql.keys import INCLUSIVE, Form, Key, Walk
from lapse.engines.mysql.ledger_keys import Noter
from lapse.engines.mysql.replicas import Reader
from lapse.errors import DatabaseError, Interrupted, LapseError, Retryable
from lapse.model.job import KeyRange
from lapse.model.ledger_keys import Noted
from lapse.model.table import Table

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
MAX_KEPT = 20_000
"""Of those that stay on the server and are looked up one by one."""
MAX_HALVINGS = 100
"""Statements that meet a row of another session's, in one batch; what is left then is skipped with it."""
WARY_BATCHES = 16
"""After one that had to wait for a lock, as many lock their rows first."""
WAITED_SECONDS = 0.5
"""A statement that has taken as long, which is more than a batch should, may have waited for a lock."""
LOCK_WAIT_TIMEOUT = 1205
HELD_BY_ANOTHER = 3572
"""What NOWAIT is answered."""
NOT_BY_KEY = 1175
"""The server would have read the whole table to find the keys."""

Kill = Callable[[int], None]


class TooLarge(LapseError):
    """Rows that are too large for this process to hold, or for the server to take back in one statement."""


class Packer(Protocol):
    """Takes the rows that a batch deletes out of the server's answer, and packs them into the outbox of the table."""

    def take(self, connection: Connection, delete: str) -> int:
        """Executes a DELETE, in the caller's transaction; returns how many rows are in the outbox instead. Raises
        TooLarge."""


class Watch(Protocol):
    """Sees to it that the table of a job is what it was armed as."""

    def confirm(self, connection: Connection) -> None:
        """In the transaction of a batch, after its first statement. Raises Changed, or Blocked."""

    def renew(self, connection: Connection) -> str:
        """In the same transaction, after rows were deleted: what the table is armed as from now on."""

    def look_again(self, connection: Connection, table: Table) -> None:
        """Outside of a batch, after Changed. Raises Blocked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSql:
    """All the SQL of one task. `free` is true for rows that no foreign key holds; empty where none can."""

    source: str
    key: Walk
    condition: str
    of_the_row: str
    """The part of the condition that the row alone decides."""
    comment: str
    action: Action
    """What is done with the rows where there is no `packer`, which takes those that are deleted."""
    packer: Packer | None = None
    surplus: str = ""
    """True for rows that `ttl_keep_last` does not keep; it locks those that it does. Empty where a policy has none."""
    free: str = ""
    free_in_delete: bool = True
    refuses_to_wait: bool = True
    skips_locked: bool = True
    """Does the storage engine know SKIP LOCKED? MyRocks does not, and waits a second for each lock."""
    locks_first: bool = False
    """Does a statement with NOWAIT lock the rows that the next one deletes? On TiDB only that refuses to wait. It is
    left out where no other session can hold one of them."""
    rows_per_row: float = 1.0
    """Rows that go with each row deleted, itself included: foreign keys with CASCADE."""
    pinned: str = ""
    """What keeps a DELETE to the key, for the optimizer. Without it MySQL reads a small table whole, and waits for each
    row on the way that another session holds."""
    keeps_keys: bool = False
    """Do keys stay on the server, in a variable of the session?"""
    tells_deleted: bool = False
    """Can a DELETE tell which rows it has deleted? MariaDB's can."""
    counts_rows: bool = False
    """Must it be known how many rows a window holds? A limit on reading counts rows, not the gaps between them."""

    def select(self, what: str, where: Sequence[str], walk: Walk, suffix: str = "") -> str:
        conditions = f" WHERE {' AND '.join(where)}" if where else ""
        return f"{self.comment} SELECT {what} FROM {self.source}{walk.hint()}{conditions}{suffix}"

    def delete(self, found: Sequence[Key]) -> tuple[str, ...]:
        """Only the key can lead to the rows: `IS TRUE` keeps the server from walking along an index on the expiry.

        What reads other rows of the table was asked by `lock`, which holds them: MySQL cannot ask it in a DELETE."""
        return self._delete(self.key.equal(found))

    def delete_kept(self) -> tuple[str, ...]:
        """Those that `lock_kept` has locked, if no other session held one."""
        return self._delete(kept.bound(self.key), kept.FIRST)

    def _delete(self, bound: str, order: str = "") -> tuple[str, ...]:
        rows = Rows(
            table=self.source,
            condition=f"({self.of_the_row}) IS TRUE",
            bound=bound,
            extra=self.free if self.free_in_delete else "",
            hint=f"/*+ {self.pinned}{order} */ " if self.pinned else "",
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
        """A copy to an archive that skips locked rows may wait for one thing: the archive's numbers, which MariaDB
        gives to one statement at a time. Refused, the copies of two tasks would undo each other."""
        no_wait = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR " if self.refuses_to_wait else ""
        action = self.action if self.packer is None else Delete()
        *copies, last = action.statements(rows)
        before = "" if self.skips_locked else no_wait
        return (*(f"{self.comment} {before}{copy}" for copy in copies), f"{self.comment} {no_wait}{last}")

    def lock(self, found: Sequence[Key]) -> str:
        """Those of the keys that no other session holds, locked."""
        where = [self.key.equal(found), f"({self.of_the_row}) IS TRUE"]
        if self.surplus:
            where.append(f"{self.surplus} IS TRUE")
        if self.free and not self.free_in_delete:
            where.append(self.free)
        how = "NOWAIT" if self.locks_first else "SKIP LOCKED"
        return self.select(self.key.selected, where, self.key, f" FOR UPDATE {how}")

    def keep(self, where: Sequence[str], limit: int) -> str:
        """Finds what `select` of the keys would, and sends none of them."""
        suffix = f" ORDER BY {self.key.order} LIMIT {limit}"
        found = self.select(self.key.selected, [*where, self.condition], self.key, suffix)
        return f"{self.comment} {kept.keep(self.key, found)}"

    def lock_kept(self) -> str:
        """How many keys `keep` remembers, the last of them, and how many are of expired rows that no other session
        holds, locked."""
        where = [kept.bound(self.key), f"({self.of_the_row}) IS TRUE"]
        locked = self.select("1", where, self.key, " FOR UPDATE SKIP LOCKED")
        return f"{self.comment} SELECT {kept.TOLD}, count(*) FROM ({locked}) AS locked"

    def count_kept(self) -> str:
        return self.select("count(*)", [kept.bound(self.key), f"({self.condition}) IS TRUE"], self.key)

    def lock_range(self, where: Sequence[str], limit: int) -> str:
        """What `delete_range` with the same arguments would delete, locked. None of the rows is sent."""
        rows = [*where, f"({self.condition}) IS TRUE"]
        suffix = f" ORDER BY {self.key.order} LIMIT {limit} FOR UPDATE NOWAIT"
        return f"{self.comment} SELECT count(*) FROM ({self.select('1', rows, self.key, suffix)}) AS locked"

    def count_expired(self, found: Sequence[Key], *, free: bool) -> str:
        """`free` counts those alone that nothing refers to."""
        where = [self.key.equal(found), f"({self.condition}) IS TRUE", *([self.free] if free else [])]
        return self.select("count(*)", where, self.key)


class Fewer(Retryable):
    """Rows of a batch were left, and it has to be known which."""


class TooMany(Retryable):
    """What a statement without a limit would delete."""


class HeldByAnother(Retryable):
    """A session holds a row of the batch, or has renewed it: which one it is has to be looked at."""


class MysqlDeleter(KeysetDeleter):
    """`_find` says where the paths differ; the rest is the same for all."""

    def __init__(
        self,
        plan: TaskSql,
        span: KeyRange,
        cursor: str | None,
        *,
        connect: Connect,
        connect_freely: Connect,
        atomic: Atomic,
        kill: Kill,
        watch: Watch,
        look_again: Callable[[], None],
        confirm: Confirm | None = None,
        noter: Noter | None = None,
        reader: Reader | None = None,
        quiet: Callable[[Connection], bool] | None = None,
    ) -> None:
        """`connect` gives sessions that delete by key only, `connect_freely` others, where that is refused. `confirm`
        looks at the archive table of a batch that has moved rows there, `noter` hashes the keys of deleted rows;
        `reader` looks for rows on a replica. `quiet`: can no other session hold a row of the table now?"""
        super().__init__(cursor, connect, atomic)
        self._plan = plan
        self._span = span
        self._connect_freely = connect_freely
        self._kill = kill
        self._watch = watch
        self._look_again = look_again
        self._confirm = confirm
        self._noter = noter
        self._reader = reader
        self._quiet = quiet
        self._wary = 0
        self._running: int | None = None
        self._was_killed = False
        self._guard = Lock()

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        try:
            return self._packed_step(limit, checkpoint)
        except Changed:
            self._look_again()
            return self._packed_step(limit, checkpoint)

    def _packed_step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        try:
            return self._checked_step(limit, checkpoint)
        except TooLarge:
            # Undone. There may be more rows like these: the server copies them, and those of the rest of the task.
            self._plan = replace(self._plan, packer=None)
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
                reads_elsewhere = self._reader is not None and self._reader.has_replica()
                quick = None if reads_elsewhere else self._delete_blindly(connection, limit, checkpoint)
                if quick is not None:
                    return quick
                started = perf_counter()
                found, batch = self._look_for(connection, min(limit, MAX_KEYS))
                self._trust()
                batch = replace(batch, read_seconds=perf_counter() - started)
                if not found:
                    return batch
                started = perf_counter()
                batch = self._delete(connection, found, batch, checkpoint)
                return replace(batch, locked_seconds=perf_counter() - started)
            finally:
                self._set_running(None)

    def _look_for(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        if self._reader is None:
            return self._find(connection, limit)
        return self._reader.ask(connection, lambda session: self._find(session, limit))

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
        if not self._plan.surplus and (self._plan.refuses_to_wait or not self._plan.skips_locked):
            try:
                return self._delete_all(connection, found, batch, checkpoint)
            except Fewer:
                if not self._plan.skips_locked:
                    raise
            except Retryable as error:
                if _number(error.__cause__) != LOCK_WAIT_TIMEOUT:
                    raise
                if not self._plan.skips_locked:
                    return self._pass_by(connection, found, batch, checkpoint, error)
        return self._delete_free(connection, found, batch, checkpoint)

    def _delete_all(self, connection: Connection, found: list[Key], batch: Batch, checkpoint: Checkpoint) -> Batch:
        with self._atomic(connection):
            asked = perf_counter()
            deleted = self._take(connection, self._plan.delete(found))
            batch = replace(batch, busy_seconds=perf_counter() - asked)
            self._watch.confirm(connection)
            self._confirm_archive(connection, deleted)
            noted = self._note(found, deleted)
            held = self._count_left(connection, found) if deleted < len(found) else 0
            self._trust()
            armed = self._renewed(connection, deleted)
            batch = replace(batch, selected=len(found), deleted=deleted, held=held, noted=noted, armed=armed)
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
        # Where keys are recorded, rows that something refers to are sorted out before, so that what is locked goes.
        in_delete = self._plan.free_in_delete and self._noter is None
        waiting = replace(self._plan, refuses_to_wait=False, free_in_delete=in_delete)
        with self._atomic(connection):
            asked = perf_counter()
            free = self._lock(connection, waiting, found)
            busy = perf_counter() - asked
            # Before the delete, which may take every row that the table is known by.
            self._watch.confirm(connection)
            asked = perf_counter()
            taken = set(free)
            others = [key for key in found if key not in taken]
            # Asked before the delete, which may free a row that another one has held.
            picky = bool(others and self._plan.free and not in_delete)
            locked = self._count_left(connection, others, free=True) if picky else 0
            deleted = self._take(connection, waiting.delete(free)) if free else 0
            batch = replace(batch, busy_seconds=busy + perf_counter() - asked)
            self._confirm_archive(connection, deleted)
            noted = self._note(free, deleted)
            skipped = self._count_left(connection, others) if others else 0
            held = self._count_left(connection, free) if deleted < len(free) else 0
            if picky:
                # Those that something refers to were not asked for.
                held, skipped = held + max(skipped - locked, 0), min(skipped, locked)
            self._trust()
            armed = self._renewed(connection, deleted)
            batch = replace(
                batch, selected=len(found), deleted=deleted, held=held, skipped=skipped, noted=noted, armed=armed
            )
            checkpoint(connection, batch)
        return batch

    def _note(self, found: list[Key], deleted: int) -> Noted | None:
        """The keys of the rows that are gone: all of these, or it cannot be told which. Raises Fewer."""
        if self._noter is None or not deleted:
            return None
        if deleted < len(found):
            raise Fewer(f"{deleted} of {len(found)} rows could be deleted, and their keys are to be recorded: undone")
        return self._noter.noted(found)

    def _take(self, connection: Connection, statements: Sequence[str], *, most: int | None = None) -> int:
        """Executes what an action says; returns the rows that the last statement has deleted."""
        if self._plan.packer is not None:
            (delete,) = statements
            return self._plan.packer.take(connection, delete)
        counts: list[int] = []
        for statement in statements:
            if counts and most is not None and counts[0] >= most:
                # There may be more of them, which the statement that deletes, having no limit, would find.
                raise TooMany("a window holds more rows than a batch")
            counts.append(connection.exec_driver_sql(statement).rowcount)
        return moved(counts)

    def _take_noting(
        self, connection: Connection, statements: Sequence[str], noter: Noter, *, most: int
    ) -> tuple[int, Noted]:
        """The statement that deletes tells which rows it has deleted."""
        *before, last = statements
        counts = [connection.exec_driver_sql(each).rowcount for each in before]
        if counts and counts[0] >= most:
            raise TooMany("a window holds more rows than a batch")
        # As the driver has them: a row of SQLAlchemy's for each costs as much as its hash.
        with closing(connection.exec_driver_sql(f"{last} RETURNING {self._plan.key.selected}")) as told:
            found = told.cursor.fetchall()
        return moved([*counts, len(found)]), noter.noted(found)

    def _renewed(self, connection: Connection, deleted: int) -> str | None:
        return (self._watch.renew(connection) or None) if deleted else None

    def _confirm_archive(self, connection: Connection, rows: int) -> None:
        """Takes as long for one row as for many, so it is not counted as work."""
        if self._confirm is not None and rows:
            self._confirm(connection)

    def _lock(self, connection: Connection, plan: TaskSql, found: list[Key]) -> list[Key]:
        """Those of the keys that no other session holds, locked."""
        waiting, free, halvings = [found], list[Key](), 0
        while waiting and halvings < MAX_HALVINGS:
            some = waiting.pop()
            try:
                free += [tuple(row) for row in connection.exec_driver_sql(plan.lock(some))]
            except DBAPIError as error:
                if _number(error) != HELD_BY_ANOTHER:
                    raise
                halvings += 1
                if len(some) > 1:
                    waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
        return free

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
        return found, self._reached(examined, len(found), found[-1] if len(found) == limit else None, last)

    def _reached(self, examined: int, found: int, full: Key | None, last: Key | None) -> Batch:
        """How far a look came: to the last key of a `full` batch, to the `last` of the window, or to the end."""
        if full is not None:
            return Batch(examined=examined, cursor=keys.encode(full))
        if last is None:
            return Batch(examined=max(examined, found), cursor=self._cursor, done=True)
        return Batch(examined=examined, cursor=keys.encode(last))

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
        if plan.keeps_keys and self._noter is None:
            return self._delete_kept(connection, min(limit, MAX_KEPT), checkpoint)
        can_refuse = plan.refuses_to_wait or plan.locks_first
        if self._noter is not None and (plan.packer is not None or not plan.tells_deleted):
            return None
        if not can_refuse or plan.free or plan.surplus or self._rows_per_expired > MANY_ROWS_PER_EXPIRED:
            return None
        window, started = self._window_for(int(BLIND_SHARE * limit)), perf_counter()
        last, until = self._edge(connection, window)
        where = [*self._lower(), *until]
        if not where:
            # There is no row at all.
            return Batch(cursor=self._cursor, done=True)
        examined = self._examined(connection, window, last)
        locked = perf_counter()
        try:
            with self._atomic(connection):
                if self._must_lock_first(connection):
                    connection.exec_driver_sql(plan.lock_range(where, limit)).scalar_one()
                noted, statements = None, plan.delete_range(where, limit)
                if self._noter is None:
                    deleted = self._take(connection, statements, most=limit)
                else:
                    deleted, noted = self._take_noting(connection, statements, self._noter, most=limit)
                busy = perf_counter() - locked
                if deleted:
                    self._watch.confirm(connection)
                    self._confirm_archive(connection, deleted)
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
                    noted=noted,
                    armed=self._renewed(connection, deleted),
                )
                if deleted:
                    checkpoint(connection, batch)
        except TooMany:
            return None
        except Retryable as error:
            if _number(error.__cause__) not in (LOCK_WAIT_TIMEOUT, HELD_BY_ANOTHER):
                raise
            if _number(error.__cause__) == LOCK_WAIT_TIMEOUT:
                self._wary = WARY_BATCHES
            return None
        if busy > WAITED_SECONDS:
            self._wary = WARY_BATCHES
        self._learn(window, deleted, limit, perf_counter() - started)
        return replace(batch, locked_seconds=perf_counter() - locked)

    def _must_lock_first(self, connection: Connection) -> bool:
        """Would the DELETE wait for a row that another session holds? One that has come since it was asked is waited
        for as long as the shortest that the server knows; after that it is not asked for some batches."""
        if not self._plan.locks_first:
            return False
        self._wary, wary = max(0, self._wary - 1), self._wary
        return bool(wary) or self._quiet is None or not self._quiet(connection)

    def _delete_kept(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch | None:
        plan = self._plan
        window, started = self._window_for(limit), perf_counter()
        last, until = self._edge(connection, window)
        connection.exec_driver_sql(plan.keep([*self._lower(), *until], limit))
        read_seconds = perf_counter() - started
        examined = self._examined(connection, window, last)
        begun = perf_counter()
        try:
            with self._atomic(connection):
                asked = perf_counter()
                found, furthest, free = map(int, connection.exec_driver_sql(plan.lock_kept()).one())
                busy = perf_counter() - asked
                self._trust()
                self._learn(window, found, limit, read_seconds)
                batch = self._reached(examined, found, (furthest,) if found == limit else None, last)
                batch = replace(batch, read_seconds=read_seconds, busy_seconds=busy)
                if not found:
                    return batch
                if free < found:
                    raise HeldByAnother("a row of the batch is not free")
                batch = self._take_kept(connection, found, batch)
                checkpoint(connection, batch)
        except HeldByAnother:
            return None
        return replace(batch, locked_seconds=perf_counter() - begun)

    def _take_kept(self, connection: Connection, found: int, batch: Batch) -> Batch:
        plan = self._plan
        # Before the delete, which may take every row that the table is known by.
        self._watch.confirm(connection)
        asked = perf_counter()
        deleted = self._take(connection, plan.delete_kept())
        busy = batch.busy_seconds + perf_counter() - asked
        self._confirm_archive(connection, deleted)
        held = int(connection.exec_driver_sql(plan.count_kept()).scalar_one()) if deleted < found else 0
        self._trust()
        armed = self._renewed(connection, deleted)
        return replace(batch, selected=found, deleted=deleted, held=held, busy_seconds=busy, armed=armed)

    def _edge(self, connection: Connection, window: int) -> tuple[Key | None, list[str]]:
        """The last key of the window, None where the range ends before; and the condition for rows up to there."""
        walk, upper, first = self._plan.key, self._upper(), self._number(self._cursor or self._span.start)
        end = self._number((self._span.end or "").removeprefix(INCLUSIVE) or None)
        width = self._width(window)
        last: Key | None = None
        if self._is_endless:
            last, found = self._end(connection, window)
            if last is None:
                return None, [walk.until(found, inclusive=True)] if found is not None else []
        elif first is None and end is not None and self._is_within(connection, window, end):
            return None, upper
        elif first is None or end is None or width is None:
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

    def _is_within(self, connection: Connection, window: int, end: int) -> bool:
        """From the first row of the table on, are there no more numbers than a window may have rows?"""
        walk = self._plan.key
        found = self._plan.select(walk.selected, self._upper(), walk, f" ORDER BY {walk.order} LIMIT 1")
        row = connection.exec_driver_sql(found).first()
        return row is not None and abs(end - int(row[0])) < window

    @property
    def _is_endless(self) -> bool:
        """Is this the first batch of a whole table, whose end nothing has looked for?"""
        return self._cursor is None and self._span == KeyRange()

    def _end(self, connection: Connection, window: int) -> tuple[Key | None, Key | None]:
        """The last key of the window, None where the table ends before; and the last key of the table, if it has one.
        In one statement, as nearly all of these tables are small."""
        plan, walk = self._plan, self._plan.key
        parts = (
            plan.select(f"{is_window}, {walk.selected}", [], walk, suffix)
            for is_window, suffix in (
                (1, f" ORDER BY {walk.order} LIMIT 1 OFFSET {window - 1}"),
                (0, f" ORDER BY {walk.backwards} LIMIT 1"),
            )
        )
        rows = connection.exec_driver_sql(" UNION ALL ".join(f"({part})" for part in parts))
        found = {bool(row[0]): tuple(row)[1:] for row in rows}
        return found.get(True), found.get(False)

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
        # At most half as much the next time: one look that met a busy moment says little of the next.
        change = max(0.5, READ_TARGET_SECONDS / max(seconds, 1e-6))
        self._most = max(MIN_WINDOW, min(MAX_WINDOW, int(window * change)))


class IndexDeleter(MysqlDeleter):
    """The order of the expiry, then of the key, with the last of both as lower bound."""

    def __init__(
        self, plan: TaskSql, walk: Walk, span: KeyRange, cursor: str | None, **how: Callable[..., object]
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


def _number(cause: BaseException | None) -> int | None:
    """The server's error number."""
    return int(cause.orig.args[0]) if isinstance(cause, DBAPIError) and cause.orig is not None else None


def _thread_id(connection: Connection) -> int:
    return int(connection.connection.driver_connection.thread_id())  # type: ignore[union-attr]
