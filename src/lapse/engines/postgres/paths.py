"""Which way leads to the expired rows: by the planner's estimates, and exact counts where they are cheap."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import BoundPolicy
from lapse.engines.postgres import calling, inspect, partition_state, partitions
from lapse.engines.postgres.calling import TableFacts
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.errors import QUERY_CANCELED, sqlstate
from lapse.engines.postgres.names import own_name, relation
from lapse.engines.postgres.reads import Read
from lapse.engines.postgres.session import TransactionStatus, roll_back, set_locally, status
from lapse.model.job import Path, PathKind
from lapse.model.table import Table, TableKind

INDEX_PATH_SHARE = 0.05
"""The index path pays while at most this share of the rows has expired."""
COUNTED_ROWS = 20_000
"""Expired rows are counted one by one up to here; beyond, the planner's estimate is good enough."""
IN_ORDER = 0.95
"""Correlation of the expiry with the place on disk from which on expired rows are taken to lie together."""
PROBE_MS = 500
"""How long a look at what has expired may take before a job; the job itself finds the rest, and obeys the gates."""
NOT_BEGUN = "begins later than what has expired"
_ROWS = (
    f"coalesce(sum({inspect.DENSITY} * (pg_relation_size(c.oid) / current_setting('block_size')::bigint)), 0)::bigint"
)
"""As the planner does it: density times the size now."""
_ESTIMATED = (
    f"SELECT {_ROWS} AS rows FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%(name)s) AND c.relkind = 'r'"
)
_ESTIMATED_IN_ALL = f"""
    WITH RECURSIVE tree AS (
         SELECT pg_catalog.to_regclass(%(name)s)::oid AS relid
          UNION ALL
         SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid AND c.relkind = 'p'
           JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relid)
    SELECT {_ROWS} AS rows FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid AND c.relkind = 'r'"""


def expected_rows(connection: Connection, declared: BoundPolicy, cutoff: datetime) -> int:
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
    ((found,),) = inspect.together(connection, (query, {"name": relation(table.name)}))
    return int(found["rows"])


def total_bytes(connection: Connection, table: Table) -> int:
    """Indexes and long values included."""
    return int(
        connection.exec_driver_sql(
            "SELECT pg_total_relation_size(to_regclass(%(name)s))", {"name": relation(table.name)}
        ).scalar_one()
        or 0
    )


def path_at_first_sight(declared: BoundPolicy, found: Condition) -> Path | None:
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


def choose_path(connection: Connection, declared: BoundPolicy, cutoff: datetime, found: Condition) -> Path:
    table = declared.table
    state = partition_state.find(connection, table.name) if table.name.partition is not None else None
    if state is not None and state.detachment is not None:
        evidence = f"{table.name.partition} was detached by an earlier job, which did not get to drop it"
        return Path(kind=PathKind.PARTITION, evidence=evidence)
    spans = partitions.spans(connection, state, found)
    if partitions.begins_later(connection, spans, found):
        evidence = f"the range of {table.name.partition} {NOT_BEGUN}"
        return Path(kind=PathKind.PHYSICAL, evidence=evidence, finds_nothing=True)
    if _may_drop(declared, found) and partitions.has_expired(connection, spans, found):
        evidence = f"every row of {table.name.partition} is older than {found.threshold}"
        if not declared.policy.row_by_row:
            return Path(kind=PathKind.PARTITION, evidence=evidence)
        if _is_empty(connection, declared, cutoff):
            evidence = f"{table.name.partition} is empty, and all of its range is older than {found.threshold}"
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


TOO_LONG = object()


def within(
    connection: Connection,
    milliseconds: int,
    declared: BoundPolicy,
    cutoffs: Sequence[datetime],
    what: Read,
    *,
    limit: int = 0,
    known: TableFacts | None = None,
) -> Any:
    """As `calling.read`; TOO_LONG where that takes more than this time. `known` was asked a moment ago."""
    known = known or calling.facts(connection, declared)
    limits = {"statement_timeout": str(milliseconds), "max_parallel_workers_per_gather": "0"}
    before = "; ".join(["SAVEPOINT lapse", *set_locally(limits), ""])
    after = "; SET LOCAL statement_timeout = 0; RELEASE SAVEPOINT lapse"
    try:
        return calling.read(connection, declared, cutoffs, what, limit=limit, known=known, before=before, after=after)
    except DBAPIError as error:
        if status(connection) is TransactionStatus.IN_ERROR:
            roll_back(connection, "ROLLBACK TO SAVEPOINT lapse; RELEASE SAVEPOINT lapse")
        if sqlstate(error.orig) != QUERY_CANCELED or "user request" in str(error.orig):
            raise
        return TOO_LONG


def _is_in_order(connection: Connection, table: Table, column: str | None) -> bool:
    """Do rows lie in the order of the column, as in a log?"""
    own = own_name(table.name)
    correlation = connection.exec_driver_sql(
        "SELECT correlation FROM pg_catalog.pg_stats"
        " WHERE schemaname = %(schema)s AND tablename = %(table)s AND attname = %(column)s AND NOT inherited",
        {"schema": own.schema, "table": own.name, "column": column},
    ).scalar()
    return correlation is not None and abs(float(correlation)) >= IN_ORDER


def _may_drop(declared: BoundPolicy, found: Condition) -> bool:
    """A leaf that foreign keys point at is emptied row by row, so that they are obeyed; and one of which some rows may
    stay, whatever their time."""
    table = declared.table
    if not declared.policy.partition_drop:
        return False
    return table.name.partition is not None and not table.referenced_by and found.is_time_alone


def _is_empty(connection: Connection, declared: BoundPolicy, cutoff: datetime) -> bool:
    """As far as is seen soon, and without a lock: the drop asks again."""
    if partition_state.is_secured(connection, relation(own_name(declared.table.name))):
        return False
    # Most leaves that are not empty say so with their first row.
    if within(connection, PROBE_MS, declared, [cutoff], Read.ANY) is not None:
        return False
    totals = within(connection, PROBE_MS, declared, [cutoff], Read.TOTALS)
    return totals is not TOO_LONG and int(totals[0]) == 0


def _counted(connection: Connection, declared: BoundPolicy, cutoff: datetime) -> int:
    """Up to one more than what is counted, which also stands for what takes long to count."""
    most = COUNTED_ROWS + 1
    counted = within(connection, PROBE_MS, declared, [cutoff], Read.COUNTED, limit=most)
    return most if counted is TOO_LONG else int(counted)
