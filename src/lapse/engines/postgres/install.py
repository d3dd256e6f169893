"""What a policy puts on its table: the managed column with its triggers, and what hides expired rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.postgres import archive, hiding, inspect, locks, managed
from lapse.engines.postgres.names import relation
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table

Clock = Callable[[Connection], datetime]


def install(connection: Connection, declared: BoundPolicy, previous: Policy | None, now: Clock) -> None:
    managed_before = previous is not None and previous.expire_after is not None
    hid_before = previous is not None and previous.hide_expired != "off"
    _install(connection, declared, managed_before=managed_before, hid_before=hid_before, now=now)
    # Behind the managed column, which the archive has as well.
    archive.install(connection, declared)


def _install(
    connection: Connection, declared: BoundPolicy, *, managed_before: bool, hid_before: bool, now: Clock
) -> None:
    table, policy = declared.table, declared.policy
    if not (policy.expire_after or managed_before or policy.hide_expired != "off" or hid_before):
        return
    locks.lock_table(connection, relation(table.name))
    if managed_before and policy.expire_after is None:
        hiding.drop_view(connection, table.name)
        hiding.drop_policy(connection, table.name)
        managed.drop_triggers(connection, table)
        managed.drop_function(connection, table)
        managed.drop_column(connection, table)
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            managed.add_column(connection, table, policy.expire_after, now(connection))
        else:
            managed.set_default(connection, table, policy.expire_after)
        managed.create_triggers(connection, table, policy)
    hiding.install(connection, replace(declared, table=inspect.describe(connection, table.name)))


def uninstall(connection: Connection, table: Table, policy: Policy) -> None:
    if policy.expire_after is None and policy.hide_expired == "off":
        return
    locks.lock_table(connection, relation(table.name))
    hiding.drop_view(connection, table.name)
    hiding.drop_policy(connection, table.name)
    if policy.expire_after is not None:
        managed.drop_triggers(connection, table)
        managed.drop_function(connection, table)
        managed.drop_column(connection, table)
