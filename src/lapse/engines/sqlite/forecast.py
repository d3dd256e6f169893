"""How many rows expire when: counted in a small table, in a large one estimated from rows spread all over it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import isqrt

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Declared, Expiring
from lapse.engines.buckets import bucket, running_totals
from lapse.engines.sqlite import condition
from lapse.engines.sqlite.names import quote, row_address
from lapse.model.table import Table

SCANNED_ROWS = 100_000
"""A table of at most this many row ids is counted: that takes a few milliseconds."""
SAMPLE_POINTS = 20_000
MIN_HITS = 2_000
"""Row ids too sparse for this many hits make a sample too small to speak for the table."""
_JITTER = 2_654_435_761
"""Moves each point within its own stretch, so that no pattern in the row ids repeats in the sample."""
_ROW_OVERHEAD_BYTES = 8


def expiring(connection: Connection, declared: Declared, instants: Sequence[datetime], *, exact: bool) -> Expiring:
    table = declared.table
    if not exact and not table.key:
        low, high = row_ids(connection, table)
        if low is not None and high - low >= SCANNED_ROWS:
            found = _sampled(connection, declared, instants, low, high)
            if found is not None:
                return found
    rows = _rows(connection, declared, instants, "")
    total = sum(row[1] for row in rows)
    return Expiring(
        counts=running_totals([(row[0], row[1]) for row in rows], len(instants)),
        rows=total,
        bytes=table_bytes(connection, table.name.name),
        oldest=min((row[2] for row in rows if row[2] is not None), default=None),
        exact=True,
        method="scan",
    )


def row_ids(connection: Connection, table: Table) -> tuple[int | None, int]:
    """The lowest and highest row id; (None, 0) of an empty table."""
    address, name = row_address(table), quote(table.name.name)
    low, high = connection.exec_driver_sql(
        f"SELECT (SELECT min({address}) FROM {name}), (SELECT max({address}) FROM {name})"
    ).one()
    return (None, 0) if low is None else (int(low), int(high))


def _sampled(
    connection: Connection, declared: Declared, instants: Sequence[datetime], low: int, high: int
) -> Expiring | None:
    """Each point is a row id that may or may not be there: how many are says how many rows there are."""
    drawn, points = sample_points(low, high)
    span = high - low + 1
    rows = _rows(connection, declared, instants, f" WHERE {row_address(declared.table)} IN ({drawn})")
    hits = sum(row[1] for row in rows)
    if hits < MIN_HITS:
        return None
    weight = span / points
    total = round(hits * weight)
    counts = running_totals([(row[0], row[1]) for row in rows], len(instants))
    return Expiring(
        counts=tuple(round(count * weight) for count in counts),
        rows=total,
        bytes=round(sum(row[3] for row in rows) * weight),
        oldest=min((row[2] for row in rows if row[2] is not None), default=None),
        exact=False,
        method=f"sample of {hits:,} rows",
        # Two standard deviations where half of the rows have expired, which is where they are largest.
        margin=total // isqrt(hits),
    )


def sample_points(low: int, high: int) -> tuple[str, int]:
    """A query for row ids spread over the table, and how many they are."""
    span = high - low + 1
    stride = max(span // SAMPLE_POINTS, 1)
    points = span // stride
    return (
        f"WITH RECURSIVE point (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM point WHERE i < {points - 1})"
        f" SELECT {low} + i * {stride} + (i * {_JITTER}) % {stride} FROM point"
    ), points


def _rows(
    connection: Connection, declared: Declared, instants: Sequence[datetime], where: str
) -> list[tuple[int, int, datetime | None, int]]:
    """(bucket, rows, earliest expiry, bytes of the values)."""
    conditions = [condition.at(connection, declared, instant) for instant in instants]
    widths = [f"coalesce(length(CAST({quote(c.name)} AS BLOB)), 0)" for c in declared.table.columns]
    size = f"sum({' + '.join(widths)} + {_ROW_OVERHEAD_BYTES})" if where else "0"
    number = bucket([each.sql for each in conditions])
    found = connection.exec_driver_sql(
        f"SELECT {number}, count(*), min({conditions[0].instant}), {size}"
        f" FROM {quote(declared.table.name.name)}{where} GROUP BY 1"
    )
    return [(int(row[0]), int(row[1]), conditions[0].expiry(row[2]), int(row[3])) for row in found]


def table_bytes(connection: Connection, table: str) -> int | None:
    try:
        size = connection.exec_driver_sql("SELECT sum(pgsize) FROM dbstat WHERE name = ?", (table,)).scalar()
    except DBAPIError:
        # dbstat is compiled in only on some builds.
        return None
    return None if size is None else int(size)
