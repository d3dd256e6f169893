"""What a policy puts into the database: the managed column with its triggers and default, and the live view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import archive, inspect, managed
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table

Clock = Callable[[Connection], datetime]


def install(connection: Connection, declared: BoundPolicy, previous: Policy | None, now: Clock) -> None:
    """Everything that a policy has in the database besides the rows."""
    table, policy = declared.table, declared.policy
    if policy.hide_expired != "view":
        managed.drop_view(connection, table.name)
    if previous is not None and previous.expire_after is not None and policy.expire_after is None:
        uninstall(connection, table, previous)
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            managed.add_column(connection, table, policy.expire_after, now(connection))
        # The default last: where the triggers make a time of it, no row may have it without them.
        managed.create_triggers(connection, table, policy)
        managed.set_default(connection, table, policy.expire_after)
    if policy.hide_expired == "view":
        managed.create_view(connection, replace(declared, table=inspect.describe(connection, table.name)))
    archive.install(connection, declared)


def uninstall(connection: Connection, table: Table, policy: Policy) -> None:
    managed.drop_view(connection, table.name)
    if policy.expire_after is not None:
        managed.drop_triggers(connection, table.name)
        if table.column(MANAGED_COLUMN) is not None:
            managed.drop_column(connection, table)
