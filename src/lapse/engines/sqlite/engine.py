"""SQLite, the embedded default: one file, one writer at a time, no clock of its own."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path as FilePath
from time import perf_counter
from typing import Any

from sqlalchemy import URL, Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError

from lapse.clock import Clock, SystemClock
from lapse.engines.action import Action
from lapse.engines.archive import ArchiveShape
from lapse.engines.base import (
    Advice,
    BoundPolicy,
    Condition,
    Consequences,
    Deleter,
    Engine,
    Expiring,
    Footprint,
    Gauge,
    Place,
    Survey,
    Target,
)
from lapse.engines.cells import Cells
from lapse.engines.consequences import follow
from lapse.engines.features import Features
from lapse.engines.ledger_keys import require
from lapse.engines.restoring import Dialect
from lapse.engines.sqlite import (
    advice,
    archive,
    checks,
    condition,
    errors,
    forecast,
    inspect,
    install,
    ledger_keys,
    managed,
    paths,
    rebuild,
    references,
    session,
    split,
)
from lapse.engines.sqlite import armed as arming
from lapse.engines.sqlite.condition import Condition as SqliteCondition
from lapse.engines.sqlite.consequences import SqliteKin
from lapse.engines.sqlite.delete import IndexDeleter, KeyDeleter, RowidDeleter
from lapse.engines.sqlite.log import LogMover
from lapse.errors import (
    Blocked,
    LapseError,
    TableNotFound,
    UnsupportedUrl,
)
from lapse.model.blocked import BlockCode
from lapse.model.job import KeyRange, Path, PathKind
from lapse.model.ledger_keys import AskedKey, asked
from lapse.model.policy import Policy
from lapse.model.settings import Settings
from lapse.model.table import Table, TableName

MINIMUM_VERSION = (3, 37)
RECLAIM_PAGES = 64


class SqliteEngine(Engine):
    name = "sqlite"
    dialect = "sqlite"
    features = Features(
        transactional_ddl=True,
        time_types=False,
        table_comments=False,
        row_security=False,
        partitions=False,
        row_locks=False,
        concurrent_writers=False,
        keeps_columns=True,
        failover_looks_like_a_copy=False,
        target_seconds=0.013,
        short_seconds=0.002,
        gentle_share=0.5,
        rows_per_task=1_000_000,
        returns_space=True,
    )

    def __init__(self, url: URL, clock: Clock | None = None) -> None:
        if sqlite3.sqlite_version_info < MINIMUM_VERSION:
            wanted = ".".join(map(str, MINIMUM_VERSION))
            raise UnsupportedUrl(f"this Python has SQLite {sqlite3.sqlite_version}; Lapse needs {wanted} or newer")
        if url.host:
            # Three slashes come before a path: what follows two is a host, and the file would be one in memory.
            raise UnsupportedUrl(f"{url.render_as_string()} names no file", hint=f"write {_with_path(url)}")
        self._scratch = url.database in (None, "", ":memory:")
        # A private file stands in for a database in memory, which only one connection could see.
        self.path = FilePath(session.scratch_file() if self._scratch else str(url.database))
        super().__init__(session.open_database(url, self.path), clock or SystemClock())
        self.user_database = session.open_for_users(self.path)
        self._deleting = session.open_database(url, self.path, deleting=True)
        # Not on the deleters' connections, whose cache of pages is worth keeping.
        self._log = LogMover(self.connection)

    def exists(self) -> bool:
        return self.path.exists()

    @property
    def pools(self) -> Sequence[Database]:
        return (self.database, self._deleting)

    def close(self) -> None:
        super().close()
        if self._scratch:
            for suffix in ("", "-wal", "-shm", "-journal"):
                FilePath(f"{self.path}{suffix}").unlink(missing_ok=True)

    def in_transaction(self, connection: Connection) -> bool:
        return session.raw(connection).in_transaction

    @contextmanager
    def atomic(self, connection: Connection) -> Iterator[None]:
        with self.errors(), session.atomic(connection):
            yield

    def begin_implicitly(self, raw: Any, verb: str) -> None:
        session.begin_implicitly(raw, verb)

    def translate(self, error: DBAPIError) -> LapseError:
        return errors.translate(error, self.path)

    def now(self, connection: Connection) -> datetime:
        assert self.clock is not None
        now = self.clock.now()
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def stopwatch(self, connection: Connection) -> datetime:
        return datetime.now(UTC)

    # Tables

    def describe(self, connection: Connection, name: TableName) -> Table:
        return inspect.describe(connection, name)

    def full_name(self, connection: Connection, name: TableName) -> TableName:
        if name.schema not in (None, "main", "temp"):
            raise TableNotFound(f"{name} is in an attached database, where no policy can be")
        return inspect.full_name(connection, name)

    def full_names(self, connection: Connection, names: Collection[TableName]) -> Mapping[TableName, TableName]:
        known = set(inspect.table_names(connection))
        return {name: name for name in names if name in known}

    def comparable(self, connection: Connection, name: TableName) -> TableName:
        return TableName(name.name.lower(), None if name.schema == "main" else name.schema)

    def tables(self, connection: Connection) -> list[TableName]:
        return inspect.table_names(connection)

    def create_statement(self, connection: Connection, table: Table) -> str:
        sql = connection.exec_driver_sql(
            "SELECT sql FROM sqlite_schema WHERE name = ?", (table.name.name,)
        ).scalar_one()
        return str(sql)

    @contextmanager
    def limited(self, connection: Connection, seconds: float) -> Iterator[None]:
        with self.errors(), session.limited(connection, seconds):
            yield

    def place(self, connection: Connection) -> Place | None:
        """The file, by its number and by its path on this machine."""
        if self._scratch:
            return None
        found = self.path.stat()
        endpoint = f"{socket.gethostname()}:{self.path.resolve()}"
        return Place(incarnation=f"{found.st_dev}:{found.st_ino}", endpoint=endpoint)

    # Policies

    def arm(self, connection: Connection, declared: BoundPolicy) -> str:
        return arming.arm(connection, declared)

    def check_armed(self, connection: Connection, declared: BoundPolicy, armed: str) -> str:
        arming.check(connection, declared, armed)
        return armed

    def check(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> list[str]:
        return checks.check(connection, declared, previous, self.now(connection))

    def install(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> Table:
        install.install(connection, declared, previous, self.now(connection))
        return self.describe(connection, declared.table.name)

    def renamed(self, connection: Connection, old: TableName, declared: BoundPolicy) -> None:
        managed.drop_view(connection, old.name)
        self.install(connection, declared, declared.policy)

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        install.uninstall(connection, table, policy)

    def rebuilding(self, connection: Connection, declared: BoundPolicy) -> AbstractContextManager[None]:
        return rebuild.rebuilding(connection, declared, self.now(connection))

    def dropped(self, connection: Connection, name: TableName) -> None:
        managed.drop_view(connection, name.name)

    def missing_parts(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        return managed.missing_parts(connection, declared)

    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        return [
            *references.advice(connection, declared.table),
            *advice.indexes(connection, declared),
            *advice.space(connection),
        ]

    # Archives

    @property
    def archives(self) -> Dialect:
        return archive.DIALECT

    @property
    def cells(self) -> Cells:
        from lapse.engines.sqlite import cells

        return cells

    def archive_shape(self, connection: Connection, name: TableName, table: TableName) -> ArchiveShape | None:
        return archive.shape(connection, name)

    def column_types(self, connection: Connection, name: TableName) -> Mapping[str, str]:
        return archive.columns(connection, name)

    # Deleting

    def condition(self, connection: Connection, declared: BoundPolicy, cutoff: datetime) -> Condition:
        return condition.at(connection, declared, cutoff)

    def choose_path(self, connection: Connection, declared: BoundPolicy, cutoff: datetime, found: Condition) -> Path:
        return paths.choose(connection, declared.table, condition.own(found))

    def estimate_rows(self, connection: Connection, table: Table) -> int:
        return paths.estimate_rows(connection, table)

    def footprints(self, connection: Connection, names: Sequence[TableName]) -> dict[TableName, Footprint]:
        return forecast.footprints(connection, names)

    def split(self, connection: Connection, target: Target, pieces: int, *, looks: bool = True) -> list[KeyRange]:
        return split.ranges(connection, target, pieces, looks=looks)

    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        with self.connection() as connection:
            log = self._log if session.has_log(connection) else None
        look = partial(self._look, target)
        parts = (look, span, cursor, self._delete_connection, self.atomic, log, target.secret)
        if target.path.kind is PathKind.INDEX and target.path.index is not None:
            return IndexDeleter(*parts, index=target.path.index)
        return KeyDeleter(*parts) if target.declared.table.key else RowidDeleter(*parts)

    def _look(self, target: Target, connection: Connection) -> tuple[Table, SqliteCondition, Action]:
        try:
            table = self.describe(connection, target.declared.table.name)
        except TableNotFound as error:
            name = target.declared.table.name
            raise Blocked(
                BlockCode.TABLE_GONE,
                f"table {name} does not exist any more",
                hint="lapse doctor URL --repair forgets its policy",
            ) from error
        declared = replace(target.declared, table=table)
        arming.check(connection, declared, target.armed)
        if target.secret is not None:
            require(table, lambda column: True)
        return table, condition.at(connection, declared, target.cutoff), archive.action(declared, target.job)

    def asked_key(self, connection: Connection, table: Table, values: Sequence[str]) -> AskedKey:
        return asked(ledger_keys.parts(table, values))

    @contextmanager
    def _delete_connection(self) -> Iterator[Connection]:
        """A connection that gives way to other writers soon."""
        with self.errors(), self._deleting.connect() as connection:
            yield connection

    def survey(self, connection: Connection, target: Target) -> Survey:
        return forecast.survey(connection, target)

    def expiring(
        self, connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        return forecast.expiring(connection, declared, instants, exact=exact)

    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        return forecast.sample(connection, target, count)

    def consequences(self, connection: Connection, target: Target, expired: int, seconds: float | None) -> Consequences:
        return follow(SqliteKin(self, connection, target), expired, seconds)

    def write_blocker(self, connection: Connection) -> str | None:
        return "the database is locked by another session" if session.is_locked(connection) else None

    def gauges(self, connection: Connection, settings: Settings) -> list[Gauge]:
        log = self._log.gauge()
        return [] if log is None else [log]

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
            session.raw(connection).execute(f"PRAGMA incremental_vacuum({RECLAIM_PAGES})").fetchall()
            freed += before - int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
        return freed * page


def _with_path(url: URL) -> str:
    return f"sqlite:///{url.host}{f'/{url.database}' if url.database else ''}"
