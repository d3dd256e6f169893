"""SQLite, the embedded default: one file, one writer at a time, no clock of its own."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path as FilePath
from time import perf_counter
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from lapse.clock import Clock, SystemClock
from lapse.engines.base import Advice, Declared, Deleter, Engine, Expiring, Survey, Target
from lapse.engines.features import Features
from lapse.engines.sqlite import condition, forecast, inspect, managed, times
from lapse.engines.sqlite.delete import INCLUSIVE, IndexDeleter, KeyDeleter, RowidDeleter, encode_key
from lapse.engines.sqlite.names import insert_trigger, quote, row_address, update_trigger
from lapse.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    Interrupted,
    LapseError,
    PolicyConflict,
    Retryable,
    RowUndeletable,
    Unsupported,
    UnsupportedUrl,
)
from lapse.model.job import KeyRange, Path, PathKind
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import MANAGED_COLUMN, Column, Table, TableKind, TableName

MINIMUM_VERSION = (3, 37)
PATIENT_MS = 5_000
"""How long a declaration waits for the write lock."""
DELETE_MS = 20
"""How long a delete waits for it: the application goes first."""
DELETE_CACHE_KIB = 65_536
"""A batch touches two pages a row, in no order: what does not fit is written twice, under the lock."""
INDEX_PATH_SHARE = 0.05
"""The index path pays while at most this share of the rows has expired."""
RECLAIM_PAGES = 64
_RETRYABLE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
_NO_TRANSACTION = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "PRAGMA", "VACUUM", "ATTACH", "DETACH", ""})


class SqliteEngine(Engine):
    name = "sqlite"
    dialect = "sqlite"
    features = Features(
        transactional_ddl=True,
        time_types=False,
        table_comments=False,
        hidden_columns=False,
        row_security=False,
        partitions=False,
        row_locks=False,
        concurrent_writers=False,
        replicas=False,
        failover_looks_like_a_copy=False,
        target_seconds=0.012,
        rows_per_task=1_000_000,
    )

    def __init__(self, url: URL, clock: Clock | None = None) -> None:
        if sqlite3.sqlite_version_info < MINIMUM_VERSION:
            wanted = ".".join(map(str, MINIMUM_VERSION))
            raise UnsupportedUrl(f"this Python has SQLite {sqlite3.sqlite_version}; Lapse needs {wanted} or newer")
        self._scratch = url.database in (None, "", ":memory:")
        # A private file stands in for a database in memory, which only one connection could see.
        self.path = FilePath(_scratch_file() if self._scratch else str(url.database))
        super().__init__(_open(url, self.path), clock or SystemClock())
        self._deleting = _open(url, self.path, deleting=True)

    def exists(self) -> bool:
        return self.path.exists()

    def close(self) -> None:
        self._deleting.dispose()
        super().close()
        if self._scratch:
            for suffix in ("", "-wal", "-shm", "-journal"):
                FilePath(f"{self.path}{suffix}").unlink(missing_ok=True)

    def in_transaction(self, connection: Connection) -> bool:
        return _raw(connection).in_transaction

    @contextmanager
    def atomic(self, connection: Connection) -> Iterator[None]:
        raw = _raw(connection)
        nested = raw.in_transaction
        begin, commit, rollback = "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"
        if nested:
            begin, commit, rollback = "SAVEPOINT lapse", "RELEASE lapse", "ROLLBACK TO lapse"
        with self.errors():
            connection.exec_driver_sql(begin)
            try:
                yield
                connection.exec_driver_sql(commit)
            except BaseException:
                if not connection.invalidated and raw.in_transaction:
                    connection.exec_driver_sql(rollback)
                    if nested:
                        connection.exec_driver_sql(commit)
                raise

    def translate(self, error: DBAPIError) -> LapseError:
        code = getattr(error.orig, "sqlite_errorname", "") or ""
        text = str(error.orig)
        if code.startswith(_RETRYABLE):
            return Retryable(f"the database is busy: {text}")
        if code == "SQLITE_INTERRUPT":
            return Interrupted("the statement was interrupted")
        if code.startswith("SQLITE_CONSTRAINT"):
            return RowUndeletable(text)
        if code == "SQLITE_NOTADB":
            return DatabaseUnavailable(f"{self.path} is not a SQLite database")
        if code.startswith("SQLITE_READONLY"):
            return DatabaseError(f"{self.path} cannot be written: {text}", hint="check the file's permissions")
        if code.startswith("SQLITE_CANTOPEN"):
            return DatabaseUnavailable(f"cannot open {self.path}: {text}", hint="check that the directory exists")
        if text.startswith(("no such column", "no such table", "no such index")):
            return Drift(text)
        return DatabaseError(text)

    def now(self, connection: Connection) -> datetime:
        assert self.clock is not None
        now = self.clock.now()
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def stopwatch(self, connection: Connection) -> datetime:
        return datetime.now(UTC)

    # Tables

    def describe(self, connection: Connection, name: TableName) -> Table:
        return inspect.describe(connection, name)

    def tables(self, connection: Connection) -> list[TableName]:
        return inspect.table_names(connection)

    def create_statement(self, connection: Connection, table: Table) -> str:
        sql = connection.exec_driver_sql(
            "SELECT sql FROM sqlite_schema WHERE name = ?", (table.name.name,)
        ).scalar_one()
        return str(sql)

    # Policies

    def check(self, connection: Connection, declared: Declared, previous: Policy | None) -> list[str]:
        table, policy = declared.table, declared.policy
        if table.kind is not TableKind.TABLE:
            raise Unsupported(f"{table.name} is a {table.kind}, and TTL works on tables")
        if policy.partitions or policy.partition_drop:
            raise Unsupported("SQLite has no partitions, so per-partition TTL and ttl_partition_drop cannot work")
        if policy.replication_origin is not None:
            raise Unsupported("SQLite has no replication, so ttl_replication_origin cannot work")
        if policy.hide_expired == "policy":
            raise Unsupported(
                "SQLite has no row security, so ttl_hide_expired = 'policy' cannot work", hint="use 'view' instead"
            )
        if not table.key:
            row_address(table)
        managed_before = previous is not None and previous.expire_after is not None
        if policy.expire_after is not None and not managed_before and table.column(MANAGED_COLUMN):
            raise PolicyConflict(
                f"table {table.name} already has a column {MANAGED_COLUMN}",
                hint=f"declare ttl_expiration_expression = '{MANAGED_COLUMN}' to use it as it is",
            )
        # The condition itself is the check: it needs its columns, and the columns need one time format.
        condition.at(connection, _with_managed(declared), self.now(connection), whole=True)
        if policy.hide_expired == "view":
            condition.expired_now(connection, _with_managed(declared))
        notices = [advice.text for advice in _reference_advice(table)]
        if policy.select_as_of_system_time is not None:
            notices.append("ttl_select_as_of_system_time has no effect on SQLite, which has no replicas")
        return notices

    def install(self, connection: Connection, declared: Declared, previous: Policy | None) -> None:
        table, policy = declared.table, declared.policy
        managed_before = previous is not None and previous.expire_after is not None
        if policy.hide_expired != "view":
            managed.drop_view(connection, table.name.name)
        if managed_before and policy.expire_after is None:
            managed.uninstall(connection, table, previous or policy)
        if policy.expire_after is not None:
            if table.column(MANAGED_COLUMN) is None:
                managed.add_column(connection, table, policy.expire_after, self.now(connection))
            table = self.describe(connection, table.name)
            managed.create_triggers(connection, table, policy.expire_after)
        if policy.hide_expired == "view":
            fresh = Declared(table=self.describe(connection, table.name), policy=policy, expression=declared.expression)
            managed.create_view(connection, fresh)

    def renamed(self, connection: Connection, old: TableName, declared: Declared) -> None:
        for trigger in (insert_trigger(old.name), update_trigger(old.name)):
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {quote(trigger)}")
        managed.drop_view(connection, old.name)
        self.install(connection, declared, declared.policy)

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        managed.uninstall(connection, table, policy)

    def dropped(self, connection: Connection, name: TableName) -> None:
        managed.drop_view(connection, name.name)

    def missing_parts(self, connection: Connection, declared: Declared) -> list[str]:
        return managed.missing_parts(connection, declared)

    def advice(self, connection: Connection, declared: Declared) -> list[Advice]:
        return [*_reference_advice(declared.table), *_index_advice(declared), *self._space_advice(connection)]

    @staticmethod
    def _space_advice(connection: Connection) -> list[Advice]:
        mode = int(connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one())
        free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
        pages = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
        if mode == 0 and pages and free / pages > 0.2:
            return [
                Advice(
                    text=f"{free} of {pages} pages are free but stay in the file: auto_vacuum is off",
                    statement="PRAGMA auto_vacuum = INCREMENTAL; VACUUM;",
                )
            ]
        return []

    # Deleting

    def condition(self, connection: Connection, declared: Declared, cutoff: datetime) -> str:
        return condition.at(connection, declared, cutoff).sql

    def choose_path(self, connection: Connection, declared: Declared, cutoff: datetime) -> Path:
        table = declared.table
        found = condition.at(connection, declared, cutoff)
        order = "primary key order" if table.key else "row id order"
        index = table.index_on(found.column) if found.column and not table.key else None
        if index is None:
            reason = "no index on the expiry column" if found.column else "expiry is an expression"
            return Path(kind=PathKind.PHYSICAL, evidence=f"{order}: {reason}")
        enough = max(int(self.estimate_rows(connection, table) * INDEX_PATH_SHARE), 1_000)
        column = quote(found.column or "")
        expired = connection.exec_driver_sql(
            f"SELECT count(*) FROM (SELECT {column} FROM {quote(table.name.name)} INDEXED BY {quote(index.name)}"
            f" WHERE {found.bound} AND {column} IS NOT NULL ORDER BY {column} LIMIT {4 * enough}) WHERE {found.sql}"
        ).scalar_one()
        if expired > enough:
            return Path(kind=PathKind.PHYSICAL, evidence=f"{order}: more than {enough} rows have expired")
        evidence = f"index {index.name}: about {expired} rows have expired"
        return Path(kind=PathKind.INDEX, index=index.name, evidence=evidence)

    def estimate_rows(self, connection: Connection, table: Table) -> int:
        name = quote(table.name.name)
        if table.key:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one())
        low, high = forecast.row_ids(connection, table)
        return 0 if low is None else high - low + 1

    def split(self, connection: Connection, target: Target, pieces: int) -> list[KeyRange]:
        table = target.declared.table
        name = quote(table.name.name)
        if table.key:
            columns = ", ".join(quote(column) for column in table.key)
            last = connection.exec_driver_sql(
                f"SELECT {columns} FROM {name} ORDER BY {', '.join(f'{quote(c)} DESC' for c in table.key)} LIMIT 1"
            ).first()
            return [] if last is None else [KeyRange(end=INCLUSIVE + encode_key(last))]
        if target.path.kind is PathKind.INDEX:
            return [KeyRange()]
        low, high = forecast.row_ids(connection, table)
        if low is None:
            return []
        edges = sorted({low + (high + 1 - low) * i // pieces for i in range(pieces)} | {high + 1})
        return [KeyRange(start=str(a), end=str(b)) for a, b in pairwise(edges)]

    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        table = target.declared.table
        with self.connection() as connection:
            compiled = condition.at(connection, target.declared, target.cutoff)
        parts = (table, compiled, span, cursor, self._impatient, self.atomic)
        if target.path.kind is PathKind.INDEX and target.path.index is not None:
            return IndexDeleter(*parts, index=target.path.index)
        return KeyDeleter(*parts) if table.key else RowidDeleter(*parts)

    @contextmanager
    def _impatient(self) -> Iterator[Connection]:
        """A connection that gives way to other writers soon."""
        with self.errors(), self._deleting.connect() as connection:
            yield connection

    def survey(self, connection: Connection, target: Target) -> Survey:
        found = condition.at(connection, target.declared, target.cutoff)
        name = quote(target.declared.table.name.name)
        rows, expired, oldest, newest = connection.exec_driver_sql(
            f"SELECT count(*), count(*) FILTER (WHERE {found.sql}), min({found.instant}) FILTER (WHERE {found.sql}),"
            f" max({found.instant}) FILTER (WHERE {found.sql}) FROM {name}"
        ).one()
        size = forecast.table_bytes(connection, target.declared.table.name.name)
        return Survey(
            rows=int(rows),
            expired=int(expired),
            oldest=times.from_milliseconds(oldest),
            newest=times.from_milliseconds(newest),
            bytes=None if size is None or not rows else size * int(expired) // int(rows),
            exact=True,
            method="scan",
        )

    def expiring(
        self, connection: Connection, declared: Declared, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        return forecast.expiring(connection, declared, instants, exact=exact)

    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        found = condition.at(connection, target.declared, target.cutoff)
        columns = ", ".join(quote(column.name) for column in target.declared.table.columns)
        rows = connection.exec_driver_sql(
            f"SELECT {columns} FROM {quote(target.declared.table.name.name)} WHERE {found.sql} LIMIT {int(count)}"
        )
        return [dict(row) for row in rows.mappings()]

    def reclaim(self, connection: Connection, seconds: float) -> int:
        """Incremental vacuum in steps of a few milliseconds; only where the file was made for it."""
        if connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() != 2:
            return 0
        page = int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())
        started, freed = perf_counter(), 0
        while perf_counter() - started < seconds:
            before = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
            if not before:
                break
            _raw(connection).execute(f"PRAGMA incremental_vacuum({RECLAIM_PAGES})").fetchall()
            freed += before - int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
        return freed * page

    def begin_implicitly(self, raw: Any, verb: str) -> None:
        if not raw.in_transaction and verb not in _NO_TRANSACTION:
            raw.execute("BEGIN")


def _raw(connection: Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def _with_managed(declared: Declared) -> Declared:
    """The table as it will be once the managed column is there, so that a policy can be checked beforehand."""
    table = declared.table
    if declared.policy.expire_after is None or table.column(MANAGED_COLUMN):
        return declared
    column = Column(name=MANAGED_COLUMN, type="TEXT")
    return replace(declared, table=replace(table, columns=(*table.columns, column)))


def _reference_advice(table: Table) -> list[Advice]:
    return [
        Advice(
            text=f"foreign key {reference.table.name}({', '.join(reference.columns)}) to {table.name} has no index: "
            "every deleted row scans that table",
            statement=_create_index(reference.table.name, reference.columns),
        )
        for reference in table.referenced_by
        if not reference.indexed
    ]


def _index_advice(declared: Declared) -> list[Advice]:
    expiry = declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry) or declared.table.key or declared.table.index_on(expiry.column):
        return []
    return [
        Advice(
            text=f"no index on {expiry.column}: each run reads the whole table; an index helps when few expire at once",
            statement=_create_index(declared.table.name.name, (expiry.column,)),
        )
    ]


def _create_index(table: str, columns: tuple[str, ...]) -> str:
    name = "_".join((table, *columns))
    return f"CREATE INDEX {quote(name)} ON {quote(table)} ({', '.join(quote(column) for column in columns)});"


def _scratch_file() -> str:
    handle, path = tempfile.mkstemp(prefix="lapse-", suffix=".db")
    os.close(handle)
    return path


def _open(url: URL, path: FilePath, *, deleting: bool = False) -> Any:
    unknown = set(url.query)
    if unknown:
        raise UnsupportedUrl(f"unknown parameters in the SQLite URL: {', '.join(sorted(unknown))}")
    database = create_engine(URL.create("sqlite", database=str(path)))

    @event.listens_for(database, "connect")
    def _configure(raw: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        raw.isolation_level = None
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute(f"PRAGMA busy_timeout = {DELETE_MS if deleting else PATIENT_MS}")
        record.info["synchronous"] = raw.execute("PRAGMA synchronous").fetchone()[0]
        if deleting:
            raw.execute(f"PRAGMA cache_size = -{DELETE_CACHE_KIB}")
            # A condition with functions makes SQLite keep a copy of every page it changes until the statement ends.
            raw.execute("PRAGMA temp_store = MEMORY")
            # The deleter does it itself, after the lock is released.
            raw.execute("PRAGMA wal_autocheckpoint = 0")

    @event.listens_for(database, "checkout")
    def _trust_the_log(raw: sqlite3.Connection, record: ConnectionPoolEntry, proxy: object) -> None:
        """A deletion that a power cut undoes is simply done again: with a write-ahead log no commit need wait."""
        if deleting:
            wal = raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            raw.execute(f"PRAGMA synchronous = {'NORMAL' if wal else record.info['synchronous']}")

    return database
