"""Archive tables in a SQLite file: made like the table, in the same transaction as the policy."""

from __future__ import annotations

from datetime import UTC

from sqlalchemy import Connection

from lapse.engines import archive
from lapse.engines.action import Action, Delete, Move
from lapse.engines.archive import ArchiveShape, archive_of
from lapse.engines.base import BoundPolicy
from lapse.engines.restoring import Dialect
from lapse.engines.sqlite.names import literal, quote
from lapse.errors import Unsupported
from lapse.model.archive import ARCHIVED_AT, JOB, OWN_COLUMNS, SEQUENCE
from lapse.model.policy import Policy
from lapse.model.table import TableName

NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
_MANAGED_TYPE = "TEXT"
_OWN = {SEQUENCE: "INTEGER", JOB: "INTEGER", ARCHIVED_AT: "TEXT"}


def action(declared: BoundPolicy, job: int) -> Action:
    name = archive_of(declared)
    if name is None:
        return Delete()
    named = tuple(quote(column.name) for column in declared.table.columns)
    return Move(archive=quote(name.name), columns=named, now=NOW, job=job)


def check(connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
    """Raises Refused where rows cannot be archived as the policy says."""
    name = archive.to_check(declared, previous)
    if name is None:
        return
    if name.schema is not None:
        raise Unsupported(f"SQLite has no schemas, so there is no archive table {name}", hint="ttl_archive = 'table:'")
    source = archive.planned(declared, columns(connection, declared.table.name), _MANAGED_TYPE)
    archive.refuse_foreign(name, declared.table.name, source, shape(connection, name))


def install(connection: Connection, declared: BoundPolicy) -> None:
    """Make the archive table, or let it follow columns that its table was given since."""
    name = archive_of(declared)
    if name is None:
        return
    source, found = columns(connection, declared.table.name), shape(connection, name)
    archive.refuse_foreign(name, declared.table.name, source, found)
    if found is None:
        own = f"{SEQUENCE} INTEGER PRIMARY KEY AUTOINCREMENT, {JOB} INTEGER, {ARCHIVED_AT} TEXT"
        named = ", ".join(f"{quote(column)} {kind}" for column, kind in source.items())
        # In a table that is STRICT a column of type ANY keeps what it is given; in others it would be made a number.
        strict = " STRICT" if _is_strict(connection, declared.table.name) else ""
        connection.exec_driver_sql(f"CREATE TABLE {quote(name.name)} ({own}, {named}){strict}")
        return
    for column, kind in archive.added(source, found).items():
        connection.exec_driver_sql(f"ALTER TABLE {quote(name.name)} ADD COLUMN {quote(column)} {kind}")


def missing(connection: Connection, declared: BoundPolicy) -> list[str]:
    name = archive_of(declared)
    if name is None:
        return []
    return archive.missing(declared.table, name, columns(connection, declared.table.name), shape(connection, name))


DIALECT = Dialect(
    quote=quote,
    relation=lambda name: quote(name.name),
    instant=lambda at: literal(at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"),
    is_duplicate=lambda error: "UNIQUE constraint failed" in str(error.orig),
)


def shape(connection: Connection, name: TableName) -> ArchiveShape | None:
    kind = connection.exec_driver_sql(
        "SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE", (name.name,)
    ).scalar()
    if kind is None:
        return None
    rows = connection.exec_driver_sql("SELECT * FROM pragma_table_xinfo(?)", (name.name,)).mappings().all()
    found = {str(row["name"]): str(row["type"] or "") for row in rows}
    flaws = [f"it is a {kind}"] if kind != "table" else []
    triggers = connection.exec_driver_sql(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE"
        " AND name NOT LIKE 'lapse\\_armed\\_%' ESCAPE '\\'",
        (name.name,),
    ).scalars()
    flaws += [f"it has a trigger {trigger}" for trigger in triggers]
    for row in rows:
        if row["name"] not in OWN_COLUMNS and (row["notnull"] or row["hidden"]):
            flaws.append(f"its column {row['name']} is {'generated' if row['hidden'] else 'NOT NULL'}")
    unique = connection.exec_driver_sql(
        "SELECT name FROM pragma_index_list(?) WHERE [unique] AND origin <> 'pk'", (name.name,)
    ).scalars()
    flaws += [f"index {index} is unique" for index in unique]
    own = frozenset(column for column, wanted in _OWN.items() if found.get(column, "").upper() == wanted)
    if not any(row["name"] == SEQUENCE and row["pk"] == 1 for row in rows):
        own -= {SEQUENCE}
    kept = {column: kind for column, kind in found.items() if column not in OWN_COLUMNS}
    return ArchiveShape(columns=kept, flaws=tuple(flaws), own=own)


def columns(connection: Connection, name: TableName) -> dict[str, str]:
    rows = connection.exec_driver_sql(
        "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid", (name.name,)
    )
    return {str(column): str(kind or "") for column, kind in rows}


def _is_strict(connection: Connection, name: TableName) -> bool:
    sql = "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
    return bool(connection.exec_driver_sql(sql, (name.name,)).scalar())
