"""Read a table's shape from SQLite's pragmas."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection

from lapse.errors import TableNotFound, Unsupported
from lapse.model.table import CATALOG_TABLES, Column, FkAction, Index, Reference, Table, TableKind, TableName

_KINDS = {"table": TableKind.TABLE, "view": TableKind.VIEW, "virtual": TableKind.VIRTUAL, "shadow": TableKind.SYSTEM}
_HIDDEN_VIRTUAL_COLUMN = 1


def describe(connection: Connection, name: TableName) -> Table:
    if name.schema not in (None, "main", "temp"):
        raise Unsupported(
            f"{name} is in an attached database, which workers do not see",
            hint="open that file by its own URL and declare the policy there",
        )
    row = _table_row(connection, name)
    if row is None:
        raise TableNotFound(f"there is no table {name} in this database")
    real, schema = str(row["name"]), str(row["schema"])
    kind = _KINDS.get(str(row["type"]), TableKind.SYSTEM)
    if schema == "temp" and kind is not TableKind.VIEW:
        kind = TableKind.TEMPORARY
    if real.startswith("sqlite_") or real in CATALOG_TABLES:
        kind = TableKind.SYSTEM
    columns = _rows(connection, "SELECT * FROM pragma_table_xinfo(?)", real)
    primary_key = tuple(str(c["name"]) for c in sorted(columns, key=lambda c: int(c["pk"])) if c["pk"])
    return Table(
        name=TableName(real, "temp" if schema == "temp" else None),
        kind=kind,
        columns=tuple(_column(c) for c in columns if c["hidden"] != _HIDDEN_VIRTUAL_COLUMN),
        primary_key=primary_key,
        key=primary_key if row["wr"] else (),
        indexes=_indexes(connection, real),
        referenced_by=_references(connection, real, primary_key),
    )


def table_names(connection: Connection) -> list[TableName]:
    rows = _rows(
        connection,
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
        " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )
    return [TableName(str(row["name"])) for row in rows if str(row["name"]) not in CATALOG_TABLES]


def _table_row(connection: Connection, name: TableName) -> dict[str, Any] | None:
    """A temporary one hides another of its name."""
    first, second = (name.schema, name.schema) if name.schema else ("temp", "main")
    rows = _rows(
        connection,
        "SELECT schema, name, type, wr FROM pragma_table_list WHERE schema IN (?, ?) AND name = ? COLLATE NOCASE"
        " ORDER BY schema = 'main'",
        first,
        second,
        name.name,
    )
    return rows[0] if rows else None


def full_name(connection: Connection, name: TableName) -> TableName:
    row = _table_row(connection, name)
    if row is None:
        raise TableNotFound(f"there is no table {name} in this database")
    return TableName(str(row["name"]), "temp" if row["schema"] == "temp" else None)


def _column(row: dict[str, Any]) -> Column:
    return Column(
        name=str(row["name"]),
        type=str(row["type"] or ""),
        nullable=not row["notnull"],
        generated=row["hidden"] in (2, 3),
    )


def _indexes(connection: Connection, table: str) -> tuple[Index, ...]:
    found = []
    for row in _rows(connection, "SELECT name, [unique], partial FROM pragma_index_list(?)", table):
        parts = _rows(
            connection,
            "SELECT name, [desc] FROM pragma_index_xinfo(?) WHERE [key] ORDER BY seqno",
            str(row["name"]),
        )
        found.append(
            Index(
                name=str(row["name"]),
                columns=tuple(part["name"] for part in parts),
                unique=bool(row["unique"]),
                partial=bool(row["partial"]),
                ascends=not any(part["desc"] for part in parts),
            )
        )
    return tuple(found)


def _references(connection: Connection, table: str, primary_key: tuple[str, ...]) -> tuple[Reference, ...]:
    rows = _rows(
        connection,
        "SELECT child.name AS child, fk.id, fk.seq, fk.[from], fk.[to], fk.on_delete"
        " FROM pragma_table_list AS child JOIN pragma_foreign_key_list(child.name) AS fk"
        " WHERE child.schema = 'main' AND child.type = 'table' AND fk.[table] = ? COLLATE NOCASE"
        " ORDER BY child.name, fk.id, fk.seq",
        table,
    )
    keys: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        keys[str(row["child"]), int(row["id"])].append(row)
    found = []
    for (child, _), parts in keys.items():
        columns = tuple(str(part["from"]) for part in parts)
        found.append(
            Reference(
                table=TableName(child),
                columns=columns,
                referred=tuple(str(part["to"]) for part in parts) if parts[0]["to"] else primary_key,
                action=FkAction(str(parts[0]["on_delete"]).upper()),
                indexed=_is_indexed(connection, child, columns),
            )
        )
    return tuple(found)


def _is_indexed(connection: Connection, table: str, columns: tuple[str, ...]) -> bool:
    wanted = {column.lower() for column in columns}
    keyed = _rows(connection, "SELECT name FROM pragma_table_xinfo(?) WHERE pk > 0 ORDER BY pk", table)
    candidates = [tuple(row["name"] for row in keyed)]
    candidates += [index.columns for index in _indexes(connection, table) if not index.partial]
    return any({str(name).lower() for name in candidate[: len(wanted)]} == wanted for candidate in candidates)


def _rows(connection: Connection, sql: str, *parameters: object) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.exec_driver_sql(sql, parameters or None).mappings()]
