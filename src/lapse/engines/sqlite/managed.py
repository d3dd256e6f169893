"""What a policy puts into a SQLite file: the managed column, the triggers that stamp it, the live view.

SQLite adds a column without rewriting the table only with a constant default, which is then what old rows read. The
digits after its milliseconds are random: so the insert trigger can tell a row that was given no value from every row
that was given one. Rows that are inserted while the trigger is missing keep the default, an instant of the past: a
table without its triggers is blocked, and they get the full time when the triggers come back.
"""

from __future__ import annotations

import re
import secrets
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.sqlite import archive, condition, times
from lapse.engines.sqlite.names import (
    MARK_PREFIX,
    insert_trigger,
    literal,
    live_view,
    quote,
    row_address,
    update_trigger,
)
from lapse.errors import PolicyConflict
from lapse.model.interval import DAY, Interval
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table

_COLUMN = quote(MANAGED_COLUMN)
_MARK_DIGITS = 6
_DEFAULT = re.compile(r"'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3,9}Z'")
_STAMPING_TRIGGER = re.compile(r"lapse_.*_(insert|update)", re.DOTALL)
_EARLIER_CONDITION = f"NEW.{_COLUMN} GLOB '????-??-?? ??:??:??.???Z'"
_ON_ANY_UPDATE = re.compile(r"\bUPDATE\s+ON\b", re.IGNORECASE)
_MADE_BY_LAPSE = "/* made by Lapse */"


def add_column(connection: Connection, table: Table, after: Interval, now: datetime) -> None:
    mark = f"{secrets.randbelow(10**_MARK_DIGITS):0{_MARK_DIGITS}}Z"
    first = literal(times.to_text(after.added_to(now)) + mark)
    connection.exec_driver_sql(f"ALTER TABLE {quote(table.name.name)} ADD COLUMN {_COLUMN} TEXT DEFAULT {first}")


def drop_column(connection: Connection, table: Table) -> None:
    drop_mark(connection, table)
    for index in table.indexes:
        if MANAGED_COLUMN in index.columns:
            connection.exec_driver_sql(f"DROP INDEX {quote(index.name)}")
    connection.exec_driver_sql(f"ALTER TABLE {quote(table.name.name)} DROP COLUMN {_COLUMN}")


def create_triggers(connection: Connection, table: Table, policy: Policy) -> None:
    """Put the stamping triggers on a table that has the column, in place of those it may have."""
    default = _default(connection, table)
    if default is None:
        raise PolicyConflict(
            f"column {MANAGED_COLUMN} of {table.name} has lost its default, so new rows cannot be told from rows that "
            "never expire",
            hint=f"ALTER TABLE {table.name} RESET (ttl), then declare the policy again",
        )
    drop_triggers(connection, table)
    for statement in trigger_statements(table, policy, default):
        connection.exec_driver_sql(statement)


def stamp_unstamped(connection: Connection, table: Table, after: Interval) -> None:
    """Give the full time to rows that may have been written while a trigger was missing.

    Without the insert trigger new rows hold the default. Without the update trigger any row may have been renewed.
    """
    name, stamp, default = quote(table.name.name), times.shifted_now(after, +1), _default(connection, table)
    there = {trigger.rpartition("_")[2] for trigger in _stamping_triggers(connection, table)}
    if "update" not in there:
        earlier = f"julianday({_COLUMN}) < julianday({stamp})"
        connection.exec_driver_sql(f"UPDATE {name} SET {_COLUMN} = {stamp} WHERE {earlier}")
    elif "insert" not in there and default is not None:
        connection.exec_driver_sql(f"UPDATE {name} SET {_COLUMN} = {stamp} WHERE {_COLUMN} = {default}")


def drop_triggers(connection: Connection, table: Table) -> None:
    # A table that was renamed behind Lapse's back has taken the names along.
    names = (insert_trigger(table.name.name), update_trigger(table.name.name))
    for name in {*names, *_stamping_triggers(connection, table)}:
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {quote(name)}")


def trigger_statements(table: Table, policy: Policy, default: str) -> list[str]:
    """Insert: stamp a row that was given no value. Update: keep NULL, keep what was set, keep the later instant, and
    one that was renewed just now."""
    assert policy.expire_after is not None
    name, stamp = quote(table.name.name), times.shifted_now(policy.expire_after, +1)
    every = policy.renew_every
    due = f"julianday({stamp})" + ("" if every is None else f" - {every.micros / DAY!r}")
    this_row = _this_row(table)
    on_insert = (
        f"CREATE TRIGGER {quote(insert_trigger(table.name.name))} AFTER INSERT ON {name}"
        f" WHEN NEW.{_COLUMN} = {default}"
        f" BEGIN UPDATE {name} SET {_COLUMN} = {stamp} WHERE {this_row}; END"
    )
    on_update = (
        f"CREATE TRIGGER {quote(update_trigger(table.name.name))} AFTER UPDATE ON {name}"
        f" WHEN NEW.{_COLUMN} IS OLD.{_COLUMN} AND {due} > julianday(OLD.{_COLUMN})"
        f" BEGIN UPDATE {name} SET {_COLUMN} = {stamp} WHERE {this_row}; END"
    )
    return [on_insert, on_update]


def renew_triggers(connection: Connection, declared: BoundPolicy) -> None:
    """Replace the insert trigger of earlier versions, which took every text that ends in Z for the default."""
    table = declared.table
    there = triggers(connection, table).get(insert_trigger(table.name.name))
    if declared.policy.expire_after is not None and there is not None and _EARLIER_CONDITION in there:
        create_triggers(connection, table, declared.policy)


def drop_mark(connection: Connection, table: Table) -> None:
    """Remove what tells that this table is the one that was armed."""
    for name in triggers(connection, table):
        if name.startswith(MARK_PREFIX):
            connection.exec_driver_sql(f"DROP TRIGGER {quote(name)}")


def fires_twice(connection: Connection, table: Table) -> list[str]:
    """Triggers of the user's that a stamp fires, too: SQLite lets no trigger change the row that is being written."""
    return [
        name
        for name, sql in triggers(connection, table).items()
        if name not in _stamping_triggers(connection, table) and _ON_ANY_UPDATE.search(sql)
    ]


def create_view(connection: Connection, declared: BoundPolicy) -> None:
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


def missing_parts(connection: Connection, declared: BoundPolicy) -> list[str]:
    table, policy = declared.table, declared.policy
    missing = archive.missing(connection, declared)
    if policy.expire_after is not None:
        if table.column(MANAGED_COLUMN) is None:
            return [f"column {MANAGED_COLUMN}"]
        default = _default(connection, table)
        if default is None:
            return [f"default of column {MANAGED_COLUMN}"]
        there = triggers(connection, table).values()
        for name, sql in zip(
            (insert_trigger(table.name.name), update_trigger(table.name.name)),
            trigger_statements(table, policy, default),
            strict=True,
        ):
            if sql not in there:
                missing.append(f"trigger {name}")
    if policy.hide_expired == "view" and not _is_ours(connection, live_view(table.name.name)):
        missing.append(f"view {live_view(table.name.name)}")
    return missing


def has_default(connection: Connection, table: Table) -> bool:
    """Has the table the managed column, with a default that a stamp can tell from a value?"""
    return table.column(MANAGED_COLUMN) is not None and _default(connection, table) is not None


def _default(connection: Connection, table: Table) -> str | None:
    """The column's default as a literal of SQL; None where there is none that a stamp can tell from a value."""
    found = connection.exec_driver_sql(
        "SELECT dflt_value FROM pragma_table_xinfo(?) WHERE name = ?", (table.name.name, MANAGED_COLUMN)
    ).scalar()
    return str(found) if found is not None and _DEFAULT.fullmatch(str(found)) else None


def triggers(connection: Connection, table: Table) -> dict[str, str]:
    rows = connection.exec_driver_sql(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY name",
        (table.name.name,),
    )
    return {str(name): str(sql) for name, sql in rows}


def _stamping_triggers(connection: Connection, table: Table) -> list[str]:
    """Those that Lapse made, whatever the table was called then."""
    found = triggers(connection, table)
    return [name for name, sql in found.items() if _STAMPING_TRIGGER.fullmatch(name) and f"SET {_COLUMN} = " in sql]


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
