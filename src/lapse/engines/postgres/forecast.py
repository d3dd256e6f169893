"""How many rows expire when: counted in a small table, in a large one told by the planner's statistics or a sample."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from math import isqrt

from sqlalchemy import Connection

from lapse.engines.base import Declared, Expiring
from lapse.engines.buckets import bucket, running_totals
from lapse.engines.postgres import condition, survey
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.names import quote, relation
from lapse.model.table import Table

SCANNED_ROWS = 200_000
"""A table of at most this many rows is counted: that takes a few milliseconds."""
SAMPLE_ROWS = 100_000
"""Whole blocks are drawn, whose rows are alike, so it takes more of them than of single rows."""

_BOUNDS = """
    SELECT coalesce(array_length(histogram_bounds::text::text[], 1), 0)
      FROM pg_catalog.pg_stats
     WHERE schemaname = (SELECT n.nspname FROM pg_catalog.pg_class c
                           JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%(name)s))
       AND tablename = (SELECT relname FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s))
       AND attname = %(column)s AND NOT inherited"""


def expiring(connection: Connection, declared: Declared, instants: Sequence[datetime], *, exact: bool) -> Expiring:
    table = declared.table
    conditions = [condition.at(declared, instant) for instant in instants]
    total = survey.estimate_rows(connection, table)
    if exact or total <= SCANNED_ROWS:
        return _counted(connection, table, conditions)
    bounds = _histogram_bounds(connection, table, conditions[0].column)
    if bounds > 1:
        return _planned(connection, table, conditions, total, bounds)
    return _sampled(connection, table, conditions, total)


def _counted(connection: Connection, table: Table, conditions: Sequence[Condition]) -> Expiring:
    rows = _rows(connection, table, conditions)
    return Expiring(
        counts=running_totals([(row[0], row[1]) for row in rows], len(conditions)),
        rows=sum(row[1] for row in rows),
        bytes=survey.total_bytes(connection, table),
        oldest=_oldest(rows),
        exact=True,
        method="scan",
    )


def _planned(
    connection: Connection, table: Table, conditions: Sequence[Condition], total: int, bounds: int
) -> Expiring:
    """The planner reads its histogram between two bounds as a straight line: it is off by one stretch at most."""
    counts = [
        survey.expected_rows(connection, f"SELECT 1 FROM ONLY {relation(table.name)} WHERE {each.sql}")
        for each in conditions
    ]
    # One row is what the planner says where it expects none.
    counts = [0 if count <= 1 else min(count, total) for count in counts]
    return Expiring(
        counts=tuple(accumulate(counts, max)),
        rows=total,
        bytes=survey.total_bytes(connection, table),
        oldest=_earliest(connection, table, conditions[0]),
        exact=False,
        method=f"planner statistics, a histogram of {bounds - 1:,} parts",
        margin=total // (bounds - 1),
    )


def _sampled(connection: Connection, table: Table, conditions: Sequence[Condition], total: int) -> Expiring:
    rows = _rows(connection, table, conditions, _tablesample(total))
    hits = sum(row[1] for row in rows)
    weight = total / hits if hits else 0.0
    counts = running_totals([(row[0], row[1]) for row in rows], len(conditions))
    blocks = max(survey.blocks(connection, table) * hits // max(total, 1), 1)
    return Expiring(
        counts=tuple(round(count * weight) for count in counts),
        rows=total,
        bytes=survey.total_bytes(connection, table),
        oldest=_oldest(rows),
        exact=False,
        method=f"sample of {hits:,} rows",
        margin=total // max(isqrt(blocks), 1),
    )


def _tablesample(total: int) -> str:
    return f" TABLESAMPLE SYSTEM ({min(100.0, 100.0 * SAMPLE_ROWS / total):.6f}) REPEATABLE (1)"


def _rows(
    connection: Connection, table: Table, conditions: Sequence[Condition], sample: str = ""
) -> list[tuple[int, int, datetime | None]]:
    """(bucket, rows, earliest expiry)."""
    number = bucket([each.sql for each in conditions])
    found = connection.exec_driver_sql(
        f"SELECT {number}, count(*), min({conditions[0].instant}) FROM ONLY {relation(table.name)}{sample} GROUP BY 1"
    )
    return [(int(row[0]), int(row[1]), survey.utc(row[2])) for row in found]


def _oldest(rows: list[tuple[int, int, datetime | None]]) -> datetime | None:
    return min((row[2] for row in rows if row[2] is not None), default=None)


def _earliest(connection: Connection, table: Table, found: Condition) -> datetime | None:
    """By the index, if there is one; otherwise of a sample."""
    name, column = relation(table.name), found.column or ""
    if table.index_on(column) is None:
        total = survey.estimate_rows(connection, table)
        sql = f"SELECT min({found.instant}) FROM ONLY {name}{_tablesample(total)}"
    else:
        sql = (
            f"SELECT {found.instant} FROM ONLY {name} WHERE {quote(column)} IS NOT NULL"
            f" ORDER BY {quote(column)} LIMIT 1"
        )
    return survey.utc(connection.exec_driver_sql(sql).scalar())


def _histogram_bounds(connection: Connection, table: Table, column: str | None) -> int:
    """How finely the planner knows the column; 0 where it does not."""
    if column is None:
        return 0
    values = {"name": relation(table.name), "column": column}
    return int(connection.exec_driver_sql(_BOUNDS, values).scalar() or 0)
