"""Foreign keys that point at a table: which rows they hold, and how many rows go with one."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice
from lapse.engines.mysql.names import qualified, quote
from lapse.model.table import Table, TableName

_ALIAS = "lapse_child"


def unreferenced(table: Table) -> str:
    """True for rows that no RESTRICT or NO ACTION foreign key refers to; empty where there is none.

    InnoDB deletes no row that refers to itself, either, unlike other databases: that one holds itself.
    """
    parent = qualified(table.name)
    conditions = []
    for reference in table.holding_references:
        pairs = " AND ".join(
            f"{_ALIAS}.{quote(child)} = {parent}.{quote(referred)}"
            for child, referred in zip(reference.columns, reference.referred, strict=True)
        )
        conditions.append(f"NOT EXISTS (SELECT 1 FROM {qualified(reference.table)} AS {_ALIAS} WHERE {pairs})")
    return " AND ".join(conditions)


def refers_to_itself(table: Table) -> bool:
    return any(_same(reference.table, table.name) for reference in table.holding_references)


def rows_per_row(connection: Connection, table: Table) -> float:
    """Rows that a deleted row takes along on average, itself included, by the server's statistics."""
    cascading = [reference.table for reference in table.referenced_by if not reference.action.holds]
    if not cascading:
        return 1.0
    own = max(_estimated_rows(connection, table.name), 1)
    return 1.0 + sum(_estimated_rows(connection, child) / own for child in set(cascading))


def advice(table: Table) -> list[Advice]:
    cascading = [reference for reference in table.referenced_by if not reference.action.holds]
    holding = table.holding_references
    found = [
        Advice(
            text=f"foreign key {reference.table}({', '.join(reference.columns)}) to {table.name} has ON DELETE "
            f"{reference.action}: rows of {reference.table} change with every row that expires, and no trigger sees it"
        )
        for reference in cascading
    ]
    found += [
        Advice(
            text=f"foreign key {reference.table}({', '.join(reference.columns)}) to {table.name} holds rows: an "
            "expired row stays while something refers to it"
        )
        for reference in holding
    ]
    return found


def _same(one: TableName, other: TableName) -> bool:
    return (one.schema, one.name) == (other.schema, other.name)


def _estimated_rows(connection: Connection, name: TableName) -> int:
    rows = connection.exec_driver_sql(
        "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s",
        (name.schema, name.name),
    ).scalar()
    return int(rows or 0)
