"""MyRocks behind the native protocol, and the engine that asks it, or TiDB, first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property

from sqlalchemy import Connection

from lapse.engines.base import Advice, BoundPolicy, Deleter, Engine, Expiring, Gauge, Survey, Target
from lapse.engines.keyset import Atomic, Connect
from lapse.engines.mysql import (
    checks,
    compaction,
    gauges,
    inspect,
    install,
    managed,
    myrocks,
    privileges,
    tidb,
    tidb_armed,
    tidb_jobs,
    tidb_native,
)
from lapse.engines.mysql.compaction import Compactor
from lapse.engines.mysql.delete import Watch
from lapse.engines.mysql.engine import MysqlEngine
from lapse.engines.mysql.keys import Walk
from lapse.engines.mysql.tidb_native import Tidb
from lapse.engines.native import Native, NativeFirst, NativeVerdict
from lapse.errors import Blocked
from lapse.model.blocked import BlockCode
from lapse.model.job import Path, PathKind
from lapse.model.policy import Policy
from lapse.model.settings import Settings
from lapse.model.table import MANAGED_COLUMN, Column, Table, TableKind, TableName


class MyRocks(Native):
    """Its compaction obeys the table's comment. Only taking the comment away, which copies the table, would stop it."""

    name = "MyRocks"
    pauses = False
    hides_expired = True

    def __init__(self, *, connect: Connect, atomic: Atomic) -> None:
        self._connect = connect
        self._atomic = atomic

    def is_available(self, connection: Connection, table: Table) -> bool:
        return table.storage == myrocks.ENGINE

    def serves(self, connection: Connection, table: Table) -> bool:
        return bool(myrocks.ttl_items(table.comment)) and self.is_available(connection, table)

    # Declare

    def check(self, connection: Connection, declared: BoundPolicy) -> NativeVerdict:
        table, policy = declared.table, declared.policy
        notices = checks.check_table(connection, declared)
        myrocks.check_comment(table)
        found = myrocks.express(table, policy)
        if found.reason is not None:
            return NativeVerdict(reason=found.reason, otherwise=replace(declared, table=_without_hidden_time(table)))
        notices += [advice.text for advice in myrocks.advice(connection, table, policy)]
        if myrocks.ttl_items(table.comment) != found.comment:
            notices.append(f"MyRocks copies the whole table {table.name} to change its TTL")
        if policy.hide_expired != "off":
            notices.append("MyRocks hides expired rows by itself, so ttl_hide_expired makes no view")
        return NativeVerdict(notices=tuple(notices))

    def can_express(self, connection: Connection, declared: BoundPolicy) -> bool:
        return myrocks.express(declared.table, declared.policy).comment is not None

    def declare(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
        table, policy = declared.table, declared.policy
        if policy.hide_expired != "view":
            managed.drop_view(connection, table.name)
        if previous is not None and previous.expire_after is not None and _hidden_time(table) is None:
            install.uninstall(connection, table, previous)
        myrocks.install(connection, table, myrocks.express(table, policy).comment)
        self._verify_leaves(connection, replace(declared, table=inspect.describe(connection, table.name)))

    def remove(self, connection: Connection, table: Table) -> Table:
        myrocks.install(connection, table, None)
        return inspect.describe(connection, table.name)

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        """MyRocks would go on with what the comment says about TTL."""
        if _hidden_time(table) is not None:
            managed.drop_view(connection, table.name)
        else:
            install.uninstall(connection, table, policy)
        myrocks.install(connection, table, None)

    # Read back

    def missing(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        wanted = myrocks.express(declared.table, declared.policy).comment
        return [] if myrocks.ttl_items(declared.table.comment) == wanted else [f"comment {wanted!r}"]

    def obeys(self, connection: Connection, table: Table, policy: Policy) -> bool:
        return myrocks.express(table, policy).comment == myrocks.ttl_items(table.comment)

    def path(self, connection: Connection, declared: BoundPolicy) -> Path:
        myrocks.verify(connection, declared)
        items = myrocks.ttl_items(declared.table.comment)
        return Path(kind=PathKind.NATIVE, evidence=f"MyRocks deletes them: {items}")

    def _verify_leaves(self, connection: Connection, declared: BoundPolicy) -> None:
        table, policy = declared.table, declared.policy
        if table.kind is not TableKind.PARTITIONED:
            myrocks.verify(connection, declared)
            return
        for partition in table.partitions:
            leaf = replace(table, name=TableName(table.name.name, table.name.schema, partition))
            myrocks.verify(connection, replace(declared, table=leaf, policy=policy.for_partition(partition)))

    # Observe

    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        return myrocks.advice(connection, declared.table, declared.policy)

    def privileges(self, connection: Connection) -> list[Advice]:
        return privileges.lacking_for_compaction(connection)

    def counters(self, connection: Connection) -> Mapping[str, int]:
        return compaction.counters(connection)

    def condition(self, table: Table) -> str:
        return f"MyRocks: {myrocks.ttl_items(table.comment)}"

    def survey(self, connection: Connection, declared: BoundPolicy) -> Survey:
        return compaction.survey(connection, declared.table.name)

    def expiring(self, connection: Connection, declared: BoundPolicy, instants: int) -> Expiring | None:
        if _hidden_time(declared.table) is None:
            return None
        return compaction.expiring(connection, declared.table.name, instants)

    # Run now

    def run(self, target: Target) -> Deleter:
        return Compactor(target.declared.table.name, connect=self._connect, atomic=self._atomic)


def _hidden_time(table: Table) -> Column | None:
    """The time of its creation that MyRocks keeps with every row where the comment names no column."""
    column = table.column(MANAGED_COLUMN)
    return column if column is not None and column.type == myrocks.IMPLICIT else None


def _without_hidden_time(table: Table) -> Table:
    """It goes with the comment that the policy replaces."""
    return replace(table, columns=tuple(column for column in table.columns if column.type != myrocks.IMPLICIT))


class NativeMysqlEngine(NativeFirst, MysqlEngine):
    """MariaDB, MySQL and TiDB, with what they do by themselves."""

    @cached_property
    def native(self) -> Native:
        if not self.flavour.is_tidb:
            return MyRocks(connect=self._delete_connection, atomic=self.atomic)
        return Tidb(
            connect=self._delete_connection,
            atomic=self.atomic,
            version=self.flavour.version,
            own_clock=self.clock is not None,
        )

    # What TiDB deletes by itself is the table's own: another table in its place has no TTL, or one declared on it.

    def arm(self, connection: Connection, declared: BoundPolicy) -> str:
        if not self.flavour.is_tidb:
            return super().arm(connection, declared)
        if not self._expresses(connection, declared):
            return tidb_armed.arm(connection, declared)
        found = json.loads(Engine.arm(self, connection, declared))
        return json.dumps(found | {"job": tidb_native.last_job(connection, declared.table.name)})

    def check_armed(self, connection: Connection, declared: BoundPolicy, armed: str) -> str:
        if not self.flavour.is_tidb:
            return super().check_armed(connection, declared, armed)
        if tidb_armed.is_own(armed):
            return self._check_own(connection, declared, armed)
        tidb_native.verify(connection, declared)
        checked = Engine.check_armed(self, connection, declared, armed)
        tidb_native.refuse_switched_off(connection, declared, json.loads(armed)["job"])
        return checked

    def check(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> list[str]:
        notices = super().check(connection, declared, previous)
        if self.flavour.is_tidb and not self._expresses(connection, declared):
            found = self.condition(connection, declared, self.now(connection))
            tidb_armed.refuse_incomputable(connection, declared.table.name, found.sql)
        return notices

    def _check_own(self, connection: Connection, declared: BoundPolicy, text: str) -> str:
        checked = tidb_armed.check(connection, declared.table, text)
        missing = managed.missing_parts(connection, declared)
        if missing:
            raise Blocked(
                BlockCode.PARTS_MISSING,
                f"missing in the database: {', '.join(missing)}",
                hint="lapse doctor URL --repair",
            )
        return checked

    def _watch(self, connection: Connection, target: Target, walk: Walk) -> Watch:
        if not self.flavour.is_tidb:
            return super()._watch(connection, target, walk)
        return tidb_armed.Watch(connection, target.declared, target.armed)

    def missing_parts(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        found = super().missing_parts(connection, declared)
        if self.flavour.is_tidb and not self._expresses(connection, declared):
            ttl = tidb_jobs.read(connection, declared.table.name)
            found = [*found, *(["TTL_ENABLE = 'OFF'"] if ttl is not None and ttl.enabled else [])]
        return found

    def privileges(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        """TiDB's views tell no rights on single tables, so it is tried."""
        if not self.flavour.is_tidb:
            return super().privileges(connection, declared)
        if self._serving(connection, declared.table):
            return self.native.privileges(connection)
        return privileges.lacking_on_tidb(connection, declared.table.name)

    def incarnation(self, connection: Connection) -> tuple[str, datetime]:
        """All servers of all clusters have one name there, and a cluster has many: the catalog tells them apart."""
        return tidb_jobs.incarnation(connection) if self.flavour.is_tidb else super().incarnation(connection)

    def declarer_grants(self, connection: Connection, name: TableName, *, creates: bool) -> str | None:
        if not self.flavour.is_tidb:
            return super().declarer_grants(connection, name, creates=creates)
        return " ".join(str(each.statement) for each in self.native.privileges(connection)) or None

    def gauges(self, connection: Connection, settings: Settings) -> list[Gauge]:
        if self.flavour.is_tidb:
            return gauges.read_tidb(connection, self._threads)
        return super().gauges(connection, settings)

    def glance(self, connection: Connection, settings: Settings) -> list[Gauge]:
        return self.gauges(connection, settings) if self.flavour.is_tidb else super().glance(connection, settings)

    def create_statement(self, connection: Connection, table: Table) -> str:
        found = super().create_statement(connection, table)
        return tidb.without_ttl(found) if self.flavour.is_tidb else found

    def has_setting(self, name: str) -> bool:
        return self.flavour.is_tidb and name.lower().startswith("tidb_ttl_")
