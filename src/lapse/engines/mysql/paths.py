"""Which way leads to the expired rows, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from lapse.engines import condition as shared
from lapse.engines.base import BoundPolicy, Footprint
from lapse.engines.mysql import condition, partitions, zones
from lapse.engines.mysql.condition import Condition
from lapse.engines.mysql.inspect import whole
from lapse.engines.mysql.keys import ROW_ID
from lapse.engines.mysql.names import quote, source
from lapse.engines.mysql.session import is_tidb
from lapse.engines.zones import block_guess
from lapse.model.job import Path, PathKind
from lapse.model.table import Index, Table, TableName

INDEX_PATH_SHARE = 0.05
"""The index path pays while at most this share of the rows has expired."""
INDEX_PATH_ROWS = 1_000


def choose(connection: Connection, declared: BoundPolicy, compiled: shared.Condition) -> Path:
    table = declared.table
    block_guess(declared, zones.in_doubt(connection, declared))
    found = condition.own(compiled)
    if declared.policy.partition_drop and partitions.whole_range_expired(connection, declared, found):
        evidence = f"partition {table.name.partition}: its whole range has expired"
        if not declared.policy.row_by_row:
            return Path(kind=PathKind.PARTITION, evidence=evidence)
        if partitions.is_empty(connection, table.name):
            return Path(kind=PathKind.PARTITION, evidence=f"{evidence}, and it is empty")
    order = "primary key order" if table.key == table.primary_key else _other_order(table)
    index = expiry_index(table, found.column.name) if found.column else None
    if index is None:
        reason = "no index on the expiry column alone" if found.column else "expiry is an expression"
        return Path(kind=PathKind.PHYSICAL, evidence=f"{order}: {reason}")
    enough = max(int(estimate_rows(connection, table.name) * INDEX_PATH_SHARE), INDEX_PATH_ROWS)
    seen = _count_up_to(connection, table.name, index, found, enough + 1)
    if seen > enough:
        return Path(kind=PathKind.PHYSICAL, evidence=f"{order}: more than {enough} rows have expired")
    return Path(kind=PathKind.INDEX, index=index.name, evidence=f"index {index.name}: about {seen} rows have expired")


def _other_order(table: Table) -> str:
    return f"order of {ROW_ID}" if table.key == (ROW_ID,) else "order of a unique key"


def expiry_index(table: Table, column: str) -> Index | None:
    """An index on that column alone: rows of equal expiry then come in the order of the key, which InnoDB appends, and
    TiDB as well."""
    if table.key not in (table.primary_key, (ROW_ID,)):
        return None
    return next((i for i in table.indexes if not i.partial and i.columns == (column,) and i.name != "PRIMARY"), None)


def estimate_rows(connection: Connection, name: TableName) -> int:
    return footprint(connection, name).rows or 0


def footprint(connection: Connection, name: TableName) -> Footprint:
    """Of a table, or of one of its partitions."""
    found = statistics(connection, name, "TABLE_ROWS, DATA_LENGTH + INDEX_LENGTH") or (None, None)
    return Footprint(rows=whole(found[0]), bytes=whole(found[1]))


def footprints(connection: Connection, names: Sequence[TableName]) -> dict[TableName, Footprint]:
    """A statement for each schema; nearly always there is one. The server counts no inserts of a single table unless it
    was told to."""
    found: dict[TableName, Footprint] = {}
    for schema in {name.schema for name in names}:
        wanted = [name.name for name in names if name.schema == schema]
        rows = connection.exec_driver_sql(
            "SELECT TABLE_NAME, TABLE_ROWS, DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES"
            f" WHERE TABLE_SCHEMA = coalesce(%s, DATABASE()) AND TABLE_NAME IN ({', '.join(['%s'] * len(wanted))})",
            (schema, *wanted),
        )
        for name, count, size in rows:
            # TiDB knows no size until it has analysed the table.
            known = None if is_tidb(connection) and not size else whole(size)
            found[TableName(str(name), schema)] = Footprint(rows=whole(count), bytes=known)
    return found


def _count_up_to(connection: Connection, name: TableName, index: Index, found: Condition, most: int) -> int:
    return int(
        connection.exec_driver_sql(
            f"SELECT count(*) FROM (SELECT 1 FROM {source(name)} FORCE INDEX ({quote(index.name)})"
            f" WHERE {found.expired} LIMIT {most}) AS seen"
        ).scalar_one()
    )


def table_bytes(connection: Connection, name: TableName) -> int | None:
    return footprint(connection, name).bytes


def statistics(connection: Connection, name: TableName, expressions: str) -> Sequence[Any] | None:
    """Of the server's statistics about a partition, or a table without any."""
    view, of_partition = "TABLES", ""
    if name.partition is not None:
        view, of_partition = "PARTITIONS", " AND %(partition)s IN (PARTITION_NAME, SUBPARTITION_NAME)"
    return connection.exec_driver_sql(
        f"SELECT {expressions} FROM information_schema.{view}"
        f" WHERE TABLE_SCHEMA = coalesce(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s{of_partition} LIMIT 1",
        {"schema": name.schema, "name": name.name, "partition": name.partition},
    ).first()
