"""PostgreSQL: heap blocks in order, row locks respected, everything inside short transactions."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from time import monotonic
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
    Condition,
    Consequences,
    Deleter,
    Engine,
    Expiring,
    Footprint,
    Gauge,
    LeafChanges,
    Place,
    Survey,
    TableComment,
    Target,
)
from lapse.engines.cells import Cells
from lapse.engines.consequences import follow
from lapse.engines.endpoint import endpoint_of
from lapse.engines.features import Features
from lapse.engines.postgres import (
    advice,
    archive,
    calling,
    checks,
    client,
    condition,
    errors,
    footprints,
    forecast,
    function,
    gauges,
    hiding,
    home,
    inspect,
    install,
    ledger_keys,
    locks,
    managed,
    partition_state,
    partitions,
    paths,
    privileges,
    references,
    replicas,
    session,
    showcreate,
    split,
    upkeep,
    zones,
)
from lapse.engines.postgres.blocks import BlockDeleter
from lapse.engines.postgres.consequences import PostgresKin
from lapse.engines.postgres.delete import IndexDeleter, Work
from lapse.engines.postgres.names import CATALOG_SCHEMA, SAFE_PATH, SEE_EXPIRED, literal, own_name, relation
from lapse.engines.postgres.partition_drop import PartitionDeleter
from lapse.engines.postgres.replicas import Reader
from lapse.engines.postgres.session import TransactionStatus
from lapse.engines.restoring import Dialect
from lapse.engines.values import ClientRequest, Stray
from lapse.engines.zones import block_guess
from lapse.errors import Blocked, Drift, LapseError, NotPermitted, Unsupported
from lapse.model.job import KeyRange, Path, PathKind
from lapse.model.ledger_keys import AskedKey
from lapse.model.policy import Policy
from lapse.model.settings import Settings
from lapse.model.table import Table, TableKind, TableName

MINIMUM_VERSION = 14
FACTS_SECONDS = 1.0
"""What is asked about a table to plan its job serves its first task, too, which follows at once."""
_READING = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres", SEE_EXPIRED: "on"}
_WRITING = {"lock_timeout": f"{locks.CATALOG_SECONDS:g}s"}
_LOOKS = "lapse_looks"
"""In a connection's info: its transaction is one look, in which times are read and expired rows are seen."""
_INSTALL_LOCK = 0x1A95E
"""Of the advisory lock that lets one process at a time create the catalog."""
_DECLARING_LOCK = 0x1A95F
"""Of those that let one session at a time declare a policy on a table."""


P = ParamSpec("P")
R = TypeVar("R")


def looking(
    method: Callable[Concatenate[PostgresEngine, Connection, P], R],
) -> Callable[Concatenate[PostgresEngine, Connection, P], R]:
    """For what reads tables, or asks the server about them, which takes locks as well."""

    @wraps(method)
    def briefly(self: PostgresEngine, connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._looking(connection):
            return method(self, connection, *args, **kwargs)

    return briefly


class PostgresEngine(Engine):
    name = "postgres"
    dialect = "postgres"
    catalog_schema = CATALOG_SCHEMA
    features = Features(
        transactional_ddl=True,
        time_types=True,
        table_comments=True,
        row_security=True,
        partitions=True,
        row_locks=True,
        concurrent_writers=True,
        keeps_columns=False,
        failover_looks_like_a_copy=False,
        judges_by_own_clock=True,
        hashes_keys=True,
        target_seconds=0.02,
        short_seconds=0.001,
        gentle_share=0.17,
        rows_per_task=500_000,
        client_requests=True,
        describes_together=True,
        counts_inserts=True,
    )

    def __init__(self, url: URL, clock: Clock | None = None) -> None:
        url, standbys = replicas.read_url(url)
        super().__init__(session.open_database(url), clock)
        self.user_database = session.open_for_users(url)
        self._standbys = replicas.open_pools(standbys)
        self._version_checked = False
        self._facts: tuple[calling.TableFacts | None, BoundPolicy | None, float] = None, None, 0.0
        """What was asked about the table for which tasks were cut last, until when it holds."""

    @property
    def pools(self) -> Sequence[Database]:
        return (self.database, *self._standbys.values())

    # Sessions

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with super().connection() as connection:
            self._check_version(connection)
            yield connection

    def _check_version(self, connection: Connection) -> None:
        if self._version_checked:
            return
        version = int(connection.exec_driver_sql("SELECT current_setting('server_version_num')").scalar_one()) // 10000
        if version < MINIMUM_VERSION:
            raise Unsupported(f"this server is PostgreSQL {version}; Lapse needs {MINIMUM_VERSION} or newer")
        self._version_checked = True

    def in_transaction(self, connection: Connection) -> bool:
        return session.status(connection) in (TransactionStatus.IN_TRANSACTION, TransactionStatus.IN_ERROR)

    @contextmanager
    def transaction_on(self, connection: Connection, *, durable: bool = True) -> Iterator[None]:
        lasting = _WRITING if durable else _WRITING | {"synchronous_commit": "off"}
        with self.errors(), session.transaction(connection, lasting):
            yield

    @contextmanager
    def atomic(self, connection: Connection) -> Iterator[None]:
        how = session.BEGIN if connection.engine is self.database else session.BEGIN_FOR_USER
        nested = self.in_transaction(connection)
        with self.errors(), session.savepoint(connection) if nested else session.transaction(connection, how=how):
            yield

    @contextmanager
    def declaring(self, connection: Connection, name: TableName) -> Iterator[None]:
        with self.atomic(connection):
            key = zlib.crc32(name.name.lower().encode()) - (1 << 31)
            connection.exec_driver_sql(f"SELECT pg_catalog.pg_advisory_xact_lock({_DECLARING_LOCK}, {key})")
            yield

    @contextmanager
    def bookkeeping(self, connection: Connection) -> Iterator[None]:
        with self.atomic(connection), session.bookkeeping(connection):
            yield

    def begin_implicitly(self, raw: Any, verb: str) -> None:
        session.begin_implicitly(raw, verb)

    def translate(self, error: DBAPIError) -> LapseError:
        return errors.translate(error, self.database.url.username)

    def now(self, connection: Connection) -> datetime:
        if self.clock is not None:
            return self.clock.now()
        began = session.began_at(connection)
        if began is not None:
            return began.astimezone(UTC)
        now: datetime = connection.exec_driver_sql("SELECT now()").scalar_one()
        return now.astimezone(UTC)

    def stopwatch(self, connection: Connection) -> datetime:
        now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        return now.astimezone(UTC)

    @contextmanager
    def _reading(self, connection: Connection) -> Iterator[None]:
        """A transaction that is shown expired rows, with times written the way Lapse reads them."""
        if connection.info.get(_LOOKS):
            with self.errors():
                yield
        elif self.in_transaction(connection):
            with self.errors(), session.savepoint(connection, before=session.set_locally(_READING)):
                yield
        else:
            with self.errors(), locks.given_up_soon(), session.transaction(connection, _READING | locks.BRIEFLY):
                yield

    @contextmanager
    def _looking(self, connection: Connection) -> Iterator[None]:
        """A transaction that does not wait long for a lock; in that of a caller, which has its own, nothing changes."""
        if self.in_transaction(connection):
            yield
        else:
            with self.errors(), locks.given_up_soon(), session.transaction(connection, locks.BRIEFLY):
                yield

    @contextmanager
    def one_look(self, connection: Connection) -> Iterator[None]:
        if self.in_transaction(connection):
            yield
            return
        with self._reading(connection):
            connection.info[_LOOKS] = True
            try:
                yield
            finally:
                connection.info.pop(_LOOKS, None)

    # The catalog's home

    @contextmanager
    def exclusively(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql(f"SELECT pg_catalog.pg_advisory_xact_lock({_INSTALL_LOCK})")
        yield

    def prepare_catalog(self, connection: Connection) -> None:
        home.prepare(connection)

    def has_former_catalog(self, connection: Connection) -> bool:
        return home.has_former_catalog(connection)

    def check_catalog(self, connection: Connection) -> None:
        home.check(connection)

    @property
    def client_version(self) -> int:
        return client.VERSION

    def install_client(self, connection: Connection) -> bool:
        return client.install(connection)

    def client_advice(self, connection: Connection) -> Advice:
        return client.advice(connection)

    def remove_client(self, connection: Connection) -> None:
        client.remove(connection)

    def requests_sql(self, connection: Connection) -> str | None:
        return client.requests_sql(connection)

    def waiting_requests(self, connection: Connection) -> list[ClientRequest]:
        return client.waiting(connection)

    def claim_request(self, connection: Connection, request: ClientRequest) -> bool:
        return client.claim(connection, request)

    def requested_table(self, connection: Connection, request: ClientRequest) -> tuple[TableName, str]:
        return client.requested_table(connection, request)

    def finish_request(self, connection: Connection, request: ClientRequest, state: str, answer: str) -> None:
        client.finish(connection, request, state, answer)

    def gauges(self, connection: Connection, settings: Settings) -> list[Gauge]:
        return gauges.read(connection, settings)

    def table_gauges(self, connection: Connection, settings: Settings, names: Collection[TableName]) -> list[Gauge]:
        return gauges.read_tables(connection, settings, names)

    # Tables

    @looking
    def describe(self, connection: Connection, name: TableName) -> Table:
        return inspect.describe(connection, name)

    @looking
    def full_name(self, connection: Connection, name: TableName) -> TableName:
        return inspect.full_name(connection, name)

    @looking
    def full_names(self, connection: Connection, names: Collection[TableName]) -> Mapping[TableName, TableName]:
        return inspect.full_names(connection, names)

    @looking
    def describe_all(self, connection: Connection, names: Collection[TableName]) -> Mapping[TableName, Table]:
        return inspect.describe_all(connection, names)

    def tables(self, connection: Connection) -> list[TableName]:
        return inspect.table_names(connection)

    @looking
    def range_column(self, connection: Connection, table: Table) -> str | None:
        return partitions.range_column(connection, table)

    def leaves(self, connection: Connection, table: Table) -> list[Table]:
        return partitions.leaves(connection, table)

    def leaf_changes(
        self, connection: Connection, table: Table, *, policy_id: int, version: int, now: datetime
    ) -> LeafChanges | None:
        if table.kind is not TableKind.PARTITIONED:
            return None
        with self._looking(connection):
            return partitions.changes(connection, table, policy_id=policy_id, version=version, now=now)

    def leaf_names(self, connection: Connection, table: Table) -> list[TableName]:
        if table.kind is not TableKind.PARTITIONED:
            return [table.name]
        with self._looking(connection):
            return partitions.leaf_names(connection, table)

    @looking
    def leaf(self, connection: Connection, table: Table, name: TableName) -> Table | None:
        return partitions.leaf(connection, table, name)

    @looking
    def kin(self, connection: Connection, name: TableName) -> frozenset[TableName]:
        return partitions.kin(connection, name)

    def standalone_name(self, leaf: TableName) -> TableName | None:
        return None if leaf.partition is None else own_name(leaf)

    def comments(self, connection: Connection) -> list[TableComment]:
        return inspect.comments(connection)

    def set_comment(self, connection: Connection, name: TableName, text: str) -> None:
        connection.exec_driver_sql(f"COMMENT ON TABLE {relation(name)} IS {literal(text) if text else 'NULL'}")

    def check_declarer(self, connection: Connection, table: Table) -> None:
        inspect.check_declarer(connection, table.name)

    def declarer_grants(self, connection: Connection, name: TableName, *, creates: bool) -> str | None:
        if not creates:
            with self.bookkeeping(connection):
                inspect.check_declarer(connection, self.full_name(connection, name))
        return privileges.declarer_grants(connection, name.schema, creates=creates)

    @contextmanager
    def briefly(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql("; ".join(session.set_locally(locks.BRIEFLY)))
        yield

    @contextmanager
    def limited(self, connection: Connection, seconds: float) -> Iterator[None]:
        limits = locks.BRIEFLY | {"statement_timeout": f"{int(seconds * 1000)}ms"}
        with self.errors(), locks.given_up_soon(), session.transaction(connection, limits):
            yield

    def place(self, connection: Connection) -> Place:
        return self.whereabouts(connection)[1]

    def whereabouts(self, connection: Connection) -> tuple[datetime, Place]:
        """A server that was copied with all its files was started at another time than the one it was copied from."""
        now, incarnation = connection.exec_driver_sql(
            "SELECT pg_catalog.now(), extract(epoch FROM pg_catalog.pg_postmaster_start_time()) || '/' || oid"
            " FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"
        ).one()
        here = Place(incarnation=str(incarnation), endpoint=endpoint_of(self.database.url))
        return (now.astimezone(UTC) if self.clock is None else self.clock.now()), here

    def table_id(self, connection: Connection, table: Table) -> str | None:
        if table.id is not None:
            return table.id
        found = inspect.relation_row(connection, table.name)
        return None if found is None else str(found["oid"])

    def role(self, connection: Connection) -> str | None:
        return str(connection.exec_driver_sql("SELECT current_user").scalar_one())

    @looking
    def create_statement(self, connection: Connection, table: Table) -> str:
        return showcreate.create_statement(connection, table)

    # Policies

    @looking
    def check(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> list[str]:
        notices = checks.check(self, connection, declared, previous)
        if declared.policy.select_as_of_system_time is not None and not self._standbys:
            notices.append(
                "ttl_select_as_of_system_time: rows are found on the standbys in the URL of the worker"
                f" ({replicas.REPLICAS_OPTION}=host:port), and this URL has none"
            )
        return notices

    def install(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> Table:
        install.install(connection, declared, previous, self.now)
        changed = planned.changes_columns(declared, previous)
        table = self.describe(connection, declared.table.name) if changed else declared.table
        self.rearm(connection, replace(declared, table=table))
        return table

    def renew_parts(self, connection: Connection, declared: BoundPolicy) -> None:
        """Only where all of it is in place: what was taken away meanwhile is for a person to judge."""
        table, policy = declared.table, declared.policy
        if policy.expire_after is not None and managed.missing_parts(connection, table, policy, former=True):
            return
        with self.atomic(connection):
            self.install(connection, declared, policy)

    def rearm(self, connection: Connection, declared: BoundPolicy) -> None:
        try:
            with self.atomic(connection):
                function.install(connection, declared)
                ledger_keys.install(connection, declared)
        except NotPermitted as error:
            raise function.explained(error, declared) from error

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        self._bring_back(connection, table.name)
        # One who may not act for the owner, as a worker that follows a comment, leaves it to the owner's doctor.
        with suppress(NotPermitted), self.atomic(connection):
            function.drop(connection, table)
        install.uninstall(connection, table, policy)

    def _bring_back(self, connection: Connection, name: TableName) -> None:
        """What jobs have detached and not yet dropped becomes a partition again; what cannot is found by `doctor`."""
        for each in partition_state.all_from(connection, name):
            with suppress(LapseError), self.atomic(connection):
                partition_state.give_up(connection, each)

    def strays(self, connection: Connection) -> list[Stray]:
        with self._reading(connection):
            return [*partition_state.strays(connection), *function.strays(connection)]

    def repair(self, connection: Connection, stray: Stray) -> None:
        partition_state.repair(connection, stray)

    def renamed(self, connection: Connection, old: TableName, declared: BoundPolicy) -> None:
        hiding.drop_view(connection, old)
        self.install(connection, declared, declared.policy)

    def dropped(self, connection: Connection, name: TableName) -> None:
        hiding.drop_view(connection, name)
        function.drop_orphans(connection, managed.STAMP_SOURCE)

    @looking
    def missing_parts(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        table, policy = declared.table, declared.policy
        missing = managed.missing_parts(connection, table, policy) if policy.expire_after is not None else []
        missing += archive.missing(connection, declared)
        if not missing:
            missing = function.missing_parts(connection, declared)
        return [*missing, *hiding.missing_parts(connection, declared)]

    @looking
    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        return [
            *references.advice(connection, declared.table),
            *advice.indexes(connection, declared),
            *advice.unused(connection, declared),
        ]

    @looking
    def upkeep(self, connection: Connection, declared: BoundPolicy, deleted_per_day: float) -> list[Advice]:
        """Of partitions by time, nearly all rows are deleted in one: the rate of the table is that of the leaf."""
        leaves = self.leaves(connection, declared.table)
        return [found for leaf in leaves for found in upkeep.advice(connection, leaf, deleted_per_day)]

    @looking
    def space(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        found = (upkeep.report(connection, leaf) for leaf in self.leaves(connection, declared.table))
        return [text for text in found if text is not None]

    @looking
    def privileges(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        lacking = (
            each
            for leaf in self.leaves(connection, declared.table) or [declared.table]
            for each in privileges.lacking(connection, leaf, declared.policy)
        )
        # A table's batch function is that of all its leaves.
        return list({each.statement: each for each in lacking}.values())

    # Archives

    @property
    def archives(self) -> Dialect:
        return archive.DIALECT

    @property
    def cells(self) -> Cells:
        from lapse.engines.postgres import cells

        return cells

    def archive_shape(self, connection: Connection, name: TableName, table: TableName) -> ArchiveShape | None:
        return archive.shape(connection, name, table)

    def column_types(self, connection: Connection, name: TableName) -> Mapping[str, str]:
        return archive.columns(connection, name)

    @contextmanager
    def outbox(self, name: TableName) -> Iterator[Connection]:
        with self.transaction(durable=False) as connection:
            archive.lock_outbox(connection, name)
            yield connection

    def lock_outbox(self, connection: Connection, name: TableName) -> None:
        archive.lock_outbox(connection, name)

    @contextmanager
    def restoring(self, connection: Connection, table: Table) -> Iterator[None]:
        archive.refuse_other_role(connection, table.name)
        archive.use_path(connection, connection.info[session.DEFAULT_PATH])
        yield
        archive.use_path(connection, SAFE_PATH)

    # Deleting

    def condition(self, connection: Connection, declared: BoundPolicy, cutoff: datetime) -> Condition:
        return condition.at(declared, cutoff)

    def choose_path(self, connection: Connection, declared: BoundPolicy, cutoff: datetime, found: Condition) -> Path:
        block_guess(declared, zones.in_doubt(connection, declared))
        path = paths.path_at_first_sight(declared, condition.own(found))
        if path is None:
            with self._reading(connection):
                path = paths.choose_path(connection, declared, cutoff, condition.own(found))
        if path.kind is not PathKind.PHYSICAL or self._reader(declared) is None:
            return path
        return replace(path, evidence=f"{path.evidence}; blocks are found on a standby ({', '.join(self._standbys)})")

    def _reader(self, declared: BoundPolicy) -> Reader | None:
        staleness = declared.policy.select_as_of_system_time
        if staleness is None or not self._standbys:
            return None
        return Reader(self._standbys, staleness.approximate_seconds)

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
        with self._looking(connection):
            return partitions.clean(connection, declared.table, names, found, cutoff, until=until)

    @looking
    def estimate_rows(self, connection: Connection, table: Table) -> int:
        return paths.estimate_rows(connection, table)

    def footprints(self, connection: Connection, names: Sequence[TableName]) -> dict[TableName, Footprint]:
        try:
            with self._looking(connection):
                return footprints.read(connection, names)
        except Blocked:
            # One was locked just now.
            return footprints.read(connection, names, measured=False)

    def covered(self, span: KeyRange, cursor: str | None) -> float | None:
        """Ranges count blocks; a cursor has the line in its block, too."""
        return super().covered(span, None if cursor is None else cursor.partition(",")[0])

    def planned_rows(self, connection: Connection, target: Target) -> int:
        return self._facts_of(connection, target).heap.rows

    def split(self, connection: Connection, target: Target, pieces: int, *, looks: bool = True) -> list[KeyRange]:
        if split.is_whole(target):
            return [KeyRange()]
        with self._reading(connection):
            # Where tasks look at a standby, the primary is not looked through.
            looks = looks and self._reader(target.declared) is None
            return split.ranges(connection, target, pieces, self._facts_of(connection, target), looks=looks)

    def _facts_of(self, connection: Connection, target: Target) -> calling.TableFacts:
        """As they were a moment ago: the plan of a job and its first task ask once."""
        known, of, until = self._facts
        if known is None or of is not target.declared or monotonic() > until:
            with self._reading(connection):
                known = calling.facts(connection, target.declared)
            self._facts = known, target.declared, monotonic() + FACTS_SECONDS
        return known

    def asked_key(self, connection: Connection, table: Table, values: Sequence[str]) -> AskedKey:
        return ledger_keys.asked(connection, table, values)

    def guessed_keys(self, values: Sequence[str]) -> Sequence[AskedKey]:
        return ledger_keys.guessed(values)

    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        table, path = target.declared.table, target.path
        with self.connection() as connection:
            found, heap = calling.require(target.declared, self._facts_of(connection, target))
        work = Work(
            table=table,
            function=found,
            cutoff=target.cutoff,
            threshold=condition.threshold(target.declared, target.cutoff),
            span=span,
            cursor=cursor,
            connect=self.connection,
            holding=tuple(heap.holding),
            is_held=bool(table.holding_references),
            keeps_last=target.declared.policy.keep_last is not None,
            statement_ms=max(1, int(1000 * target.statement_seconds)),
            rows_per_block=heap.rows_per_block,
            has_row_triggers=heap.has_row_triggers,
            is_keyed=target.declared.policy.ledger_keys,
            message=_message(target) if heap.is_decoded else None,
            origin=target.declared.policy.replication_origin,
            job=target.job,
            reader=self._reader(target.declared),
        )
        if path.kind is PathKind.PARTITION:
            return PartitionDeleter(work, target)
        if path.kind is PathKind.INDEX:
            if all(index.name != path.index for index in table.indexes):
                raise Drift(f"index {path.index}, with which the job was planned, does not exist any more")
            return IndexDeleter(work)
        return BlockDeleter(work)

    def survey(self, connection: Connection, target: Target) -> Survey:
        with self._reading(connection):
            return forecast.survey(connection, target)

    def expiring(
        self, connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        with self._reading(connection):
            return forecast.expiring(connection, declared, instants, exact=exact)

    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        with self._reading(connection):
            return forecast.sample(connection, target, count)

    def consequences(self, connection: Connection, target: Target, expired: int, seconds: float | None) -> Consequences:
        with self._reading(connection):
            return follow(PostgresKin(self, connection, target), expired, seconds)


def _message(target: Target) -> str:
    own = own_name(target.declared.table.name)
    return json.dumps({"ttl": f"{own.schema}.{own.name}", "cutoff": target.cutoff.isoformat()})
