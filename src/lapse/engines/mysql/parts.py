"""Everything that a policy has in the database besides the rows, put there, looked for and taken away."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import Declared
from lapse.engines.mysql import inspect, managed, myrocks
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table, TableKind, TableName


def install(connection: Connection, declared: Declared, previous: Policy | None, now: datetime) -> None:
    table, policy = declared.table, declared.policy
    managed_before = previous is not None and previous.expire_after is not None
    if policy.hide_expired != "view":
        managed.drop_view(connection, table.name)
    if inspect.storage_engine(connection, table.name) == myrocks.ENGINE:
        native = myrocks.express(table, policy).comment
        if managed_before and not myrocks.is_implicit(table) and (native is not None or policy.expire_after is None):
            managed.uninstall(connection, table, previous or policy)
            managed_before = False
        myrocks.install(connection, table, native)
        table = inspect.describe(connection, table.name)
        if native is not None:
            verify_native(connection, replace(declared, table=table))
            return
    if managed_before and policy.expire_after is None:
        managed.uninstall(connection, table, previous or policy)
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            managed.add_column(connection, table, policy.expire_after, now)
        # The default last: where the triggers make a time of it, no row may have it without them.
        managed.create_triggers(connection, table, policy.expire_after)
        managed.set_default(connection, table, policy.expire_after)
    if policy.hide_expired == "view":
        managed.create_view(connection, replace(declared, table=inspect.describe(connection, table.name)))


def uninstall(connection: Connection, table: Table, policy: Policy) -> None:
    """MyRocks would go on with what the comment says about TTL."""
    if myrocks.is_implicit(table):
        managed.drop_view(connection, table.name)
    else:
        managed.uninstall(connection, table, policy)
    if is_native(connection, table):
        myrocks.install(connection, table, None)


def renamed(connection: Connection, old: TableName, declared: Declared, now: datetime) -> None:
    # A trigger follows its table and keeps its own name.
    if declared.policy.expire_after is not None:
        managed.drop_triggers(connection, TableName(old.name, declared.table.name.schema))
    managed.drop_view(connection, old)
    install(connection, declared, declared.policy, now)


def missing(connection: Connection, declared: Declared) -> list[str]:
    table, policy = declared.table, declared.policy
    if inspect.storage_engine(connection, table.name) == myrocks.ENGINE:
        native = myrocks.express(table, policy).comment
        if native is not None:
            return [] if myrocks.ttl_items(table.comment) == native else [f"comment {native!r}"]
    return managed.missing_parts(connection, declared)


def is_native(connection: Connection, table: Table) -> bool:
    """Does MyRocks expire the rows of this table or partition by itself? `install` leaves the comment only if so."""
    if not myrocks.ttl_items(table.comment):
        return False
    return inspect.storage_engine(connection, table.name) == myrocks.ENGINE


def verify_native(connection: Connection, declared: Declared) -> None:
    table, policy = declared.table, declared.policy
    if table.kind is not TableKind.PARTITIONED:
        myrocks.verify(connection, declared)
        return
    for partition in table.partitions:
        leaf = replace(table, name=TableName(table.name.name, table.name.schema, partition))
        myrocks.verify(connection, replace(declared, table=leaf, policy=policy.for_partition(partition)))
