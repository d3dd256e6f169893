"""How many rows expire when: counted in a small table, in a large one estimated from rows spread all over it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from math import isqrt

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import BoundPolicy, Expiring, Footprint, Survey, Target
from lapse.engines.buckets import bucket, running_totals
from lapse.engines.sqlite import condition
from lapse.engines.sqlite.names import free_address, literal, quote, row_address
from lapse.model.table import Table, TableName

SCANNED_ROWS = 100_000
"""A table of at most this many row ids is counted: that takes a few milliseconds."""
SAMPLE_POINTS = 20_000
MOST_IN_A_STATEMENT = 400
"""Tables whose sizes are asked for together: SQLite takes 500 SELECTs in one statement."""
MIN_HITS = 2_000
"""Row ids too sparse for this many hits make a sample too small to speak for the table."""
_JITTER = 2_654_435_761
"""Moves each point within its own stretch, so that no pattern in the row ids repeats in the sample."""
_ROW_OVERHEAD_BYTES = 8


def expiring(connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool) -> Expiring:
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


def footprints(connection: Connection, names: Sequence[TableName]) -> dict[TableName, Footprint]:
    """By row ids. A table without them is counted up to a limit, and beyond it nothing is said."""
    listed = connection.exec_driver_sql(
        "SELECT t.name, t.wr, json_group_array(lower(c.name))"
        " FROM pragma_table_list AS t JOIN pragma_table_xinfo(t.name) AS c"
        " WHERE t.schema = 'main' AND t.type = 'table' AND t.name IN (SELECT value FROM json_each(?))"
        " GROUP BY t.name",
        (json.dumps([name.name for name in names]),),
    )
    parts = [
        f"SELECT {literal(table)}, ({_estimate(table, bool(keyed), json.loads(columns))})"
        for table, keyed, columns in listed
    ]
    found: dict[TableName, Footprint] = {}
    for first in range(0, len(parts), MOST_IN_A_STATEMENT):
        sizes = " UNION ALL ".join(parts[first : first + MOST_IN_A_STATEMENT])
        for table, rows in connection.exec_driver_sql(sizes):
            found[TableName(str(table))] = Footprint(rows=None if rows is None else int(rows))
    return found


def _estimate(table: str, keyed: bool, columns: Collection[str]) -> str:
    name, address = quote(table), free_address(columns)
    if keyed or address is None:
        seen = f"SELECT count(*) AS seen FROM (SELECT 1 FROM {name} LIMIT {SCANNED_ROWS + 1})"
        return f"SELECT CASE WHEN seen <= {SCANNED_ROWS} THEN seen END FROM ({seen})"
    # Each by itself, or SQLite would read the table for both.
    low, high = f"(SELECT min({address}) FROM {name})", f"(SELECT max({address}) FROM {name})"
    return f"SELECT coalesce({high} - {low} + 1, 0)"


def _sampled(
    connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], low: int, high: int
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
    connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], where: str
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


def survey(connection: Connection, target: Target) -> Survey:
    """What is in a table now; every row is read."""
    found = condition.own(target.condition)
    name = quote(target.declared.table.name.name)
    rows, expired, oldest, newest = connection.exec_driver_sql(
        f"SELECT count(*), count(*) FILTER (WHERE {found.sql}), min({found.instant}) FILTER (WHERE {found.sql}),"
        f" max({found.instant}) FILTER (WHERE {found.sql}) FROM {name}"
    ).one()
    size = table_bytes(connection, target.declared.table.name.name)
    return Survey.scanned(int(rows), int(expired), oldest=found.expiry(oldest), newest=found.expiry(newest), size=size)


def sample(connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
    table = target.declared.table
    columns = ", ".join(quote(column.name) for column in table.columns)
    rows = connection.exec_driver_sql(
        f"SELECT {columns} FROM {quote(table.name.name)} WHERE {target.condition.sql} LIMIT {int(count)}"
    )
    return [dict(row) for row in rows.mappings()]
