"""MariaDB and MySQL: one engine, told apart by the server's version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError

from lapse.clock import Clock
from lapse.engines.base import Advice, Declared, Deleter, Engine, Expiring, Footprint, Gauge, Survey, Target
from lapse.engines.features import Features
from lapse.engines.mysql import (
    checks,
    compaction,
    condition,
    failures,
    forecast,
    gauges,
    inspect,
    keys,
    managed,
    myrocks,
    parts,
    paths,
    privileges,
    references,
    session,
    split,
    survey,
)
from lapse.engines.mysql.compaction import Compactor
from lapse.engines.mysql.delete import IndexDeleter, KeyDeleter, Plan
from lapse.engines.mysql.names import qualified, quote, source
from lapse.engines.mysql.partition import PartitionDropper
from lapse.engines.mysql.session import Flavour
from lapse.errors import LapseError, Retryable
from lapse.model.expression import Null
from lapse.model.job import KeyRange, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import Table, TableKind, TableName

LOCK_SECONDS = 30


class MysqlEngine(Engine):
    name = "mysql"
    dialect = "mysql"
    features = Features(
        transactional_ddl=False,
        time_types=True,
        table_comments=True,
        hidden_columns=True,
        row_security=False,
        partitions=True,
        row_locks=True,
        concurrent_writers=True,
        replicas=False,
        failover_looks_like_a_copy=True,
        target_seconds=0.1,
        short_seconds=0.004,
        gentle_share=0.5,
        rows_per_task=500_000,
    )

    def __init__(self, url: URL, clock: Clock | None = None, *, flavour: Flavour | None = None) -> None:
        """`flavour` speaks to the server as if it were that one."""
        self._options = options = session.read_url(url)
        self._threads: set[int] = set()
        super().__init__(session.open_database(options, self._threads), clock)
        self._by_key = session.open_database(options, self._threads, deleting=True, by_key_only=True)
        # The user's triggers run in the session of the delete, and may change other tables without a key.
        self._with_triggers = session.open_database(options, self._threads, deleting=True)
        self._replicas = session.open_replicas(options)
        self._flavour = flavour
        self._savepoints = count(1)

    @property
    def flavour(self) -> Flavour:
        if self._flavour is None:
            with self.connection() as connection:
                found = Flavour.from_text(str(connection.exec_driver_sql("SELECT VERSION()").scalar_one()))
            found.check()
            self._flavour = found
        return self._flavour

    def close(self) -> None:
        super().close()
        self._by_key.dispose()
        self._with_triggers.dispose()
        for replica in self._replicas.values():
            replica.dispose()

    # Sessions

    def in_transaction(self, connection: Connection) -> bool:
        return session.in_transaction(connection.connection.driver_connection)

    def begin_implicitly(self, raw: Any, verb: str) -> None:
        session.begin_implicitly(raw, verb)

    @contextmanager
    def atomic(self, connection: Connection) -> Iterator[None]:
        """A statement that changes the schema commits what came before it; then there is nothing left to end."""
        begin, commit, rollback = (session.marked(word) for word in ("START TRANSACTION", "COMMIT", "ROLLBACK"))
        if self.in_transaction(connection):
            name = f"lapse_{next(self._savepoints)}"
            begin, commit, rollback = f"SAVEPOINT {name}", f"RELEASE SAVEPOINT {name}", f"ROLLBACK TO SAVEPOINT {name}"
        with self.errors():
            connection.exec_driver_sql(begin)
            try:
                yield
                if self.in_transaction(connection):
                    connection.exec_driver_sql(commit)
            except BaseException:
                self._roll_back(connection, rollback)
                raise

    def _roll_back(self, connection: Connection, rollback: str) -> None:
        """A deadlock has rolled everything back already, and a lost connection needs nothing."""
        if connection.invalidated or not self.in_transaction(connection):
            return
        try:
            connection.exec_driver_sql(rollback)
        except DBAPIError:
            # The savepoint went with the transaction, or the connection did: the pool makes a new one.
            connection.invalidate()

    @contextmanager
    def exclusively(self, connection: Connection) -> Iterator[None]:
        lock = "concat('lapse:', md5(DATABASE()))"
        busy = Retryable("somebody else is installing Lapse's own tables in this database", hint="try again")
        with self.errors():
            if not connection.exec_driver_sql(f"SELECT get_lock({lock}, {LOCK_SECONDS})").scalar():
                raise busy
            try:
                yield
            except DBAPIError as error:
                # The lock ends at the node of a Galera cluster: another node may be at it, too.
                if failures.is_already_there(error):
                    raise busy from error
                raise
            finally:
                if not connection.invalidated:
                    connection.exec_driver_sql(f"SELECT release_lock({lock})")

    @contextmanager
    def _delete_connection(self, *, by_key_only: bool = True) -> Iterator[Connection]:
        database = self._by_key if by_key_only else self._with_triggers
        with self.errors(), database.connect() as connection:
            yield connection

    def translate(self, error: DBAPIError) -> LapseError:
        return failures.translate(error)

    def now(self, connection: Connection) -> datetime:
        return self.clock.now() if self.clock is not None else self.stopwatch(connection)

    def gauges(self, connection: Connection) -> list[Gauge]:
        return gauges.read(connection, self._replicas, self._threads)

    def stopwatch(self, connection: Connection) -> datetime:
        now: datetime = connection.exec_driver_sql("SELECT utc_timestamp(6)").scalar_one()
        return now.replace(tzinfo=UTC)

    # Tables

    def describe(self, connection: Connection, name: TableName) -> Table:
        return inspect.describe(connection, name)

    def tables(self, connection: Connection) -> list[TableName]:
        return inspect.table_names(connection)

    def comments(self, connection: Connection) -> list[tuple[TableName, str]]:
        return inspect.comments(connection)

    def identity(self, connection: Connection) -> str | None:
        return inspect.identity(connection)

    def leaves(self, connection: Connection, table: Table) -> list[Table]:
        if table.kind is not TableKind.PARTITIONED:
            return [table]
        name = table.name
        return [
            replace(table, name=TableName(name.name, name.schema, partition), kind=TableKind.TABLE, partitions=())
            for partition in table.partitions
        ]

    def create_statement(self, connection: Connection, table: Table) -> str:
        row = connection.exec_driver_sql(f"SHOW CREATE TABLE {qualified(table.name)}").one()
        return str(row[1])

    def discard(self, connection: Connection, name: TableName) -> None:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {qualified(name)}")

    # Policies

    def check(self, connection: Connection, declared: Declared, previous: Policy | None) -> list[str]:
        return checks.check(connection, declared, previous, self.now(connection))

    def install(self, connection: Connection, declared: Declared, previous: Policy | None) -> None:
        parts.install(connection, declared, previous, self.now(connection))

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        parts.uninstall(connection, table, policy)

    def renamed(self, connection: Connection, old: TableName, declared: Declared) -> None:
        parts.renamed(connection, old, declared, self.now(connection))

    def dropped(self, connection: Connection, name: TableName) -> None:
        managed.drop_view(connection, name)

    def missing_parts(self, connection: Connection, declared: Declared) -> list[str]:
        return parts.missing(connection, declared)

    def advice(self, connection: Connection, declared: Declared) -> list[Advice]:
        table, policy = declared.table, declared.policy
        if parts.is_native(connection, table):
            return myrocks.advice(connection, table, policy)
        return [*references.advice(table), *paths.index_advice(declared)]

    def privileges(self, connection: Connection, declared: Declared) -> list[Advice]:
        wanted = None if self._options.binlog else self.flavour.binlog_privilege
        return privileges.lacking(connection, declared, binlog_privilege=wanted)

    # Deleting

    def condition(self, connection: Connection, declared: Declared, cutoff: datetime) -> str:
        if parts.is_native(connection, declared.table):
            return f"MyRocks: {myrocks.ttl_items(declared.table.comment)}"
        return condition.at(connection, declared, cutoff).sql

    def choose_path(self, connection: Connection, declared: Declared, cutoff: datetime) -> Path:
        return paths.choose(connection, declared, cutoff, self.estimate_rows(connection, declared.table))

    def estimate_rows(self, connection: Connection, table: Table) -> int:
        return paths.estimate_rows(connection, table.name)

    def footprint(self, connection: Connection, table: Table) -> Footprint:
        return paths.footprint(connection, table.name)

    def covered(self, span: KeyRange, cursor: str | None) -> float | None:
        numbers = KeyRange(start=keys.leading_number(span.start), end=keys.leading_number(span.end))
        return super().covered(numbers, None if cursor is None else keys.leading_number(cursor) or "")

    def split(self, connection: Connection, target: Target, pieces: int) -> list[KeyRange]:
        if isinstance(target.declared.expression, Null):
            return []
        if target.path.kind is not PathKind.PHYSICAL:
            return [KeyRange()]
        table = target.declared.table
        if self._finds_nothing(connection, target):
            return []
        walk = keys.load(connection, table.name, inspect.key_index(table))
        return split.ranges(connection, table.name, walk, pieces)

    def _finds_nothing(self, connection: Connection, target: Target) -> bool:
        """Has nothing expired in this small table? Read without a lock."""
        name = target.declared.table.name
        size = paths.table_bytes(connection, name)
        if size is None or not target.may_be_glanced_through(size):
            return False
        expired = condition.at(connection, target.declared, target.cutoff).sql
        return connection.exec_driver_sql(f"SELECT 1 FROM {source(name)} WHERE {expired} LIMIT 1").first() is None

    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        table = target.declared.table
        if target.path.kind is PathKind.NATIVE:
            return Compactor(table.name, connect=self._delete_connection, atomic=self.atomic)
        if target.path.kind is PathKind.PARTITION:
            return PartitionDropper(table.name, connect=self._delete_connection, atomic=self.atomic)
        with self.connection() as connection:
            compiled = condition.at(connection, target.declared, target.cutoff)
            walk = keys.load(connection, table.name, inspect.key_index(table))
            plan = Plan(
                source=source(table.name),
                key=walk,
                condition=compiled.sql,
                comment=f"/* lapse ttl {''.join(filter(str.isalnum, table.name.name))} */",
                free=references.unreferenced(table),
                free_in_delete=self.flavour.reads_the_table_it_deletes_from or not references.refers_to_itself(table),
                refuses_to_wait=self.flavour.can_refuse_to_wait,
                skips_locked=inspect.storage_engine(connection, table.name) != myrocks.ENGINE,
                rows_per_row=references.rows_per_row(connection, table),
            )
            index = target.path.index
            along = keys.load(connection, table.name, index, walk) if index is not None else None
            freely = partial(self._delete_connection, by_key_only=False)
            connect = freely if inspect.has_triggers(connection, table.name) else self._delete_connection
        how: dict[str, Any] = {
            "connect": connect,
            "connect_freely": freely,
            "atomic": self.atomic,
            "kill": self._kill,
        }
        if target.path.kind is PathKind.INDEX and along is not None:
            return IndexDeleter(plan, along, span, cursor, **how)
        return KeyDeleter(plan, span, cursor, **how)

    def _kill(self, thread: int) -> None:
        with self.connection() as connection:
            try:
                connection.exec_driver_sql(f"KILL QUERY {int(thread)}")
            except DBAPIError:
                # The session ended by itself in the meantime.
                return

    def survey(self, connection: Connection, target: Target) -> Survey:
        if target.path.kind is PathKind.NATIVE:
            return compaction.survey(connection, target.declared.table.name)
        return survey.survey(connection, target)

    def native_counters(self, connection: Connection) -> Mapping[str, int]:
        return compaction.counters(connection)

    def expiring(
        self, connection: Connection, declared: Declared, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        if myrocks.is_implicit(declared.table):
            return compaction.expiring(connection, declared.table.name, len(instants))
        return forecast.expiring(connection, declared, instants, exact=exact)

    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        if target.path.kind is PathKind.NATIVE:
            return []
        found = condition.at(connection, target.declared, target.cutoff)
        columns = ", ".join(quote(column.name) for column in target.declared.table.columns)
        rows = connection.exec_driver_sql(
            f"SELECT {columns} FROM {source(target.declared.table.name)} WHERE {found.sql} LIMIT {int(count)}"
        )
        return [dict(row) for row in rows.mappings()]
