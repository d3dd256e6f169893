"""What a policy puts into the database: the managed column, the trigger that renews it, the live view.

A column is added without touching the rows when its default is a constant, which is then what old rows read; the
default that new rows get is set in a second step, as instant as the first. Inserts need no trigger.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Declared
from lapse.engines.mysql import condition, times
from lapse.engines.mysql.names import live_view, qualified, quote, update_trigger
from lapse.errors import PolicyConflict, Unsupported
from lapse.model.interval import Interval
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table, TableName

_COLUMN = quote(MANAGED_COLUMN)
_NOW = condition.NOW
_MARK = "'made by Lapse' IS NOT NULL"
"""The server forgets comments in a view, but not a condition that is always true."""
_CANNOT_BE_INSTANT = (1845, 1846, 1221)
_NEEDS_TRUST = 1419


def add_column(connection: Connection, table: Table, after: Interval, now: datetime) -> None:
    first = after.added_to(now.astimezone(UTC))
    sql = (
        f"ALTER TABLE {qualified(table.name)} ADD COLUMN {_COLUMN} DATETIME(6) NULL"
        f" DEFAULT '{first:%Y-%m-%d %H:%M:%S.%f}' INVISIBLE"
    )
    _alter(connection, sql)


def set_default(connection: Connection, table: Table, after: Interval) -> None:
    stamp = times.shifted(_NOW, after, "+")
    _alter(connection, f"ALTER TABLE {qualified(table.name)} ALTER COLUMN {_COLUMN} SET DEFAULT ({stamp})")


def drop_column(connection: Connection, table: Table) -> None:
    connection.exec_driver_sql(f"ALTER TABLE {qualified(table.name)} DROP COLUMN {_COLUMN}")


def create_trigger(connection: Connection, table: Table, after: Interval) -> None:
    drop_trigger(connection, table.name)
    name = qualified(update_trigger(table.name))
    try:
        connection.exec_driver_sql(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {qualified(table.name)} FOR EACH ROW {_trigger_body(after)}"
        )
    except DBAPIError as error:
        if error.orig is not None and error.orig.args[0] == _NEEDS_TRUST:
            raise Unsupported(
                "the server lets only a superuser make triggers while it writes a binary log",
                hint="SET GLOBAL log_bin_trust_function_creators = 1, or declare the policy as a superuser",
            ) from error
        raise


def drop_trigger(connection: Connection, table: TableName) -> None:
    connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {qualified(update_trigger(table))}")


def _trigger_body(after: Interval) -> str:
    """Keep NULL, keep what the statement itself set, keep the later instant."""
    stamp = times.shifted(_NOW, after, "+")
    return (
        f"SET NEW.{_COLUMN} = if(NEW.{_COLUMN} <=> OLD.{_COLUMN} AND OLD.{_COLUMN} < {stamp}, {stamp}, NEW.{_COLUMN})"
    )


def create_view(connection: Connection, declared: Declared) -> None:
    table = declared.table
    view = live_view(table.name)
    refuse_foreign_view(connection, view)
    columns = ", ".join(quote(c.name) for c in table.columns if c.name != MANAGED_COLUMN)
    expired = condition.expired_now(connection, declared)
    connection.exec_driver_sql(
        f"CREATE OR REPLACE SQL SECURITY INVOKER VIEW {qualified(view)} AS SELECT {columns}"
        f" FROM {qualified(table.name)} WHERE {expired} IS NOT TRUE AND {_MARK}"
    )


def drop_view(connection: Connection, table: TableName) -> None:
    if len(table.name) + len("_live") > 64:
        return
    view = live_view(table)
    if _is_ours(connection, view):
        connection.exec_driver_sql(f"DROP VIEW {qualified(view)}")


def missing_parts(connection: Connection, declared: Declared) -> list[str]:
    table, policy = declared.table, declared.policy
    missing = []
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            return [f"column {MANAGED_COLUMN}"]
        if _stored_trigger(connection, table.name) != _trigger_body(policy.expire_after):
            missing.append(f"trigger {update_trigger(table.name).name}")
        if not _has_default(connection, table.name):
            missing.append(f"default of column {MANAGED_COLUMN}")
    if policy.hide_expired == "view" and not _is_ours(connection, live_view(table.name)):
        missing.append(f"view {live_view(table.name).name}")
    return missing


def uninstall(connection: Connection, table: Table, policy: Policy) -> None:
    drop_view(connection, table.name)
    if policy.expire_after is not None:
        drop_trigger(connection, table.name)
        if table.column(MANAGED_COLUMN) is not None:
            drop_column(connection, table)


def refuse_foreign_view(connection: Connection, view: TableName) -> None:
    taken = connection.exec_driver_sql(
        "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s",
        (view.schema, view.name),
    ).scalar()
    if taken is not None and not _is_ours(connection, view):
        raise PolicyConflict(
            f"there is already a {'view' if taken == 'VIEW' else 'table'} named {view.name}, so the view of live rows "
            "cannot be made",
            hint="rename it, or leave ttl_hide_expired off",
        )


def _is_ours(connection: Connection, view: TableName) -> bool:
    sql = connection.exec_driver_sql(
        "SELECT VIEW_DEFINITION FROM information_schema.VIEWS WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s",
        (view.schema, view.name),
    ).scalar()
    return sql is not None and "made by Lapse" in str(sql)


def _stored_trigger(connection: Connection, table: TableName) -> str | None:
    trigger = update_trigger(table)
    body = connection.exec_driver_sql(
        "SELECT ACTION_STATEMENT FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = coalesce(%s, DATABASE())"
        " AND TRIGGER_NAME = %s AND EVENT_OBJECT_TABLE = %s",
        (trigger.schema, trigger.name, table.name),
    ).scalar()
    return None if body is None else str(body)


def _has_default(connection: Connection, table: TableName) -> bool:
    default = connection.exec_driver_sql(
        "SELECT COLUMN_DEFAULT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s AND COLUMN_NAME = %s",
        (table.schema, table.name, MANAGED_COLUMN),
    ).scalar()
    return "utc_timestamp" in str(default).lower()


def _alter(connection: Connection, sql: str) -> None:
    """Without touching the rows where the storage engine can; some table formats cannot, and are rebuilt."""
    try:
        connection.exec_driver_sql(f"{sql}, ALGORITHM=INSTANT")
    except DBAPIError as error:
        if error.orig is None or error.orig.args[0] not in _CANNOT_BE_INSTANT:
            raise
        connection.exec_driver_sql(sql)
