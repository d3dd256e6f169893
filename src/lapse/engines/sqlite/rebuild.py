"""Tables that a migration tool makes anew: a copy under another name, the old one dropped, the copy renamed.

Triggers, marks and often the managed column do not survive that, and SQLite refuses to rename what a view reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.sqlite import inspect, managed
from lapse.engines.sqlite.names import quote
from lapse.model.table import MANAGED_COLUMN, Table

_KEPT = "temp.lapse_kept_expiration"
_COLUMN = quote(MANAGED_COLUMN)


@contextmanager
def rebuilding(connection: Connection, declared: BoundPolicy, now: datetime) -> Iterator[None]:
    """Inside, the table may be made anew; afterwards it has what the policy had put there, with the same times."""
    table, after = declared.table, declared.policy.expire_after
    stamped = after is not None and table.column(MANAGED_COLUMN) is not None
    managed.drop_view(connection, table.name.name)
    managed.drop_mark(connection, table)
    if stamped:
        managed.drop_triggers(connection, table)
        _keep(connection, table)
    yield
    fresh = inspect.describe(connection, table.name)
    if after is not None:
        if not managed.has_default(connection, fresh):
            if fresh.column(MANAGED_COLUMN) is not None:
                managed.drop_column(connection, fresh)
            managed.add_column(connection, fresh, after, now)
            if stamped:
                _restore(connection, table, fresh)
        managed.create_triggers(connection, inspect.describe(connection, table.name), declared.policy)
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_KEPT}")
    if declared.policy.hide_expired == "view":
        _create_view(connection, declared)


def _keep(connection: Connection, table: Table) -> None:
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_KEPT}")
    keys = "".join(f"{quote(name)} AS k{number}, " for number, name in enumerate(table.primary_key))
    connection.exec_driver_sql(
        f"CREATE TABLE {_KEPT} AS SELECT {keys}{_COLUMN} AS expiration FROM {quote(table.name.name)}"
    )
    columns = ", ".join([*(f"k{number}" for number, _ in enumerate(table.primary_key)), "expiration"])
    connection.exec_driver_sql(f"CREATE INDEX temp.lapse_kept_key ON lapse_kept_expiration ({columns})")


def _restore(connection: Connection, old: Table, new: Table) -> None:
    """By the primary key. A row that is not found by it has the full time, from now on."""
    if not old.primary_key or old.primary_key != new.primary_key:
        return
    name = quote(new.name.name)
    same = " AND ".join(f"kept.k{number} IS {name}.{quote(each)}" for number, each in enumerate(new.primary_key))
    found = f"FROM {_KEPT} AS kept WHERE {same}"
    connection.exec_driver_sql(
        f"UPDATE {name} SET {_COLUMN} = (SELECT kept.expiration {found}) WHERE EXISTS (SELECT 1 {found})"
    )


def _create_view(connection: Connection, declared: BoundPolicy) -> None:
    """Without the column that the policy reads there is none; the policy is blocked until it is declared anew."""
    fresh = replace(declared, table=inspect.describe(connection, declared.table.name), holds=())
    if all(fresh.table.column(name) is not None for name in fresh.columns_read):
        managed.create_view(connection, fresh)
