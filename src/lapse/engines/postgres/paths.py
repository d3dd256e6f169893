"""What is in a table: the planner's estimates, exact counts where they are cheap, and the path they lead to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Declared, Survey, Target
from lapse.engines.postgres import calling, condition, inspect, partition_state, partitions
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.errors import QUERY_CANCELED, sqlstate
from lapse.engines.postgres.names import own_name, quote, relation
from lapse.engines.postgres.reads import Read
from lapse.engines.postgres.session import savepoint, set_locally
from lapse.model.job import Path, PathKind
from lapse.model.policy import ColumnExpiry
from lapse.model.table import Table, TableKind

INDEX_PATH_SHARE = 0.05
"""The index path pays while at most this share of the rows has expired."""
COUNTED_ROWS = 20_000
"""Expired rows are counted one by one up to here; beyond, the planner's estimate is good enough."""
IN_ORDER = 0.95
"""Correlation of the expiry with the place on disk from which on expired rows are taken to lie together."""
PROBE_MS = 500
"""How long a look at what has expired may take before a job; the job itself finds the rest, and obeys the gates."""
PRESCAN_MS = 100
"""The same for a table without an index, and where `ttl_select_rate_limit` is set."""
BLOCK_BYTES = 8192
"""Almost everywhere."""
NOT_BEGUN = "begins later than what has expired"
EXACT_ROWS = 2_000_000
"""A survey counts tables up to about this many rows; larger ones are estimated."""

_ROWS = (
    f"coalesce(sum({inspect.DENSITY} * (pg_relation_size(c.oid) / current_setting('block_size')::bigint)), 0)::bigint"
)
"""As the planner does it: density times the size now."""
_ESTIMATED = f"SELECT {_ROWS} FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%(name)s) AND c.relkind = 'r'"
_ESTIMATED_IN_ALL = f"""
    WITH RECURSIVE tree AS (
         SELECT pg_catalog.to_regclass(%(name)s)::oid AS relid
          UNION ALL
         SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid AND c.relkind = 'p'
           JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relid)
    SELECT {_ROWS} FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid AND c.relkind = 'r'"""


def expected_rows(connection: Connection, declared: Declared, cutoff: datetime) -> int:
    """How many rows the planner expects to have expired."""
    return _plan_rows(calling.read(connection, declared, [cutoff], Read.EXPECTED))


def _plan_rows(plan: Any) -> int:
    return int((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]["Plan Rows"])


def blocks(connection: Connection, table: Table) -> int:
    return int(
        connection.exec_driver_sql(
            "SELECT pg_relation_size(to_regclass(%(name)s)) / current_setting('block_size')::bigint",
            {"name": relation(table.name)},
        ).scalar_one()
        or 0
    )


def estimate_rows(connection: Connection, table: Table) -> int:
    """From the server's own catalog alone: a worker need not be able to read the table."""
    query = _ESTIMATED_IN_ALL if table.kind is TableKind.PARTITIONED else _ESTIMATED
    return int(connection.exec_driver_sql(query, {"name": relation(table.name)}).scalar_one())


def total_bytes(connection: Connection, table: Table) -> int:
    """Indexes and long values included."""
    return int(
        connection.exec_driver_sql(
            "SELECT pg_total_relation_size(to_regclass(%(name)s))", {"name": relation(table.name)}
        ).scalar_one()
        or 0
    )


def path_at_first_sight(declared: Declared, found: Condition) -> Path | None:
    """Of a table that need not be looked into, which is neither a partition nor has an index on the expiry."""
    table, column = declared.table, found.column
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


def choose_path(connection: Connection, declared: Declared, cutoff: datetime, found: Condition) -> Path:
    table = declared.table
    state = partition_state.find(connection, table.name) if table.name.partition is not None else None
    if state is not None and state.detachment is not None:
        evidence = f"{table.name.partition} was detached by an earlier job, which did not get to drop it"
        return Path(kind=PathKind.PARTITION, evidence=evidence)
    if state is not None and partitions.begins_later(connection, table.name, found):
        return Path(kind=PathKind.PHYSICAL, evidence=f"the range of {table.name.partition} {NOT_BEGUN}")
    if declared.policy.partition_drop and _may_drop(connection, declared, found):
        evidence = f"every row of {table.name.partition} is older than {found.threshold}"
        return Path(kind=PathKind.PARTITION, evidence=evidence)
    index = table.index_on(found.column) if found.column else None
    if index is None:
        return _without_index(table, found.column)
    total = estimate_rows(connection, table)
    counted = _counted(connection, declared, cutoff)
    exact = counted <= COUNTED_ROWS
    expired = counted if exact else max(counted, expected_rows(connection, declared, cutoff))
    words = f"{'' if exact else 'about '}{expired} of about {total} rows have expired"
    # Where more than times decide, a long stretch of the index may hold nothing: then it has been walked to its end.
    may_skip = exact or found.is_time_alone
    if may_skip and expired <= max(total * INDEX_PATH_SHARE, 1_000):
        return Path(kind=PathKind.INDEX, index=index.name, evidence=f"index {index.name}: {words}")
    if _is_in_order(connection, table, found.column):
        words += f", all in one place by index {index.name}"
        return Path(kind=PathKind.PHYSICAL, index=index.name, evidence=f"heap blocks in order: {words}")
    return Path(kind=PathKind.PHYSICAL, evidence=f"heap blocks in order: {words}")


def expired_blocks(connection: Connection, target: Target) -> tuple[int, int]:
    """The blocks that hold what has expired, the second bound excluded; equal where nothing has.

    An index that rules blocks out bounds them without reading the others. A small table is looked through for a single
    expired row. Neither may take long: it is done for one table after another, and no gate is asked.
    """
    table, found = target.declared.table, condition.own(target.condition)
    if table.name.partition is not None and partitions.begins_later(connection, table.name, found):
        return 0, 0
    total = blocks(connection, table)
    if target.path.index is not None:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        extent = within(
            connection,
            PRESCAN_MS if target.declared.policy.select_rate_limit else PROBE_MS,
            lambda: calling.read(connection, target.declared, [target.cutoff], Read.EXTENT),
        )
        if extent is TOO_LONG:
            return 0, total
        low, high = extent
        return (_block(low), min(_block(high) + 1, total)) if low is not None else (0, 0)
    if not target.fits_one_scan(total * BLOCK_BYTES):
        return 0, total
    one = within(connection, PRESCAN_MS, lambda: calling.read(connection, target.declared, [target.cutoff], Read.ANY))
    return (0, 0) if one is None else (0, total)


TOO_LONG = object()


def within(connection: Connection, milliseconds: int, look: Callable[[], Any]) -> Any:
    """What a look finds, inside the caller's transaction; TOO_LONG where that takes more than this time."""
    limits = {"statement_timeout": str(milliseconds), "max_parallel_workers_per_gather": "0"}
    try:
        with savepoint(connection, before=set_locally(limits), after=["SET LOCAL statement_timeout = 0"]):
            return look()
    except DBAPIError as error:
        if sqlstate(error.orig) != QUERY_CANCELED or "user request" in str(error.orig):
            raise
        return TOO_LONG


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
    """A leaf that foreign keys point at is emptied row by row, so that they are obeyed; and one of which some rows may
    stay, whatever their time."""
    table = declared.table
    if table.name.partition is None or table.referenced_by or not found.is_time_alone:
        return False
    return partitions.has_expired(connection, table.name, found)


def _counted(connection: Connection, declared: Declared, cutoff: datetime) -> int:
    """Up to one more than what is counted, which also stands for what takes long to count."""
    most = COUNTED_ROWS + 1
    counted = within(
        connection, PROBE_MS, lambda: calling.read(connection, declared, [cutoff], Read.COUNTED, limit=most)
    )
    return most if counted is TOO_LONG else int(counted)


def survey(connection: Connection, target: Target) -> Survey:
    table, declared = target.declared.table, target.declared
    size = total_bytes(connection, table)
    total = estimate_rows(connection, table)
    if total > EXACT_ROWS:
        expired = min(expected_rows(connection, declared, target.cutoff), total)
        oldest, newest = _extremes(connection, target)
        method = "planner statistics: EXPLAIN"
    else:
        total, expired, oldest, newest = calling.read(connection, declared, [target.cutoff], Read.TOTALS)
        method = "scan"
    return Survey(
        rows=total,
        expired=expired,
        oldest=utc(oldest),
        newest=utc(newest),
        bytes=size * expired // total if total else 0,
        exact=method == "scan",
        method=method,
    )


def _extremes(connection: Connection, target: Target) -> tuple[Any, Any]:
    """Of a large table only an index tells them."""
    expiry = target.declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry) or target.declared.table.index_on(expiry.column) is None:
        return None, None
    if not target.condition.is_time_alone:
        return None, None
    first, last = (calling.read(connection, target.declared, [target.cutoff], each) for each in (Read.FIRST, Read.LAST))
    return first, last


def sample(connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
    """With this role's own right to read: a batch function gives nothing of a row away, and what belongs to a table of
    another role's runs with no other right than that role's."""
    function = calling.find(connection, target.declared.table.name)
    if function is not None and not function.is_own:
        return []
    found = condition.own(target.condition)
    table = target.declared.table
    columns = ", ".join(quote(column.name) for column in table.columns)
    rows = connection.exec_driver_sql(
        f"SELECT {columns} FROM ONLY {relation(table.name)} WHERE {found.sql} LIMIT {int(count)}"
    )
    return [dict(row) for row in rows.mappings()]


def utc(moment: Any) -> datetime | None:
    """Of an instant in JSON; None for one that Python cannot hold."""
    try:
        return None if moment is None else datetime.fromisoformat(moment).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
