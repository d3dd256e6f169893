"""The account on whose behalf a trigger runs. Without it, every statement that fires the trigger fails."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.mysql.names import update_trigger
from lapse.model.table import TableName


def definer(connection: Connection, table: TableName) -> str | None:
    """Of Lapse's trigger on this table, as `user@host`."""
    trigger = update_trigger(table)
    found = connection.exec_driver_sql(
        "SELECT DEFINER FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = coalesce(%s, DATABASE())"
        " AND TRIGGER_NAME = %s AND EVENT_OBJECT_TABLE = %s",
        (trigger.schema, trigger.name, table.name),
    ).scalar()
    return None if found is None else str(found)


def is_gone(connection: Connection, account: str) -> bool:
    """Is there no such account? False where this one may not read the accounts."""
    user, _, host = account.rpartition("@")
    try:
        found = connection.exec_driver_sql("SELECT 1 FROM mysql.user WHERE User = %s AND Host = %s", (user, host))
        return found.first() is None
    except DBAPIError:
        return False
