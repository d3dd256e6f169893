"""Indexes that a table with TTL lacks, or has in vain."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice, BoundPolicy
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import (
    quote,
    relation,
)
from lapse.model.policy import ColumnExpiry
from lapse.model.table import TableKind, TableName

BIG_TABLE_ROWS = 1_000_000
"""From here on an index that is never read costs enough to be pointed out."""

_UNUSED = """
    SELECT 1 FROM pg_catalog.pg_stat_user_indexes i JOIN pg_catalog.pg_stat_user_tables t ON t.relid = i.relid
     WHERE i.relid = to_regclass(%(name)s) AND i.indexrelname = %(index)s AND i.idx_scan = 0
       AND t.n_live_tup >= %(rows)s
       AND (SELECT stats_reset < now() - interval '30 days' FROM pg_catalog.pg_stat_database
             WHERE datname = current_database())"""

_PARTITIONED = "SELECT relkind = 'p' AS it FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%(name)s)"


def indexes(connection: Connection, declared: BoundPolicy) -> list[Advice]:
    expiry, table, policy = declared.policy.expiry, declared.table, declared.policy
    if not isinstance(expiry, ColumnExpiry) or table.index_on(expiry.column) or table.kind is TableKind.PARTITIONED:
        return []
    if policy.partition_drop and table.name.partition is not None:
        # It is dropped whole, for which no index is read.
        return []
    return [
        Advice(
            text=f"no index on {expiry.column}: each run reads the whole table; an index helps when few expire at once",
            statement=create_index(connection, table.name, (expiry.column,)),
        )
    ]


def unused(connection: Connection, declared: BoundPolicy) -> list[Advice]:
    """An index on the expiry column that is never read still costs every insert and delete."""
    expiry, table = declared.policy.expiry, declared.table
    index = table.index_on(expiry.column) if isinstance(expiry, ColumnExpiry) else None
    if index is None or index.unique or table.kind is TableKind.PARTITIONED:
        return []
    values = {"name": relation(table.name), "index": index.name, "rows": BIG_TABLE_ROWS}
    if not rows(connection, _UNUSED, values):
        return []
    schema = f"{quote(table.name.schema)}." if table.name.schema else ""
    return [
        Advice(
            text=f"index {index.name} was not read in the last month, neither by jobs nor by other sessions",
            statement=f"DROP INDEX CONCURRENTLY {schema}{quote(index.name)};",
        )
    ]


def create_index(connection: Connection, table: TableName, columns: tuple[str, ...]) -> str:
    """Without a name, so that PostgreSQL takes one that is free. A partitioned table has none that is concurrent."""
    is_partitioned = any(row["it"] for row in rows(connection, _PARTITIONED, {"name": relation(table)}))
    concurrently = "" if is_partitioned else " CONCURRENTLY"
    return f"CREATE INDEX{concurrently} ON {relation(table)} ({', '.join(quote(column) for column in columns)});"
