"""PostgreSQL: heap blocks in order, row locks respected, everything inside short transactions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError

from lapse.clock import Clock
from lapse.engines.base import Advice, Declared, Deleter, Engine, Expiring, Footprint, Gauge, Survey, Target
from lapse.engines.features import Features
from lapse.engines.postgres import (
    advice,
    checks,
    condition,
    forecast,
    gauges,
    hiding,
    inspect,
    leaving,
    locks,
    managed,
    partitions,
    session,
    showcreate,
    survey,
    upkeep,
)
from lapse.engines.postgres.blocks import BlockDeleter
from lapse.engines.postgres.delete import IndexDeleter, Work
from lapse.engines.postgres.dropping import PartitionDeleter
from lapse.engines.postgres.names import CATALOG_SCHEMA, SEE_EXPIRED, own_name, relation
from lapse.engines.postgres.session import TransactionStatus
from lapse.errors import Drift, LapseError, Unsupported
from lapse.model.job import KeyRange, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table, TableName

MINIMUM_VERSION = 14
_READING = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres", SEE_EXPIRED: "on"}
_INSTALL_LOCK = 0x1A95E
"""Of the advisory lock that lets one process at a time create the catalog."""


class PostgresEngine(Engine):
    name = "postgres"
    dialect = "postgres"
    catalog_schema = CATALOG_SCHEMA
    features = Features(
        transactional_ddl=True,
        time_types=True,
        table_comments=True,
        hidden_columns=False,
        row_security=True,
        partitions=True,
        row_locks=True,
        concurrent_writers=True,
        replicas=False,
        failover_looks_like_a_copy=False,
        target_seconds=0.02,
        short_seconds=0.002,
        gentle_share=0.2,
        rows_per_task=500_000,
    )

    def __init__(self, url: URL, clock: Clock | None = None) -> None:
        super().__init__(session.open_database(url), clock)
        self._version_checked = False

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
    def transaction(self, *, durable: bool = True) -> Iterator[Connection]:
        lasting = {} if durable else {"synchronous_commit": "off"}
        with self.connection() as connection, self.errors(), session.transaction(connection, lasting):
            yield connection

    @contextmanager
    def atomic(self, connection: Connection) -> Iterator[None]:
        nested = self.in_transaction(connection)
        with self.errors(), session.savepoint(connection) if nested else session.transaction(connection):
            yield

    def begin_implicitly(self, raw: Any, verb: str) -> None:
        session.begin_implicitly(raw, verb)

    def translate(self, error: DBAPIError) -> LapseError:
        return session.translate(error)

    def now(self, connection: Connection) -> datetime:
        if self.clock is not None:
            return self.clock.now()
        now: datetime = connection.exec_driver_sql("SELECT now()").scalar_one()
        return now.astimezone(UTC)

    def stopwatch(self, connection: Connection) -> datetime:
        now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        return now.astimezone(UTC)

    @contextmanager
    def _reading(self, connection: Connection) -> Iterator[None]:
        """A transaction that is shown expired rows, with times written the way Lapse reads them."""
        if self.in_transaction(connection):
            with self.atomic(connection):
                connection.exec_driver_sql("; ".join(session.set_locally(_READING)))
                yield
        else:
            with self.errors(), session.transaction(connection, _READING):
                yield

    # The catalog's home

    def prepare_catalog(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_INSTALL_LOCK})")
        if connection.exec_driver_sql(f"SELECT to_regnamespace('{CATALOG_SCHEMA}')").scalar() is None:
            connection.exec_driver_sql(f"CREATE SCHEMA {CATALOG_SCHEMA}")
        managed.ensure_function(connection)

    def gauges(self, connection: Connection) -> list[Gauge]:
        return gauges.read(connection)

    # Tables

    def describe(self, connection: Connection, name: TableName) -> Table:
        return inspect.describe(connection, name)

    def full_name(self, connection: Connection, name: TableName) -> TableName:
        return inspect.full_name(connection, name)

    def tables(self, connection: Connection) -> list[TableName]:
        return inspect.table_names(connection)

    def leaves(self, connection: Connection, table: Table) -> list[Table]:
        return partitions.leaves(connection, table)

    def leaf_names(self, connection: Connection, table: Table) -> list[TableName]:
        return partitions.leaf_names(connection, table)

    def leaf(self, connection: Connection, table: Table, partition: str) -> Table | None:
        return partitions.leaf(connection, table, partition)

    def standalone_name(self, leaf: TableName) -> TableName | None:
        return None if leaf.partition is None else own_name(leaf)

    def comments(self, connection: Connection) -> list[tuple[TableName, str]]:
        return inspect.comments(connection)

    def identity(self, connection: Connection) -> str | None:
        """A failover keeps both numbers, a restore from a dump or a new cluster does not."""
        found = connection.exec_driver_sql(
            "SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || oid"
            " FROM pg_catalog.pg_database WHERE datname = current_database()"
        ).scalar_one()
        return str(found)

    def create_statement(self, connection: Connection, table: Table) -> str:
        return showcreate.create_statement(connection, table)

    # Policies

    def check(self, connection: Connection, declared: Declared, previous: Policy | None) -> list[str]:
        return checks.check(self, connection, declared, previous)

    def install(self, connection: Connection, declared: Declared, previous: Policy | None) -> None:
        table, policy = declared.table, declared.policy
        managed_before = previous is not None and previous.expire_after is not None
        hid_before = previous is not None and previous.hide_expired != "off"
        if not (policy.expire_after or managed_before or policy.hide_expired != "off" or hid_before):
            return
        locks.lock_table(connection, relation(table.name))
        if managed_before and policy.expire_after is None:
            hiding.drop_view(connection, table.name)
            hiding.drop_policy(connection, table.name)
            managed.drop_triggers(connection, table)
            managed.drop_column(connection, table)
        if policy.expire_after is not None:
            if table.column(MANAGED_COLUMN) is None:
                managed.add_column(connection, table, policy.expire_after, self.now(connection))
            else:
                managed.set_default(connection, table, policy.expire_after)
            managed.create_triggers(connection, table, policy)
        hiding.install(connection, replace(declared, table=self.describe(connection, table.name)))

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        if policy.expire_after is None and policy.hide_expired == "off":
            return
        locks.lock_table(connection, relation(table.name))
        hiding.drop_view(connection, table.name)
        hiding.drop_policy(connection, table.name)
        if policy.expire_after is not None:
            managed.drop_triggers(connection, table)
            managed.drop_column(connection, table)

    def renamed(self, connection: Connection, old: TableName, declared: Declared) -> None:
        hiding.drop_view(connection, old)
        self.install(connection, declared, declared.policy)

    def dropped(self, connection: Connection, name: TableName) -> None:
        hiding.drop_view(connection, name)

    def missing_parts(self, connection: Connection, declared: Declared) -> list[str]:
        table, policy = declared.table, declared.policy
        missing = managed.missing_parts(connection, table, policy) if policy.expire_after is not None else []
        return [*missing, *hiding.missing_parts(connection, declared)]

    def advice(self, connection: Connection, declared: Declared) -> list[Advice]:
        return [
            *advice.references(declared.table),
            *advice.indexes(declared),
            *advice.unused(connection, declared),
        ]

    def upkeep(self, connection: Connection, declared: Declared, deleted_per_day: float) -> list[Advice]:
        """Of partitions by time, nearly all rows are deleted in one: the rate of the table is that of the leaf."""
        leaves = self.leaves(connection, declared.table)
        return [found for leaf in leaves for found in upkeep.advice(connection, leaf, deleted_per_day)]

    def space(self, connection: Connection, declared: Declared) -> list[str]:
        found = (upkeep.report(connection, leaf) for leaf in self.leaves(connection, declared.table))
        return [text for text in found if text is not None]

    def privileges(self, connection: Connection, declared: Declared) -> list[Advice]:
        return [
            lacking
            for leaf in self.leaves(connection, declared.table)
            for lacking in advice.privileges(connection, leaf, declared.policy)
        ]

    # Deleting

    def condition(self, connection: Connection, declared: Declared, cutoff: datetime) -> str:
        return condition.at(declared, cutoff).sql

    def choose_path(self, connection: Connection, declared: Declared, cutoff: datetime) -> Path:
        obvious = survey.path_at_first_sight(declared, cutoff)
        if obvious is not None:
            return obvious
        with self._reading(connection):
            return survey.choose_path(connection, declared, cutoff)

    def estimate_rows(self, connection: Connection, table: Table) -> int:
        return survey.estimate_rows(connection, table)

    def footprint(self, connection: Connection, table: Table) -> Footprint:
        return survey.footprint(connection, table)

    def covered(self, span: KeyRange, cursor: str | None) -> float | None:
        """Ranges count blocks; a cursor has the line in its block, too."""
        return super().covered(span, None if cursor is None else cursor.partition(",")[0])

    def split(self, connection: Connection, target: Target, pieces: int) -> list[KeyRange]:
        if target.path.kind in (PathKind.INDEX, PathKind.PARTITION):
            return [KeyRange()]
        with self._reading(connection):
            first, end = survey.expired_blocks(connection, target)
        edges = sorted({first + (end - first) * i // pieces for i in range(pieces + 1)})
        return [KeyRange(start=str(a), end=str(b)) for a, b in pairwise(edges)]

    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        table, path = target.declared.table, target.path
        with self.connection() as connection:
            heap = inspect.heap(connection, table.name)
            density = heap.rows_per_block or survey.rows_per_block(connection, table)
            _, mark = leaving.read(table.comment)
            if mark is not None and path.kind is not PathKind.PARTITION:
                self._unmark(connection, table)
        work = Work(
            table=table,
            condition=condition.at(target.declared, target.cutoff),
            span=span,
            cursor=cursor,
            connect=self.connection,
            rows_per_block=density,
            has_row_triggers=heap.has_row_triggers,
            message=_message(target) if heap.is_decoded else None,
            origin=target.declared.policy.replication_origin,
        )
        if path.kind is PathKind.PARTITION:
            return PartitionDeleter(work)
        if path.kind is PathKind.INDEX:
            if all(index.name != path.index for index in table.indexes):
                raise Drift(f"index {path.index}, with which the job was planned, does not exist any more")
            return IndexDeleter(work)
        return BlockDeleter(work)

    @staticmethod
    def _unmark(connection: Connection, table: Table) -> None:
        """A job died before it detached this leaf, which is not to be dropped any more."""
        comment, _ = leaving.read(table.comment)
        leaving.write(connection, table.name, comment)

    def survey(self, connection: Connection, target: Target) -> Survey:
        with self._reading(connection):
            return survey.survey(connection, target)

    def expiring(
        self, connection: Connection, declared: Declared, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        with self._reading(connection):
            return forecast.expiring(connection, declared, instants, exact=exact)

    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        with self._reading(connection):
            return survey.sample(connection, target, count)


def _message(target: Target) -> str:
    own = own_name(target.declared.table.name)
    return json.dumps({"ttl": f"{own.schema}.{own.name}", "cutoff": target.cutoff.isoformat()})
