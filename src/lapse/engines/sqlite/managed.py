"""What a policy puts into a SQLite file: the managed column, the triggers that stamp it, the live view.

SQLite adds a column without rewriting the table only with a constant default, which is then what old rows read. That
constant carries a `Z`, which no stamp does: so the insert trigger can tell a row that was given no value from one
that was.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import Declared
from lapse.engines.sqlite import condition, times
from lapse.engines.sqlite.names import (
    insert_trigger,
    literal,
    live_view,
    quote,
    row_address,
    update_trigger,
)
from lapse.errors import PolicyConflict
from lapse.model.interval import Interval
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table

_COLUMN = quote(MANAGED_COLUMN)
_DEFAULT_MARK = "Z"
_MADE_BY_LAPSE = "/* made by Lapse */"


def add_column(connection: Connection, table: Table, after: Interval, now: datetime) -> None:
    first = times.to_text(after.added_to(now)) + _DEFAULT_MARK
    connection.exec_driver_sql(
        f"ALTER TABLE {quote(table.name.name)} ADD COLUMN {_COLUMN} TEXT DEFAULT {literal(first)}"
    )


def drop_column(connection: Connection, table: Table) -> None:
    for index in table.indexes:
        if MANAGED_COLUMN in index.columns:
            connection.exec_driver_sql(f"DROP INDEX {quote(index.name)}")
    connection.exec_driver_sql(f"ALTER TABLE {quote(table.name.name)} DROP COLUMN {_COLUMN}")


def create_triggers(connection: Connection, table: Table, after: Interval) -> None:
    drop_triggers(connection, table)
    for statement in trigger_statements(table, after):
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection, table: Table) -> None:
    for name in (insert_trigger(table.name.name), update_trigger(table.name.name)):
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {quote(name)}")


def trigger_statements(table: Table, after: Interval) -> list[str]:
    """Insert: stamp a row that was given no value. Update: keep NULL, keep what was set, keep the later instant."""
    name, stamp = quote(table.name.name), times.shifted_now(after, +1)
    this_row = _this_row(table)
    on_insert = (
        f"CREATE TRIGGER {quote(insert_trigger(table.name.name))} AFTER INSERT ON {name}"
        f" WHEN NEW.{_COLUMN} GLOB '????-??-?? ??:??:??.???{_DEFAULT_MARK}'"
        f" BEGIN UPDATE {name} SET {_COLUMN} = {stamp} WHERE {this_row}; END"
    )
    on_update = (
        f"CREATE TRIGGER {quote(update_trigger(table.name.name))} AFTER UPDATE ON {name}"
        f" WHEN NEW.{_COLUMN} IS OLD.{_COLUMN} AND julianday({stamp}) > julianday(OLD.{_COLUMN})"
        f" BEGIN UPDATE {name} SET {_COLUMN} = {stamp} WHERE {this_row}; END"
    )
    return [on_insert, on_update]


def create_view(connection: Connection, declared: Declared) -> None:
    table = declared.table
    view = live_view(table.name.name)
    _refuse_foreign_view(connection, view)
    columns = ", ".join(quote(c.name) for c in table.columns if c.name != MANAGED_COLUMN)
    expired = condition.expired_now(connection, declared)
    connection.exec_driver_sql(f"DROP VIEW IF EXISTS {quote(view)}")
    connection.exec_driver_sql(
        f"CREATE VIEW {quote(view)} AS {_MADE_BY_LAPSE} SELECT {columns} FROM {quote(table.name.name)}"
        f" WHERE {expired} IS NOT TRUE"
    )


def drop_view(connection: Connection, table: str) -> None:
    view = live_view(table)
    if _is_ours(connection, view):
        connection.exec_driver_sql(f"DROP VIEW {quote(view)}")


def missing_parts(connection: Connection, declared: Declared) -> list[str]:
    table, policy = declared.table, declared.policy
    missing = []
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            return [f"column {MANAGED_COLUMN}"]
        for name, sql in zip(
            (insert_trigger(table.name.name), update_trigger(table.name.name)),
            trigger_statements(table, policy.expire_after),
            strict=True,
        ):
            if _stored_sql(connection, "trigger", name) != sql:
                missing.append(f"trigger {name}")
    if policy.hide_expired == "view" and not _is_ours(connection, live_view(table.name.name)):
        missing.append(f"view {live_view(table.name.name)}")
    return missing


def uninstall(connection: Connection, table: Table, policy: Policy) -> None:
    drop_view(connection, table.name.name)
    if policy.expire_after is not None:
        drop_triggers(connection, table)
        if table.column(MANAGED_COLUMN) is not None:
            drop_column(connection, table)


def _this_row(table: Table) -> str:
    if not table.key:
        address = row_address(table)
        return f"{address} = NEW.{address}"
    return " AND ".join(f"{quote(column)} IS NEW.{quote(column)}" for column in table.key)


def _refuse_foreign_view(connection: Connection, view: str) -> None:
    taken = connection.exec_driver_sql("SELECT type FROM sqlite_schema WHERE name = ? COLLATE NOCASE", (view,)).scalar()
    if taken is not None and not _is_ours(connection, view):
        raise PolicyConflict(
            f"there is already a {taken} named {view}, so the view of live rows cannot be made",
            hint="rename it, or leave ttl_hide_expired off",
        )


def _is_ours(connection: Connection, view: str) -> bool:
    sql = _stored_sql(connection, "view", view)
    return sql is not None and _MADE_BY_LAPSE in sql


def _stored_sql(connection: Connection, kind: str, name: str) -> str | None:
    sql = connection.exec_driver_sql(
        "SELECT sql FROM sqlite_schema WHERE type = ? AND name = ? COLLATE NOCASE", (kind, name)
    ).scalar()
    return None if sql is None else str(sql)
