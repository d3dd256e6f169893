"""What is in a table: the planner's estimates, exact counts where they are cheap, and the path they lead to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import Declared, Footprint, Survey, Target
from lapse.engines.postgres import condition, leaving, partitions
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.names import own_name, quote, relation
from lapse.model.job import Path, PathKind
from lapse.model.table import Table

INDEX_PATH_SHARE = 0.05
"""The index path pays while at most this share of the rows has expired."""
COUNTED_ROWS = 20_000
"""Expired rows are counted one by one up to here; beyond, the planner's estimate is good enough."""
IN_ORDER = 0.95
"""Correlation of the expiry with the place on disk from which on expired rows are taken to lie together."""
BLOCK_BYTES = 8192
"""Almost everywhere."""
EXACT_ROWS = 2_000_000
"""A survey counts tables up to about this many rows; larger ones are estimated."""

_RECKONED = """
    SELECT pg_relation_size(c.oid) AS bytes, has_any_column_privilege(c.oid, 'SELECT') AS readable,
           greatest(reltuples, 0)::bigint AS rows_then,
           CASE WHEN relpages > 0 AND reltuples > 0
                THEN (reltuples / relpages * (pg_relation_size(c.oid) / current_setting('block_size')::bigint))::bigint
                END AS rows
      FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%(name)s)"""
"""As the planner does it: density at the last ANALYZE times the size now."""


def expected_rows(connection: Connection, sql: str) -> int:
    """How many rows the planner expects of a query."""
    return int(_plan(connection, sql)["Plan Rows"])


def _plan(connection: Connection, sql: str) -> dict[str, Any]:
    plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}").scalar_one()
    found: dict[str, Any] = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return found


def blocks(connection: Connection, table: Table) -> int:
    return int(
        connection.exec_driver_sql(
            "SELECT pg_relation_size(to_regclass(%(name)s)) / current_setting('block_size')::bigint",
            {"name": relation(table.name)},
        ).scalar_one()
        or 0
    )


def estimate_rows(connection: Connection, table: Table) -> int:
    """A worker need not be able to read a table whose foreign key cascades; then the planner tells it nothing."""
    found = connection.exec_driver_sql(_RECKONED, {"name": relation(table.name)}).first()
    if found is None or not (found.bytes or table.partitions):
        return 0
    if found.rows is not None and not table.partitions:
        return int(found.rows)
    return _planned_rows(connection, table) if found.readable else int(found.rows_then)


def _planned_rows(connection: Connection, table: Table) -> int:
    return expected_rows(connection, f"SELECT 1 FROM {relation(table.name)}")


def rows_per_block(connection: Connection, table: Table) -> float:
    """Where the table was never analyzed."""
    size = blocks(connection, table)
    return _planned_rows(connection, table) / size if size else 0.0


def total_bytes(connection: Connection, table: Table) -> int:
    """Indexes and long values included."""
    return int(
        connection.exec_driver_sql(
            "SELECT pg_total_relation_size(to_regclass(%(name)s))", {"name": relation(table.name)}
        ).scalar_one()
        or 0
    )


def footprint(connection: Connection, table: Table) -> Footprint:
    """Of all partitions together; a partitioned table has no storage of its own."""
    size, inserted = connection.exec_driver_sql(
        "SELECT sum(pg_total_relation_size(part)), sum(pg_stat_get_tuples_inserted(part)) FROM ("
        " SELECT relid::oid AS part FROM pg_partition_tree(%s::regclass) WHERE isleaf"
        " UNION SELECT %s::regclass::oid) AS parts",
        (relation(table.name), relation(table.name)),
    ).one()
    return Footprint(bytes=int(size), inserted=int(inserted))


def path_at_first_sight(declared: Declared, cutoff: datetime) -> Path | None:
    """Of a table that nobody need look into, which is neither a partition nor has an index on the expiry."""
    table, column = declared.table, condition.at(declared, cutoff).column
    if table.name.partition is not None or (column and table.index_on(column)):
        return None
    return _without_index(table, column)


def _without_index(table: Table, column: str | None) -> Path:
    summary = table.summary_of(column) if column else None
    if summary is not None:
        evidence = f"heap blocks in order, from the first to the last that index {summary.name} does not rule out"
        return Path(kind=PathKind.PHYSICAL, index=summary.name, evidence=evidence)
    reason = "no index on the expiry column" if column else "expiry is an expression"
    return Path(kind=PathKind.PHYSICAL, evidence=f"heap blocks in order: {reason}")


def choose_path(connection: Connection, declared: Declared, cutoff: datetime) -> Path:
    table, found = declared.table, condition.at(declared, cutoff)
    if table.name.partition is not None and leaving.place(connection, table.name).has_left:
        evidence = f"{table.name.partition} was detached by an earlier job, which did not get to drop it"
        return Path(kind=PathKind.PARTITION, evidence=evidence)
    if declared.policy.partition_drop and _may_drop(connection, declared, found):
        evidence = f"every row of {table.name.partition} is older than {found.threshold}"
        return Path(kind=PathKind.PARTITION, evidence=evidence)
    index = table.index_on(found.column) if found.column else None
    if index is None:
        return _without_index(table, found.column)
    total = estimate_rows(connection, table)
    counted = _counted(connection, table, found)
    exact = counted <= COUNTED_ROWS
    expired = counted if exact else max(counted, _expected_expired(connection, table, found))
    words = f"{'' if exact else 'about '}{expired} of about {total} rows have expired"
    if expired <= max(total * INDEX_PATH_SHARE, 1_000):
        return Path(kind=PathKind.INDEX, index=index.name, evidence=f"index {index.name}: {words}")
    if _is_in_order(connection, table, found.column):
        words += f", all in one place by index {index.name}"
        return Path(kind=PathKind.PHYSICAL, index=index.name, evidence=f"heap blocks in order: {words}")
    return Path(kind=PathKind.PHYSICAL, evidence=f"heap blocks in order: {words}")


def expired_blocks(connection: Connection, target: Target) -> tuple[int, int]:
    """The blocks that hold what has expired, the second bound excluded; equal where nothing has.

    An index that rules blocks out bounds them without reading the others. A small table is looked through for a single
    expired row, which costs as much as counting them, and only where there is none.
    """
    table, found = target.declared.table, condition.at(target.declared, target.cutoff)
    total = blocks(connection, table)
    if target.path.index is not None:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        low, high = connection.exec_driver_sql(
            f"SELECT min(ctid)::text, max(ctid)::text FROM ONLY {relation(table.name)} WHERE {found.sql}"
        ).one()
        return (_block(low), min(_block(high) + 1, total)) if low is not None else (0, 0)
    if not target.may_be_glanced_through(total * BLOCK_BYTES):
        return 0, total
    one = connection.exec_driver_sql(f"SELECT 1 FROM ONLY {relation(table.name)} WHERE {found.unindexed} LIMIT 1")
    return (0, total) if one.first() is not None else (0, 0)


def _block(address: str) -> int:
    return int(address.strip("()").split(",")[0])


def _is_in_order(connection: Connection, table: Table, column: str | None) -> bool:
    """Do rows lie in the order of the column, as in a log?"""
    own = own_name(table.name)
    correlation = connection.exec_driver_sql(
        "SELECT correlation FROM pg_catalog.pg_stats"
        " WHERE schemaname = %(schema)s AND tablename = %(table)s AND attname = %(column)s AND NOT inherited",
        {"schema": own.schema, "table": own.name, "column": column},
    ).scalar()
    return correlation is not None and abs(float(correlation)) >= IN_ORDER


def _may_drop(connection: Connection, declared: Declared, found: Condition) -> bool:
    """A leaf that foreign keys point at is emptied row by row, so that they are obeyed."""
    table = declared.table
    if table.name.partition is None or table.referenced_by:
        return False
    return partitions.has_expired(connection, table.name, found)


def _counted(connection: Connection, table: Table, found: Condition) -> int:
    return int(
        connection.exec_driver_sql(
            f"SELECT count(*) FROM (SELECT 1 FROM ONLY {relation(table.name)} WHERE {found.sql}"
            f" ORDER BY {quote(found.column or '')} LIMIT {COUNTED_ROWS + 1}) counted"
        ).scalar_one()
    )


def _expected_expired(connection: Connection, table: Table, found: Condition) -> int:
    return expected_rows(connection, f"SELECT 1 FROM ONLY {relation(table.name)} WHERE {found.sql}")


def survey(connection: Connection, target: Target) -> Survey:
    table = target.declared.table
    found = condition.at(target.declared, target.cutoff)
    size = total_bytes(connection, table)
    total = estimate_rows(connection, table)
    if total > EXACT_ROWS:
        expired = min(_expected_expired(connection, table, found), total)
        oldest, newest = _extremes(connection, table, found)
        method = "planner statistics: EXPLAIN"
    else:
        row = connection.exec_driver_sql(
            f"SELECT count(*), count(*) FILTER (WHERE {found.sql}), min({found.instant}) FILTER (WHERE {found.sql}),"
            f" max({found.instant}) FILTER (WHERE {found.sql}) FROM ONLY {relation(table.name)}"
        ).one()
        total, expired, oldest, newest, method = int(row[0]), int(row[1]), row[2], row[3], "scan"
    return Survey(
        rows=total,
        expired=expired,
        oldest=utc(oldest),
        newest=utc(newest),
        bytes=size * expired // total if total else 0,
        exact=method == "scan",
        method=method,
    )


def _extremes(connection: Connection, table: Table, found: Condition) -> tuple[Any, Any]:
    """Of a large table only an index tells them."""
    if found.column is None or table.index_on(found.column) is None:
        return None, None
    low, high = (
        connection.exec_driver_sql(
            f"SELECT {found.instant} FROM ONLY {relation(table.name)} WHERE {found.sql}"
            f" ORDER BY {quote(found.column)} {order} LIMIT 1"
        ).scalar()
        for order in ("ASC", "DESC")
    )
    return low, high


def sample(connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
    found = condition.at(target.declared, target.cutoff)
    table = target.declared.table
    columns = ", ".join(quote(column.name) for column in table.columns)
    rows = connection.exec_driver_sql(
        f"SELECT {columns} FROM ONLY {relation(table.name)} WHERE {found.sql} LIMIT {int(count)}"
    )
    return [dict(row) for row in rows.mappings()]


def utc(moment: Any) -> datetime | None:
    return moment.astimezone(UTC) if isinstance(moment, datetime) else None
