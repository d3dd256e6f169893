"""What a policy puts into the database: the managed column, the trigger that renews it, the live view.

A column is added without touching the rows when its default is a constant, which is then what old rows read; the
default that new rows get is set in a last step, as instant as the first. On MariaDB that is the stamp itself. MySQL
forgets an expression in an INSERT that names no columns, and leaves NULL, which would never expire: there the default
is a constant that is never written by hand, and a trigger turns just that one into the stamp.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import archive, condition, definers, inspect, server, times
from lapse.engines.mysql.names import insert_trigger, live_view, qualified, quote, update_trigger
from lapse.errors import PolicyConflict, Unsupported
from lapse.model.interval import Interval
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table, TableName

_COLUMN = quote(MANAGED_COLUMN)
_NOW = condition.NOW
_MARK = "'made by Lapse' IS NOT NULL"
"""The server forgets comments in a view, but not a condition that is always true."""
_CANNOT_BE_INSTANT = (1845, 1846, 1221, 4092)
"""The last is a table that was changed so 64 times since it was last rebuilt."""
_UNSTAMPED = "9999-12-30 11:22:33.444555"
"""The default on MySQL: a time that never expires, should the trigger be gone, and that has no meaning of its own."""
_NEEDS_TRUST = 1419


def add_column(connection: Connection, table: Table, after: Interval, now: datetime) -> None:
    first = after.added_to(now.astimezone(UTC))
    sql = (
        f"ALTER TABLE {qualified(table.name)} ADD COLUMN {_COLUMN} DATETIME(6) NULL"
        f" DEFAULT '{first:%Y-%m-%d %H:%M:%S.%f}' INVISIBLE"
    )
    _alter(connection, sql)


def set_default(connection: Connection, table: Table, after: Interval) -> None:
    column = table.column(MANAGED_COLUMN)
    if column and column.type.lower().startswith("timestamp") and not server.stamps_hidden_columns(connection):
        raise Unsupported(
            f"column {MANAGED_COLUMN} of table {table.name} is {column.type}, which ends in 2038 and cannot hold the"
            " default that it needs on MySQL",
            hint=f"ALTER TABLE {qualified(table.name)} MODIFY {_COLUMN} DATETIME(6) NULL INVISIBLE;"
            " then: lapse doctor URL --repair",
        )
    _alter(
        connection,
        f"ALTER TABLE {qualified(table.name)} ALTER COLUMN {_COLUMN} SET DEFAULT {_default(connection, after)}",
    )


def _default(connection: Connection, after: Interval) -> str:
    return f"({_stamp(after)})" if server.stamps_hidden_columns(connection) else f"'{_UNSTAMPED}'"


def _stamp(after: Interval) -> str:
    return times.shifted(_NOW, after, "+")


def _triggers(connection: Connection, table: TableName, policy: Policy) -> dict[str, tuple[str, str]]:
    """By name: when it runs, and what it does."""
    after = policy.expire_after
    assert after is not None
    found = {update_trigger(table).name: ("BEFORE UPDATE", _update_body(after, policy.renew_every))}
    if not server.stamps_hidden_columns(connection):
        found[insert_trigger(table).name] = ("BEFORE INSERT", _insert_body(after))
    return found


def drop_column(connection: Connection, table: Table) -> None:
    connection.exec_driver_sql(f"ALTER TABLE {qualified(table.name)} DROP COLUMN {_COLUMN}")


def create_triggers(connection: Connection, table: Table, policy: Policy) -> None:
    try:
        drop_triggers(connection, table.name)
        for name, (event, body) in _triggers(connection, table.name, policy).items():
            trigger = qualified(TableName(name, table.name.schema))
            connection.exec_driver_sql(
                f"CREATE TRIGGER {trigger} {event} ON {qualified(table.name)} FOR EACH ROW {body}"
            )
    except DBAPIError as error:
        if error.orig is not None and error.orig.args[0] == _NEEDS_TRUST:
            raise Unsupported(
                "the server lets only a superuser make triggers while it writes a binary log",
                hint="SET GLOBAL log_bin_trust_function_creators = 1, or declare the policy as a superuser",
            ) from error
        raise


def drop_triggers(connection: Connection, table: TableName) -> None:
    """Only if they are there: an account that may make none is refused even the attempt."""
    there = connection.exec_driver_sql(
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS"
        " WHERE TRIGGER_SCHEMA = coalesce(%s, DATABASE()) AND TRIGGER_NAME IN (%s, %s)",
        (table.schema, insert_trigger(table).name, update_trigger(table).name),
    ).all()
    for (name,) in there:
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {qualified(TableName(str(name), table.schema))}")


def _insert_body(after: Interval) -> str:
    """Keep NULL, and what the statement itself set."""
    return f"SET NEW.{_COLUMN} = if(NEW.{_COLUMN} <=> TIMESTAMP'{_UNSTAMPED}', {_stamp(after)}, NEW.{_COLUMN})"


def _update_body(after: Interval, every: Interval | None) -> str:
    """Keep NULL, keep what the statement itself set, keep the later instant, and one that was renewed just now.

    `ON UPDATE CURRENT_TIMESTAMP` would need no trigger and cannot say this: it would end a NULL and a later instant.
    """
    if every is not None:
        return _former_update_body(after, every)
    # A comparison with NULL is not true, and the greatest of NULL and anything is NULL: it runs for every updated row.
    new, old = f"NEW.{_COLUMN}", f"OLD.{_COLUMN}"
    return f"SET {new} = if({new} = {old}, greatest({old}, {_stamp(after)}), {new})"


def _former_update_body(after: Interval, every: Interval | None) -> str:
    """That of earlier versions, which means the same, and with `ttl_renew_every`."""
    stamp = _stamp(after)
    due = stamp if every is None else times.shifted(stamp, every, "-")
    return f"SET NEW.{_COLUMN} = if(NEW.{_COLUMN} <=> OLD.{_COLUMN} AND OLD.{_COLUMN} < {due}, {stamp}, NEW.{_COLUMN})"


def create_view(connection: Connection, declared: BoundPolicy) -> None:
    table = declared.table
    view = live_view(table.name)
    refuse_foreign_view(connection, view)
    hidden = {MANAGED_COLUMN, *inspect.invisible_columns(connection, table.name)}
    columns = ", ".join(quote(column.name) for column in table.columns if column.name not in hidden)
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


def missing_parts(connection: Connection, declared: BoundPolicy) -> list[str]:
    table, policy = declared.table, declared.policy
    missing = archive.missing(connection, declared)
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            return [f"column {MANAGED_COLUMN}"]
        wanted, found = _triggers(connection, table.name, policy), stored_triggers(connection, table.name)
        former = _former_update_body(policy.expire_after, policy.renew_every)
        absent = [f"trigger {name}" for name, (_, body) in wanted.items() if found.get(name) not in (body, former)]
        missing += absent
        if (
            not absent
            and (account := definers.definer(connection, table.name))
            and definers.is_gone(connection, account)
        ):
            missing.append(f"account {account}, as which trigger {update_trigger(table.name).name} runs")
        if _bare(stored_default(connection, table.name) or "") != _bare(_default(connection, policy.expire_after)):
            missing.append(f"default of column {MANAGED_COLUMN}")
    if policy.hide_expired == "view" and not _is_ours(connection, live_view(table.name)):
        missing.append(f"view {live_view(table.name).name}")
    return missing


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


def stored_triggers(connection: Connection, table: TableName) -> dict[str, str]:
    """What Lapse's triggers on this table do, by name."""
    rows = connection.exec_driver_sql(
        "SELECT TRIGGER_NAME, ACTION_STATEMENT FROM information_schema.TRIGGERS"
        " WHERE TRIGGER_SCHEMA = coalesce(%s, DATABASE()) AND TRIGGER_NAME IN (%s, %s) AND EVENT_OBJECT_TABLE = %s",
        (table.schema, insert_trigger(table).name, update_trigger(table).name, table.name),
    )
    return {str(name): inspect.text(body) for name, body in rows}


def stored_default(connection: Connection, table: TableName) -> str | None:
    """As the server writes it, which is not as it was typed."""
    default = connection.exec_driver_sql(
        "SELECT COLUMN_DEFAULT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s AND COLUMN_NAME = %s",
        (table.schema, table.name, MANAGED_COLUMN),
    ).scalar()
    return None if default is None else str(default)


def _bare(sql: str) -> str:
    return re.sub(r"[^a-z0-9_+-]", "", sql.lower())


def _alter(connection: Connection, sql: str) -> None:
    """Without touching the rows where the storage engine can; some table formats cannot, and are rebuilt."""
    try:
        connection.exec_driver_sql(f"{sql}, ALGORITHM=INSTANT")
    except DBAPIError as error:
        if error.orig is None or error.orig.args[0] not in _CANNOT_BE_INSTANT:
            raise
        connection.exec_driver_sql(sql)
