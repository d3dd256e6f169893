"""Deleting in SQLite: look without a lock, then delete the rows found in one short write transaction.

A rowid table is read in windows of row ids, whose width follows the time one window takes; a table without row ids in
pages of its key; the index path in pages of (expiry, key). What was found is deleted by key with the condition
repeated, so the write lock is held for the deletion alone and a row renewed in between survives.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from sqlalchemy import Connection

from lapse.engines.action import Action, Rows, moved
from lapse.engines.base import Batch, Checkpoint
from lapse.engines.keyset import Atomic, Connect, Key, KeysetDeleter
from lapse.engines.sqlite import ledger_keys
from lapse.engines.sqlite.condition import Condition
from lapse.engines.sqlite.log import LogMover
from lapse.engines.sqlite.names import quote, row_address
from lapse.errors import Drift, Retryable
from lapse.model.job import KeyRange
from lapse.model.ledger_keys import Secret
from lapse.model.table import Table

READ_TARGET_SECONDS = 0.02
FIRST_WINDOW = 2_000
MAX_WINDOW = 1 << 40
SURPLUS = 1.25
"""Expired rows that a window should hold, in batches."""
PAGE_FACTOR = 20
"""Rows of a key page per row of the batch: how far one look reaches when little has expired."""
MAX_PAGE = 20_000
INDEX_PAGE = 1_000
"""Index entries looked at together: where times are text, some beyond the cutoff have to be passed over."""
MOST_LOOKS = 5
"""Times that a changed schema is looked at before the batch is put off."""
INCLUSIVE = "="
"""Before the end of a key range: the last key there is belongs to the range, having no successor to name."""


class Gone(NamedTuple):
    """How many rows a batch has deleted, and their primary keys, where they are to be recorded."""

    rows: int
    keys: Sequence[Key] = ()


class _Fewer(Exception):
    """Rows of a batch were left."""


class SchemaChanged(Retryable):
    """What was found may not be what was asked for: ask again."""


Look = Callable[[Connection], tuple[Table, Condition, Action]]
"""The table as it is now, the condition, and what happens to its rows; raises Blocked when it is not the table that was
armed."""


class SqliteDeleter(KeysetDeleter):
    """`_page` says where the paths differ; the rest is the same for all.

    SQLite counts the changes of its schema. While that number is the one at the last look, the table is the one that
    was looked at: it is read again inside the transaction that deletes, and after a page with nothing to delete.
    """

    _table: Table
    _condition: Condition
    _action: Action

    def __init__(
        self,
        look: Look,
        span: KeyRange,
        cursor: str | None,
        connect: Connect,
        atomic: Atomic,
        log: LogMover | None,
        secret: Secret | None = None,
    ) -> None:
        super().__init__(cursor, connect, atomic)
        self._look = look
        self._version: int | None = None
        self._span = span
        self._running: Connection | None = None
        self._log = log
        self._secret = secret
        self._key_is_address = False
        self._each_is_told = False

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        if self._log is not None:
            self._log.refuse_to_grow()
        with self._connect() as connection:
            self._running = connection
            try:
                batch = self._step(connection, limit, checkpoint)
            finally:
                self._running = None
        if self._log is not None:
            self._log.wrote(batch.deleted * (1 + len(self._table.indexes)))
            if batch.done:
                self._log.move_all()
        self._cursor = batch.cursor
        return batch

    def _step(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        for _ in range(MOST_LOOKS):
            with suppress(SchemaChanged):
                started = perf_counter()
                keys, found = self._find(connection, limit)
                found = replace(found, read_seconds=perf_counter() - started)
                return self._delete_noting(connection, keys, found, checkpoint) if keys else found
        raise Retryable("the schema of the database keeps changing")

    def _find(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        if self._version is None:
            version = _schema_version(connection)
            self._table, self._condition, self._action = self._look(connection)
            self._key_is_address = self._secret is not None and ledger_keys.is_address(connection, self._table)
            self._version = version
        try:
            keys, found = self._page(connection, limit)
        except Drift:
            self._refuse_changed(connection)
            raise
        if not keys:
            # Where there are some, the transaction that deletes them asks.
            self._refuse_changed(connection)
        return keys, found

    def _refuse_changed(self, connection: Connection) -> None:
        if _schema_version(connection) != self._version:
            self._version = None
            raise SchemaChanged("the schema was changed")

    @abstractmethod
    def _page(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        """Keys of at most `limit` expired rows after the cursor; the batch carries examined, cursor and done."""

    def _delete_noting(self, connection: Connection, keys: list[Key], found: Batch, checkpoint: Checkpoint) -> Batch:
        """Where all go, it is known which; where some are left, the statement that deletes has to tell."""
        try:
            return self._delete_found(connection, keys, found, checkpoint)
        except _Fewer:
            self._each_is_told = True
        try:
            return self._delete_found(connection, keys, found, checkpoint)
        finally:
            self._each_is_told = False

    def _delete_found(self, connection: Connection, keys: list[Key], found: Batch, checkpoint: Checkpoint) -> Batch:
        started = perf_counter()
        with self._atomic(connection):
            self._refuse_changed(connection)
            gone = self._delete(connection, keys)
            held = self._count_left(connection, keys) if gone.rows < len(keys) else 0
            noted = None if self._secret is None else ledger_keys.noted(self._secret, gone.keys)
            batch = replace(found, selected=len(keys), deleted=gone.rows, held=held, noted=noted)
            checkpoint(connection, batch)
        seconds = perf_counter() - started
        return replace(batch, locked_seconds=seconds, busy_seconds=seconds)

    @property
    def _name(self) -> str:
        return quote(self._table.name.name)

    def interrupt(self) -> None:
        running = self._running
        if running is not None:
            running.connection.driver_connection.interrupt()  # type: ignore[union-attr]

    @abstractmethod
    def _delete(self, connection: Connection, keys: list[Key]) -> Gone:
        """Delete those of the keys that have still expired and that nothing refers to."""

    @abstractmethod
    def _count_left(self, connection: Connection, keys: list[Key]) -> int:
        """How many of the keys have expired and are still there: something refers to them. The rest were renewed."""

    def _take(self, connection: Connection, bound: str, parameters: Any) -> int:
        return moved([_count(connection, each, parameters) for each in self._statements(bound)])

    def _take_noting(self, connection: Connection, bound: str, parameters: Any) -> Gone:
        """The statement that deletes tells which rows it has deleted."""
        *before, last = self._statements(bound)
        counts = [_count(connection, each, parameters) for each in before]
        columns = ", ".join(quote(column) for column in self._table.primary_key)
        # As the driver has them: a row of SQLAlchemy's for each costs as much as its hash.
        with closing(connection.exec_driver_sql(f"{last} RETURNING {columns}", parameters)) as told:
            keys = told.cursor.fetchall()
        return Gone(moved([*counts, len(keys)]), keys)

    @staticmethod
    def _all_of(keys: list[Key], deleted: int) -> Gone:
        if deleted < len(keys):
            raise _Fewer
        return Gone(deleted, keys)

    def _statements(self, bound: str) -> tuple[str, ...]:
        rows = Rows(table=self._name, condition=self._condition.sql, bound=bound, extra=_unreferenced(self._table))
        return self._action.statements(rows)

    def _count_sql(self, bound: str) -> str:
        return f"SELECT count(*) FROM {self._name} WHERE {bound} AND {self._condition.sql}"


class _RowidKeys(SqliteDeleter):
    """Keys are row ids, handed over as one JSON array."""

    @property
    def _address(self) -> str:
        return row_address(self._table)

    @property
    def _bound(self) -> str:
        return f"{self._address} IN (SELECT value FROM json_each(?))"

    def _delete(self, connection: Connection, keys: list[Key]) -> Gone:
        rowids = json.dumps([key[-1] for key in keys])
        if self._secret is None:
            return Gone(self._take(connection, self._bound, (rowids,)))
        if self._each_is_told or not self._key_is_address:
            return self._take_noting(connection, self._bound, (rowids,))
        return self._all_of([(key[-1],) for key in keys], self._take(connection, self._bound, (rowids,)))

    def _count_left(self, connection: Connection, keys: list[Key]) -> int:
        rowids = json.dumps([key[-1] for key in keys])
        return int(connection.exec_driver_sql(self._count_sql(self._bound), (rowids,)).scalar_one())


class RowidDeleter(_RowidKeys):
    """Physical order: windows of row ids."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._window = FIRST_WINDOW

    def _page(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        end = int(self._span.end) if self._span.end is not None else None
        first = self._next_row(connection, end)
        if first is None:
            return [], Batch(cursor=self._cursor, done=True)
        last = first + self._window - 1
        if end is not None:
            last = min(last, end - 1)
        started = perf_counter()
        row = connection.exec_driver_sql(
            f"SELECT count(*), json_group_array({self._address}) FILTER (WHERE {self._condition.sql})"
            f" FROM {self._name} NOT INDEXED WHERE {self._address} BETWEEN ? AND ?",
            (first, last),
        ).one()
        expired = sorted(json.loads(row[1]))
        self._fit_window(perf_counter() - started, len(expired), limit)
        if len(expired) > limit:
            last = expired[limit - 1]
        keys: list[Key] = [(rowid,) for rowid in expired[:limit]]
        done = end is not None and last >= end - 1
        return keys, Batch(examined=int(row[0]), cursor=str(last), done=done)

    def _next_row(self, connection: Connection, end: int | None) -> int | None:
        """The first row at or after the cursor: gaps in the row ids cost nothing."""
        start = int(self._cursor) + 1 if self._cursor is not None else int(self._span.start or -(2**63))
        found = connection.exec_driver_sql(
            f"SELECT min({self._address}) FROM {self._name} WHERE {self._address} >= ?", (start,)
        ).scalar()
        return int(found) if found is not None and (end is None or found < end) else None

    def _fit_window(self, seconds: float, expired: int, limit: int) -> None:
        """A little more than a batch, so that a batch is full and may be found too small; less if reading is slow."""
        fitting = int(self._window * limit * SURPLUS / max(expired, 1))
        if seconds > 2 * READ_TARGET_SECONDS:
            fitting = min(fitting, self._window // 2)
        elif seconds > READ_TARGET_SECONDS / 2:
            fitting = min(fitting, self._window)
        self._window = max(min(fitting, self._window * 2, MAX_WINDOW), limit)


class IndexDeleter(_RowidKeys):
    """Expiry order by an index, with the last (expiry, row id) as lower bound. Keys are (expiry, row id)."""

    def __init__(self, *args: Any, index: str) -> None:
        super().__init__(*args)
        self._index = index

    def _page(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        assert self._condition.column is not None
        column = quote(self._condition.column)
        after, parameters = "", ()
        if self._cursor is not None:
            after, parameters = f" AND ({column}, {self._address}) > (?, ?)", tuple(json.loads(self._cursor))
        rows = connection.exec_driver_sql(
            f"SELECT {column}, {self._address}, {self._condition.sql} FROM {self._name} INDEXED BY {quote(self._index)}"
            f" WHERE {self._condition.bound} AND {column} IS NOT NULL{after}"
            f" ORDER BY {column}, {self._address} LIMIT {max(limit, INDEX_PAGE)}",
            parameters,
        ).all()
        keys: list[Key] = [(row[0], row[1]) for row in rows if row[2]]
        done = len(rows) < max(limit, INDEX_PAGE) and len(keys) <= limit
        last = keys[limit - 1] if len(keys) > limit else (rows[-1][0], rows[-1][1]) if rows else None
        cursor = json.dumps(last) if last is not None else self._cursor
        return keys[:limit], Batch(examined=len(rows), cursor=cursor, done=done)


class KeyDeleter(SqliteDeleter):
    """Tables without row ids: pages of the primary key, compared as a row value."""

    def _page(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        columns = ", ".join(quote(column) for column in self._table.key)
        page = min(limit * PAGE_FACTOR, MAX_PAGE)
        bounds, parameters = self._bounds()
        rows = connection.exec_driver_sql(
            f"SELECT {columns}, {self._condition.sql} FROM {self._name} NOT INDEXED{bounds}"
            f" ORDER BY {columns} LIMIT {page}",
            parameters,
        ).all()
        expired = [tuple(row)[:-1] for row in rows if row[-1]]
        last = tuple(rows[-1])[:-1] if rows else None
        done = len(rows) < page
        if len(expired) > limit:
            last, done = expired[limit - 1], False
        cursor = encode_key(last) if last is not None else self._cursor
        return expired[:limit], Batch(examined=len(rows), cursor=cursor, done=done)

    def _bounds(self) -> tuple[str, tuple[Any, ...]]:
        columns = ", ".join(quote(column) for column in self._table.key)
        marks = ", ".join("?" for _ in self._table.key)
        parts: list[str] = []
        parameters: list[Any] = []
        lower = self._cursor or self._span.start
        if lower is not None:
            parts.append(f"({columns}) {'>' if self._cursor else '>='} ({marks})")
            parameters += decode_key(lower)
        if self._span.end is not None:
            inclusive = self._span.end.startswith(INCLUSIVE)
            parts.append(f"({columns}) {'<=' if inclusive else '<'} ({marks})")
            parameters += decode_key(self._span.end.removeprefix(INCLUSIVE))
        return (f" WHERE {' AND '.join(parts)}" if parts else ""), tuple(parameters)

    @property
    def _bound(self) -> str:
        return " AND ".join(f"{quote(column)} = ?" for column in self._table.key)

    def _delete(self, connection: Connection, keys: list[Key]) -> Gone:
        if self._secret is None:
            return Gone(self._take(connection, self._bound, keys))
        if self._each_is_told:
            each = [self._take_noting(connection, self._bound, key) for key in keys]
            return Gone(sum(one.rows for one in each), [key for one in each for key in one.keys])
        return self._all_of(keys, self._take(connection, self._bound, keys))

    def _count_left(self, connection: Connection, keys: list[Key]) -> int:
        sql = self._count_sql(self._bound)
        return sum(int(connection.exec_driver_sql(sql, key).scalar_one()) for key in keys)


def _count(connection: Connection, statement: str, parameters: Any) -> int:
    return int(connection.exec_driver_sql(statement, parameters).rowcount)


def _schema_version(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA schema_version").scalar_one())


def encode_key(key: Sequence[Any]) -> str:
    return json.dumps([_encoded(part) for part in key])


def decode_key(text: str) -> list[Any]:
    return [_from_encoded(part) for part in json.loads(text)]


def _encoded(part: Any) -> Any:
    """JSON has no bytes and its floats may lose a bit, so both travel as marked text."""
    if isinstance(part, bytes):
        return "x" + part.hex()
    if isinstance(part, float):
        return "f" + part.hex()
    return part if isinstance(part, int) else f"s{part}"


def _from_encoded(part: Any) -> Any:
    if isinstance(part, int):
        return part
    mark, rest = part[0], part[1:]
    return bytes.fromhex(rest) if mark == "x" else float.fromhex(rest) if mark == "f" else rest


def _unreferenced(table: Table) -> str:
    """True for rows that no RESTRICT or NO ACTION foreign key refers to."""
    conditions = []
    for reference in table.holding_references:
        alias = "lapse_child"
        pairs = " AND ".join(
            # In this order: as in a foreign key, the collation of the row referred to decides.
            f"{quote(table.name.name)}.{quote(parent)} = {alias}.{quote(child)}"
            for child, parent in zip(reference.columns, reference.referred, strict=True)
        )
        if reference.table.name == table.name.name:
            # A row that refers to itself goes with itself.
            address = [quote(column) for column in table.key] or [row_address(table)]
            same = " AND ".join(f"{alias}.{part} IS {quote(table.name.name)}.{part}" for part in address)
            pairs += f" AND NOT ({same})"
        conditions.append(f"NOT EXISTS (SELECT 1 FROM {quote(reference.table.name)} AS {alias} WHERE {pairs})")
    return " AND ".join(conditions)
