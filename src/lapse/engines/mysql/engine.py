"""MariaDB and MySQL: one engine, told apart by the server's version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import count
from time import monotonic, sleep
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError

from lapse.clock import Clock
from lapse.engines import planned
from lapse.engines.archive import ArchiveShape
from lapse.engines.base import (
    Advice,
    BoundPolicy,
    ClientRequest,
    Condition,
    Consequences,
    Deleter,
    Engine,
    Expiring,
    Footprint,
    Gauge,
    Place,
    Survey,
    TableComment,
    Target,
)
from lapse.engines.cells import Cells, Packs
from lapse.engines.consequences import follow
from lapse.engines.endpoint import endpoint_of
from lapse.engines.features import Features
from lapse.engines.ledger_keys import require
from lapse.engines.mysql import (
    advice,
    archive,
    armed,
    checks,
    client,
    condition,
    errors,
    forecast,
    gauges,
    grants,
    inspect,
    install,
    kept,
    keys,
    ledger_keys,
    managed,
    myrocks,
    partitions,
    paths,
    privileges,
    references,
    replicas,
    server,
    session,
    split,
    tidb_locks,
    zones,
)
from lapse.engines.mysql.consequences import MysqlKin
from lapse.engines.mysql.delete import IndexDeleter, KeyDeleter, Packer, TaskSql, Watch
from lapse.engines.mysql.inspect import Sight
from lapse.engines.mysql.keys import Walk
from lapse.engines.mysql.ledger_keys import Noter, can_be_told
from lapse.engines.mysql.names import literal, qualified, source
from lapse.engines.mysql.partitions import PartitionDropper
from lapse.engines.mysql.replicas import Reader
from lapse.engines.mysql.session import Flavour
from lapse.engines.restoring import ArchiveTable, Dialect
from lapse.engines.zones import block_guess
from lapse.errors import Blocked, Drift, LapseError, Locked, Retryable
from lapse.model.archive import file_url
from lapse.model.blocked import BlockCode
from lapse.model.job import KeyRange, Path, PathKind
from lapse.model.ledger_keys import AskedKey, asked
from lapse.model.policy import Policy
from lapse.model.settings import Settings
from lapse.model.table import Table, TableKind, TableName

LOCK_SECONDS = 30
BRIEF_SECONDS = 0.02
P = ParamSpec("P")
R = TypeVar("R")


def looking(
    method: Callable[Concatenate[MysqlEngine, Connection, P], R],
) -> Callable[Concatenate[MysqlEngine, Connection, P], R]:
    """`reading_tables`, around a whole method."""

    @wraps(method)
    def given_up_soon(self: MysqlEngine, connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.reading_tables():
            return method(self, connection, *args, **kwargs)

    return given_up_soon


class MysqlEngine(Engine):
    name = "mysql"
    dialect = "mysql"
    _common = Features(
        transactional_ddl=False,
        time_types=True,
        table_comments=True,
        row_security=False,
        partitions=True,
        row_locks=True,
        concurrent_writers=True,
        keeps_columns=False,
        failover_looks_like_a_copy=False,
        target_seconds=0.1,
        short_seconds=0.004,
        gentle_share=0.5,
        rows_per_task=500_000,
    )

    @property
    def features(self) -> Features:  # type: ignore[override]
        """MySQL has less than MariaDB."""
        own = self.flavour.is_mariadb
        more = dict.fromkeys(("keeps_history", "replaces_tables", "uuid_type"), own)
        more |= dict.fromkeys(
            (
                "managed_column",
                "archives",
                "keeps_last",
                "triggers",
                "table_locks",
                "own_settings",
                "lists_temporary_tables",
                "records_keys",
                "json_times",
                "skips_locked",
            ),
            not self.flavour.is_tidb,
        )
        return replace(
            self._common,
            refuses_to_wait=self.flavour.can_refuse_to_wait,
            client_requests=bool(self.client_version),
            records_with_batches=self._options.binlog and not self.flavour.is_tidb,
            **more,
        )

    def __init__(self, url: URL, clock: Clock | None = None, *, flavour: Flavour | None = None) -> None:
        """`flavour` speaks to the server as if it were that one."""
        self._options = options = session.read_url(url)
        self._threads: set[int] = set()
        super().__init__(session.open_database(options, self._threads), clock)
        self.user_database = session.open_for_users(options)
        self._by_key = session.open_database(options, self._threads, deleting=True, by_key_only=True)
        # The user's triggers run in the session of the delete, and may change other tables without a key.
        self._with_triggers = session.open_database(options, self._threads, deleting=True)
        self._replicas = session.open_replicas(options)
        self._read_pools = replicas.open_pools(options)
        self._flavour = flavour
        self._savepoints = count(1)
        self._last_sight: Sight | None = None
        self._last_walk: tuple[Table | None, Walk | None] = (None, None)
        self._last_size: tuple[Table | None, Footprint] = (None, Footprint())

    @property
    def flavour(self) -> Flavour:
        if self._flavour is None:
            with self.connection() as connection:
                found = Flavour.from_text(str(connection.exec_driver_sql("SELECT VERSION()").scalar_one()))
            found.check()
            self._flavour = found
        return self._flavour

    @property
    def pools(self) -> Sequence[Database]:
        own = (self.database, self._by_key, self._with_triggers)
        return (*own, *self._replicas.values(), *self._read_pools.values())

    # Sessions

    def in_transaction(self, connection: Connection) -> bool:
        return session.in_transaction(connection.connection.driver_connection)

    def set_autocommit(self, raw: Any, value: bool) -> None:
        # The server then begins transactions, and unlike START TRANSACTION that does not end LOCK TABLES.
        raw.autocommit(value)

    @contextmanager
    def bookkeeping(self, connection: Connection) -> Iterator[None]:
        with self.errors(), session.bookkeeping(connection):
            yield

    @contextmanager
    def atomic(self, connection: Connection) -> Iterator[None]:
        """A statement that changes the schema commits what came before it; then there is nothing left to end."""
        begin, commit, rollback = session.BEGIN, session.COMMIT, session.ROLLBACK
        if not session.commits_by_itself(connection.connection.driver_connection):
            name = f"lapse_{next(self._savepoints)}"
            begin, commit, rollback = f"SAVEPOINT {name}", f"RELEASE SAVEPOINT {name}", f"ROLLBACK TO SAVEPOINT {name}"
        with self.errors():
            self._begin(connection, begin)
            try:
                yield
                if self.in_transaction(connection):
                    self._end(connection, commit, session.COMMIT)
            except BaseException:
                self._roll_back(connection, rollback)
                raise

    def _begin(self, connection: Connection, begin: str = session.BEGIN) -> None:
        if begin is session.BEGIN and connection.engine is self.user_database:
            # The catalog is read as it is now. This holds for one transaction.
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.exec_driver_sql(begin)

    @staticmethod
    def _end(connection: Connection, statement: str, otherwise: str) -> None:
        """A savepoint that is gone went when the schema was changed: what came after that is Lapse's own to end."""
        try:
            connection.exec_driver_sql(statement)
        except DBAPIError as error:
            if not errors.is_no_savepoint(error):
                raise
            connection.exec_driver_sql(otherwise)

    def _roll_back(self, connection: Connection, rollback: str) -> None:
        """A deadlock has rolled everything back already, and a lost connection needs nothing."""
        if connection.invalidated or not self.in_transaction(connection):
            return
        try:
            self._end(connection, rollback, session.ROLLBACK)
        except DBAPIError:
            # The connection is lost: the pool makes a new one.
            connection.invalidate()

    @contextmanager
    def exclusively(self, connection: Connection) -> Iterator[None]:
        lock = "concat('lapse:', left(sha2(DATABASE(), 256), 32))"
        busy = Retryable("another session is installing Lapse's own tables in this database", hint="try again")
        with self.errors():
            # A transaction keeps what it has read from being altered, and the holder of the lock is about to: each
            # would wait for the other. Making tables would end it as well.
            interrupted = self.in_transaction(connection)
            if interrupted:
                connection.exec_driver_sql(session.COMMIT)
            if not connection.exec_driver_sql(f"SELECT get_lock({lock}, {LOCK_SECONDS})").scalar():
                raise busy
            try:
                yield
            except DBAPIError as error:
                # The lock ends at the node of a Galera cluster: another node may be at it, too.
                if errors.is_already_there(error):
                    raise busy from error
                raise
            finally:
                if not connection.invalidated:
                    connection.exec_driver_sql(f"SELECT release_lock({lock})")
            if interrupted and not self.in_transaction(connection):
                self._begin(connection)

    @contextmanager
    def declaring(self, connection: Connection, name: TableName) -> Iterator[None]:
        """The server's own locks end with every statement that changes the schema, so they do not serve."""
        key = hashlib.sha256(name.name.lower().encode()).hexdigest()[:16]
        lock = f"concat('lapse:', left(sha2(DATABASE(), 256), 32), ':{key}')"
        with self.errors():
            if not connection.exec_driver_sql(f"SELECT get_lock({lock}, {LOCK_SECONDS})").scalar():
                raise Locked(f"another session has been changing the policy of table {name} for {LOCK_SECONDS} s")
            try:
                with self.atomic(connection):
                    yield
            finally:
                if not connection.invalidated:
                    connection.exec_driver_sql(f"SELECT release_lock({lock})")

    def patiently(self, look: Callable[[], R]) -> R:
        """MySQL does not wait for a table that is being made, and does not say that it is not there."""
        until = monotonic() + LOCK_SECONDS
        while True:
            try:
                return look()
            except DBAPIError as error:
                if not errors.is_being_altered(error) or monotonic() > until:
                    raise
                sleep(BRIEF_SECONDS)

    @contextmanager
    def _delete_connection(self, *, by_key_only: bool = True) -> Iterator[Connection]:
        database = self._by_key if by_key_only else self._with_triggers
        with self.errors(), database.connect() as connection:
            yield connection

    @contextmanager
    def reading_tables(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, Retryable) as error:
            if not errors.is_lock_wait(error if isinstance(error, DBAPIError) else error.__cause__):
                raise
            raise Blocked(
                BlockCode.LOCKED,
                "the table stayed locked by another session",
                hint="SHOW FULL PROCESSLIST may show who holds it",
            ) from error

    def translate(self, error: DBAPIError) -> LapseError:
        return errors.translate(error)

    def now(self, connection: Connection) -> datetime:
        return self.clock.now() if self.clock is not None else self.stopwatch(connection)

    def gauges(self, connection: Connection, settings: Settings) -> list[Gauge]:
        limit = settings.replica_lag_limit.approximate_seconds
        privilege = self.flavour.lag_privilege
        return gauges.read(connection, self._replicas, self._threads, lag_limit=limit, lag_privilege=privilege)

    def glance(self, connection: Connection, settings: Settings) -> list[Gauge]:
        return gauges.glance(connection, self._threads)

    def scalar(self, connection: Connection, sql: str) -> float:
        """As a part of a query in a transaction that only reads: settings are no way to the worker's rights."""
        connection.exec_driver_sql(self.flavour.begin_reading)
        try:
            value = connection.exec_driver_sql(f"SELECT * FROM (\n{sql}\n) AS lapse_gate LIMIT 1").scalar()
        finally:
            self._roll_back(connection, "ROLLBACK")
        return float(value) if value is not None else 0.0

    def stopwatch(self, connection: Connection) -> datetime:
        now: datetime = connection.exec_driver_sql("SELECT utc_timestamp(6)").scalar_one()
        return now.replace(tzinfo=UTC)

    # Tables

    @looking
    def describe(self, connection: Connection, name: TableName) -> Table:
        history = server.recent_history(connection)
        sight = inspect.look(connection, name)
        self._last_sight = replace(sight, history=history)
        return sight.table

    def full_name(self, connection: Connection, name: TableName) -> TableName:
        return inspect.full_name(connection, name)

    def full_names(self, connection: Connection, names: Collection[TableName]) -> Mapping[TableName, TableName]:
        known = set(inspect.table_names(connection))
        return {name: name for name in names if name in known}

    @looking
    def describe_all(self, connection: Connection, names: Collection[TableName]) -> Mapping[TableName, Table]:
        return inspect.describe_all(connection, names)

    def comparable(self, connection: Connection, name: TableName) -> TableName:
        return inspect.comparable(connection, name)

    def after_rename(self, old: TableName, new: TableName) -> TableName:
        """A bare name is one of the connection's own database, wherever the table was."""
        return new

    def tables(self, connection: Connection) -> list[TableName]:
        return inspect.table_names(connection)

    def comments(self, connection: Connection) -> list[TableComment]:
        return inspect.comments(connection)

    def set_comment(self, connection: Connection, name: TableName, text: str) -> None:
        connection.exec_driver_sql(f"ALTER TABLE {qualified(name)} COMMENT = {literal(text)}")

    def check_declarer(self, connection: Connection, table: Table) -> None:
        # The server knows what an account may do, its roles included; nothing is executed.
        connection.exec_driver_sql(f"EXPLAIN FORMAT=TRADITIONAL DELETE FROM {qualified(table.name)} WHERE 1 = 0")

    def declarer_grants(self, connection: Connection, name: TableName, *, creates: bool) -> str | None:
        return privileges.declarer_grants(connection, name)

    @contextmanager
    def limited(self, connection: Connection, seconds: float) -> Iterator[None]:
        name, limit = "max_execution_time", str(int(seconds * 1000))
        if self.flavour.is_mariadb:
            name, limit = "max_statement_time", f"{seconds:.3f}"
        with self.errors():
            before = connection.exec_driver_sql(f"SELECT @@SESSION.{name}").scalar_one()
            connection.exec_driver_sql(f"SET SESSION {name} = {limit}")
            try:
                yield
            finally:
                if not connection.invalidated:
                    connection.exec_driver_sql(f"SET SESSION {name} = {before}")

    def place(self, connection: Connection) -> Place:
        return self._place(self.incarnation(connection)[0])

    def whereabouts(self, connection: Connection) -> tuple[datetime, Place]:
        incarnation, now = self.incarnation(connection)
        return (now if self.clock is None else self.clock.now()), self._place(incarnation)

    def _place(self, incarnation: str) -> Place:
        url = self._options.url
        socket = str(url.query.get("unix_socket", ""))
        return Place(incarnation=incarnation, endpoint=endpoint_of(url) + socket)

    def incarnation(self, connection: Connection) -> tuple[str, datetime]:
        """Which running server this is, and its time."""
        return server.incarnation(connection)

    def role(self, connection: Connection) -> str:
        return str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one())

    # From the database's own client

    @property
    def client_version(self) -> int:
        """TiDB has no procedures."""
        return 0 if self.flavour.is_tidb else client.VERSION

    def install_client(self, connection: Connection) -> bool:
        return not self.client_version or client.install(connection, replaces=self.flavour.is_mariadb)

    def remove_client(self, connection: Connection) -> None:
        if self.client_version:
            client.remove(connection)

    def client_advice(self, connection: Connection) -> Advice:
        return client.advice(connection, self.role(connection))

    def missing_client_parts(self, connection: Connection) -> list[str]:
        return client.missing(connection) if self.client_version else []

    def requests_sql(self, connection: Connection) -> str | None:
        return client.requests_sql(connection) if self.client_version else None

    def waiting_requests(self, connection: Connection) -> list[ClientRequest]:
        return client.waiting(connection)

    def claim_request(self, connection: Connection, request: ClientRequest) -> bool:
        return client.claim(connection, request)

    def requested_table(self, connection: Connection, request: ClientRequest) -> tuple[TableName, str]:
        role = self.role(connection)
        # Not in the caller's transaction: MariaDB keeps rights in tables that know no savepoints.
        with self.connection() as reading:
            known = grants.load(reading, inspect.current_database(reading), role)
        return client.requested_table(connection, request, known, role)

    def finish_request(self, connection: Connection, request: ClientRequest, state: str, answer: str) -> None:
        client.finish(connection, request, state, answer)

    # Arming

    @looking
    def arm(self, connection: Connection, declared: BoundPolicy) -> str:
        return armed.arm(connection, declared)

    @looking
    def check_armed(self, connection: Connection, declared: BoundPolicy, text: str) -> str:
        checked = armed.check(connection, declared.table, text, self._sight(declared.table))
        missing = self.missing_parts(connection, declared)
        if missing:
            raise Blocked(
                BlockCode.PARTS_MISSING,
                f"missing in the database: {', '.join(missing)}",
                hint="lapse doctor URL --repair",
            )
        return checked if checked is not None else self.arm(connection, declared)

    def range_column(self, connection: Connection, table: Table) -> str | None:
        return partitions.range_column(connection, table.name)

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

    @looking
    def check(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> list[str]:
        notices = checks.check(connection, declared, previous, self.now(connection))
        if declared.policy.select_as_of_system_time is not None and not self._replicas:
            notices.append(
                "ttl_select_as_of_system_time: rows are found on the replicas in the URL of the worker"
                f" ({session.REPLICAS_OPTION}=host:port), and this URL has none"
            )
        return notices

    def install(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> Table:
        install.install(connection, declared, previous, self.now)
        changed = planned.changes_columns(declared, previous)
        return self.describe(connection, declared.table.name) if changed else declared.table

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        install.uninstall(connection, table, policy)

    def renamed(self, connection: Connection, old: TableName, declared: BoundPolicy) -> None:
        # A trigger follows its table and keeps its own name.
        if declared.policy.expire_after is not None:
            managed.drop_triggers(connection, TableName(old.name, declared.table.name.schema))
        managed.drop_view(connection, old)
        self.install(connection, declared, declared.policy)

    def dropped(self, connection: Connection, name: TableName) -> None:
        managed.drop_view(connection, name)

    @looking
    def missing_parts(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        return managed.missing_parts(connection, declared)

    @looking
    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        definer = privileges.lacking_of_definer(connection, declared)
        outbox = archive.advice(connection, declared)
        return [*definer, *references.advice(declared.table), *advice.indexes(declared), *outbox]

    def privileges(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        wanted = None if self._options.binlog else self.flavour.binlog_privilege
        return privileges.lacking(connection, declared, binlog_privilege=wanted)

    def excess_privileges(self, connection: Connection) -> list[Advice]:
        return privileges.excess(connection)

    # Archives

    @property
    def archives(self) -> Dialect:
        return archive.DIALECT

    @property
    def cells(self) -> Cells:
        from lapse.engines.mysql import cells

        return cells

    @property
    def packs(self) -> Packs:
        from lapse.engines.mysql import packs

        return packs

    def archive_table(self, connection: Connection, name: TableName) -> ArchiveTable:
        return ArchiveTable(self.archives, name, has_packs=archive.has_packs(connection, name))

    def archive_shape(self, connection: Connection, name: TableName, table: TableName) -> ArchiveShape | None:
        return archive.shape(connection, name)

    def column_types(self, connection: Connection, name: TableName) -> Mapping[str, str]:
        return archive.columns(connection, name)

    @contextmanager
    def restoring(self, connection: Connection, table: Table) -> Iterator[None]:
        with session.keeping_values(connection):
            yield

    # Deleting

    def condition(self, connection: Connection, declared: BoundPolicy, cutoff: datetime) -> Condition:
        return condition.at(connection, declared, cutoff)

    @looking
    def choose_path(self, connection: Connection, declared: BoundPolicy, cutoff: datetime, found: Condition) -> Path:
        path = paths.choose(connection, declared, found)
        if self._reader(connection, declared) is None or path.kind is PathKind.PARTITION:
            return path
        return replace(path, evidence=f"{path.evidence}; rows are found on a replica ({', '.join(self._replicas)})")

    def _reader(self, connection: Connection, declared: BoundPolicy) -> Reader | None:
        staleness = declared.policy.select_as_of_system_time
        if staleness is None or not self._replicas:
            return None
        number = int(connection.exec_driver_sql("SELECT @@server_id").scalar_one())
        return Reader(self._read_pools, number, staleness.approximate_seconds)

    @looking
    def clean_leaves(
        self,
        connection: Connection,
        declared: BoundPolicy,
        names: Sequence[TableName],
        cutoff: datetime,
        *,
        until: datetime,
    ) -> dict[TableName, datetime]:
        if declared.table.kind is not TableKind.PARTITIONED or declared.policy.partitions:
            return {}
        found = condition.own(self.condition(connection, declared, cutoff))
        clean = partitions.unexpired(connection, declared.table.name, found)
        # Nothing tells cheaply whether a leaf has other bounds the next time.
        return {name: cutoff for name in names if name in clean}

    @looking
    def planned_rows(self, connection: Connection, target: Target) -> int:
        return self._size(connection, target.declared.table).rows or 0

    @looking
    def estimate_rows(self, connection: Connection, table: Table) -> int:
        return paths.estimate_rows(connection, table.name)

    def footprints(self, connection: Connection, names: Sequence[TableName]) -> dict[TableName, Footprint]:
        return paths.footprints(connection, names)

    def covered(self, span: KeyRange, cursor: str | None) -> float | None:
        numbers = KeyRange(start=keys.leading_number(span.start), end=keys.leading_number(span.end))
        return super().covered(numbers, None if cursor is None else keys.leading_number(cursor) or "")

    @looking
    def split(self, connection: Connection, target: Target, pieces: int, *, looks: bool = True) -> list[KeyRange]:
        table = target.declared.table
        walk, size = partial(self._walk, connection, table), partial(self._size, connection, table)
        reader = self._reader(connection, target.declared)
        return split.ranges(connection, target, pieces, walk, size, reader, looks=looks)

    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        table = target.declared.table
        if target.path.kind is PathKind.PARTITION:
            return PartitionDropper(
                table.name,
                connect=self._delete_connection,
                atomic=self.atomic,
                droppable=partial(self._droppable, target),
                rows=partial(self._row_deleter, target, span, cursor),
                limits_statements=self.flavour.is_mariadb,
                when_empty=target.declared.policy.row_by_row,
            )
        return self._row_deleter(target, span, cursor)

    def _droppable(self, target: Target, connection: Connection) -> bool:
        """Asked with the table locked, so it is looked at as it is now."""
        whole = self.describe(connection, target.declared.table.name)
        leaf = self.leaf(connection, whole, target.declared.table.name)
        if leaf is None:
            raise Drift(
                f"partition {target.declared.table.name.partition} of table {whole.name} does not exist any more"
            )
        if target.armed:
            armed.refuse_changed(connection, whole, target.armed)
        declared = replace(target.declared, table=leaf)
        block_guess(declared, zones.in_doubt(connection, declared))
        found = condition.at(connection, declared, target.cutoff)
        return partitions.whole_range_expired(connection, declared, found, seconds=partitions.CHECK_SECONDS)

    def _row_deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        table = target.declared.table
        if target.secret is not None:
            require(table, can_be_told)
        with self.connection() as connection:
            # First of all: a column that comes while the rest is asked is noticed then.
            confirm = archive.confirmation(connection, target.declared)
            walk = self._walk(connection, table)
            skips_locked = table.storage != myrocks.ENGINE
            plan = TaskSql(
                source=source(table.name),
                key=walk,
                condition=target.condition.sql,
                of_the_row=target.condition.of_the_row,
                surplus=condition.lasting_surplus(target.declared, is_mariadb=self.flavour.is_mariadb),
                action=archive.action(
                    connection,
                    target.declared,
                    target.job,
                    skips_locked=skips_locked and self.flavour.can_refuse_to_wait,
                ),
                packer=self._packer(connection, target),
                comment=f"/* lapse ttl {''.join(filter(str.isalnum, table.name.name))} */",
                free=references.unreferenced(table),
                free_in_delete=self.flavour.reads_the_table_it_deletes_from or not references.refers_to_itself(table),
                refuses_to_wait=self.flavour.can_refuse_to_wait,
                skips_locked=skips_locked,
                locks_first=self.flavour.is_tidb,
                rows_per_row=references.rows_per_row(connection, table),
                pinned=walk.pinned(table.name.name) if self.flavour.picks_before_it_deletes else "",
                keeps_keys=self._keeps_keys(target, walk),
                tells_deleted=self.flavour.is_mariadb,
                counts_rows=bool(target.declared.policy.select_rate_limit),
            )
            index = target.path.index
            along = keys.load(connection, table.name, index, walk) if index is not None else None
            freely = partial(self._delete_connection, by_key_only=False)
            has_triggers = inspect.has_triggers(connection, table.name)
            self._refuse_unlogged_archive(target.declared)
            watch = self._watch(connection, target, walk)
            reader = self._reader(connection, target.declared)
            quiet = tidb_locks.quiet(connection, table, self._threads) if self.flavour.is_tidb else None
        how: dict[str, Any] = {
            "connect": freely if has_triggers else self._delete_connection,
            "connect_freely": freely,
            "atomic": self.atomic,
            "kill": self._kill,
            "watch": watch,
            "look_again": partial(self._look_again, watch, table.name.whole),
            "confirm": confirm,
            "noter": None if target.secret is None else Noter(secret=target.secret, walk=walk),
            "reader": reader,
            "quiet": quiet,
        }
        deleter: Deleter
        if target.path.kind is PathKind.INDEX and along is not None:
            deleter = IndexDeleter(plan, along, span, cursor, **how)
        else:
            deleter = KeyDeleter(plan, span, cursor, **how)
        deleter.is_steady = not has_triggers
        return deleter

    def _packer(self, connection: Connection, target: Target) -> Packer | None:
        if file_url(target.declared.policy.archive or "") is None:
            return None
        from lapse.engines.mysql import packs

        return packs.packer(connection, target.declared, target.job)

    def asked_key(self, connection: Connection, table: Table, values: Sequence[str]) -> AskedKey:
        return asked(ledger_keys.parts(connection, table, values))

    def _keeps_keys(self, target: Target, walk: Walk) -> bool:
        """Where rows are picked before they are deleted, and each of them by itself says whether it goes."""
        alone = not references.unreferenced(target.declared.table) and target.declared.policy.keep_last is None
        return self.flavour.picks_before_it_deletes and alone and kept.can_keep(walk)

    def _walk(self, connection: Connection, table: Table) -> Walk:
        """Along the key. A plan and the first task after it, which know the same description, ask the server once."""
        if (sight := self._sight(table)) is not None and sight.walk is not None:
            return sight.walk
        known, walk = self._last_walk
        if known is not table:
            walk = keys.load(connection, table.name, inspect.key_index(table))
            self._last_walk = table, walk
        assert walk is not None
        return walk

    def _sight(self, table: Table) -> Sight | None:
        """What else was seen of a table that has been described just now."""
        sight = self._last_sight
        return sight if sight is not None and sight.table is table else None

    def _size(self, connection: Connection, table: Table) -> Footprint:
        """As the server thinks, and as a plan asks once."""
        if (sight := self._sight(table)) is not None:
            return sight.size
        known, size = self._last_size
        if known is not table:
            size = paths.footprint(connection, table.name)
            self._last_size = table, size
        return size

    def _refuse_unlogged_archive(self, declared: BoundPolicy) -> None:
        if declared.policy.archive is not None and not self._options.binlog:
            raise Blocked(
                BlockCode.UNSUPPORTED,
                "lapse_binlog=off in the URL would keep archived rows from the replicas",
                hint="leave it out of the URL of workers that archive",
            )

    def _watch(self, connection: Connection, target: Target, walk: Walk) -> Watch:
        as_well = not self.flavour.is_mariadb
        return armed.Watch(connection, target.declared, target.armed, walk, columns_as_well=as_well)

    def _look_again(self, watch: Watch, name: TableName) -> None:
        with self.connection() as connection:
            watch.look_again(connection, self.describe(connection, name))

    def _kill(self, thread: int) -> None:
        with self.connection() as connection:
            try:
                connection.exec_driver_sql(f"KILL QUERY {int(thread)}")
            except DBAPIError:
                # The session ended by itself in the meantime.
                return

    @looking
    def survey(self, connection: Connection, target: Target) -> Survey:
        return forecast.survey(connection, target)

    @looking
    def expiring(
        self, connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        return forecast.expiring(connection, declared, instants, exact=exact)

    @looking
    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        return forecast.sample(connection, target, count)

    def consequences(self, connection: Connection, target: Target, expired: int, seconds: float | None) -> Consequences:
        return follow(MysqlKin(self, connection, target), expired, seconds)
