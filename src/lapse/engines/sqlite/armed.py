"""Which table a policy was declared on, told by a mark that dies with the table.

SQLite numbers no tables: root pages and the rows of the schema move with VACUUM, and names with ALTER TABLE. A trigger
stays with its table through both, goes when the table is dropped, and is not copied by tools that rebuild tables. So
Lapse puts one on the table that never does anything. Its name is random. Its body names the columns that the policy
reads, which SQLite rewrites when a column is renamed.
"""

from __future__ import annotations

import json
import secrets

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.sqlite import managed, session
from lapse.engines.sqlite.names import MARK_PREFIX, quote
from lapse.errors import Blocked
from lapse.model.blocked import BlockCode
from lapse.model.table import Column


def arm(connection: Connection, declared: BoundPolicy) -> str:
    """Mark the table, unless it is marked already, and return what `check` compares with."""
    columns = _columns(declared)
    with session.atomic(connection):
        managed.renew_triggers(connection, declared)
        mark = _find_mark(connection, declared, columns) or _mark(connection, declared, columns)
    return json.dumps({"mark": mark, "types": [column.type for column in columns]})


def check(connection: Connection, declared: BoundPolicy, armed: str) -> None:
    """Raises Blocked unless this is the table that was armed, with the same columns and all of its parts."""
    name, columns, facts = declared.table.name, _columns(declared), json.loads(armed)
    missing = managed.missing_parts(connection, declared)
    if missing:
        raise Blocked(
            BlockCode.PARTS_MISSING,
            f"missing in the database: {', '.join(missing)}",
            hint="lapse doctor URL --repair",
        )
    found = managed.triggers(connection, declared.table).get(facts["mark"])
    if found is None:
        raise Blocked(
            BlockCode.TABLE_REPLACED,
            f"table {name} is not the one that the policy was declared on: it was rebuilt, or replaced by another of "
            "that name",
            hint=f"check that the policy is meant for it, then: lapse resume URL {name}",
        )
    if not found.endswith(_body(columns)) or [column.type for column in columns] != facts["types"]:
        raise Blocked(
            BlockCode.COLUMN_CHANGED,
            f"a column of table {name} that the policy reads was changed: {', '.join(declared.columns_read)}",
            hint=f"check that the policy still means what it should, then: lapse resume URL {name}",
        )


def _find_mark(connection: Connection, declared: BoundPolicy, columns: list[Column]) -> str | None:
    for name, sql in managed.triggers(connection, declared.table).items():
        if name.startswith(MARK_PREFIX) and sql.endswith(_body(columns)):
            return name
    return None


def _mark(connection: Connection, declared: BoundPolicy, columns: list[Column]) -> str:
    table = declared.table
    managed.drop_mark(connection, table)
    name = MARK_PREFIX + secrets.token_hex(8)
    # A trigger costs nothing in statements that are not its event, and primary keys are hardly ever updated.
    event = quote(table.primary_key[0] if table.primary_key else columns[0].name)
    connection.exec_driver_sql(
        f"CREATE TRIGGER {quote(name)} AFTER UPDATE OF {event} ON {quote(table.name.name)}{_body(columns)}"
    )
    return name


def _body(columns: list[Column]) -> str:
    return f" WHEN 0 BEGIN SELECT {', '.join(f'OLD.{quote(column.name)}' for column in columns)}; END"


def _columns(declared: BoundPolicy) -> list[Column]:
    names = dict.fromkeys(declared.columns_read)
    return [column for name in names if (column := declared.table.column(name)) is not None]
