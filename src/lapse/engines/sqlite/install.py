"""What a policy puts into a SQLite file: the managed column with its triggers, and the live view."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.sqlite import archive, inspect, managed
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table


def install(connection: Connection, declared: BoundPolicy, previous: Policy | None, now: datetime) -> None:
    table, policy = declared.table, declared.policy
    managed_before = previous is not None and previous.expire_after is not None
    if policy.hide_expired != "view":
        managed.drop_view(connection, table.name.name)
    if managed_before and policy.expire_after is None:
        uninstall(connection, table, previous or policy)
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            managed.add_column(connection, table, policy.expire_after, now)
        else:
            managed.stamp_unstamped(connection, table, policy.expire_after)
        table = inspect.describe(connection, table.name)
        managed.create_triggers(connection, table, policy)
    if policy.hide_expired == "view":
        fresh = replace(declared, table=inspect.describe(connection, table.name))
        managed.create_view(connection, fresh)
    archive.install(connection, declared)


def uninstall(connection: Connection, table: Table, policy: Policy) -> None:
    managed.drop_view(connection, table.name.name)
    managed.drop_mark(connection, table)
    if policy.expire_after is not None:
        managed.drop_triggers(connection, table)
        if table.column(MANAGED_COLUMN) is not None:
            managed.drop_column(connection, table)
