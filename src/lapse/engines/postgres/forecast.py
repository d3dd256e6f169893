"""How many rows expire when: counted in a small table, in a large one told by the planner's statistics or a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from math import isqrt
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy, Expiring, Survey, Target
from lapse.engines.buckets import running_totals
from lapse.engines.postgres import calling, condition, paths, reads
from lapse.engines.postgres.names import quote, relation
from lapse.engines.postgres.reads import Read
from lapse.model.policy import ColumnExpiry

SCANNED_ROWS = 200_000
"""A table of at most this many rows is counted: that takes a few milliseconds."""
EXACT_ROWS = 2_000_000
"""A survey counts tables up to about this many rows; larger ones are estimated."""
SAMPLE_ROWS = 100_000
"""Whole blocks are drawn, whose rows are alike, so it takes more of them than of single rows."""

_BOUNDS = """
    SELECT coalesce(array_length(histogram_bounds::text::text[], 1), 0)
      FROM pg_catalog.pg_stats
     WHERE schemaname = (SELECT n.nspname FROM pg_catalog.pg_class c
                           JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%(name)s))
       AND tablename = (SELECT relname FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s))
       AND attname = %(column)s AND NOT inherited"""


def expiring(connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool) -> Expiring:
    total = paths.estimate_rows(connection, declared.table)
    if exact or total <= SCANNED_ROWS:
        return _counted(connection, declared, instants)
    bounds = _histogram_bounds(connection, declared)
    if bounds > 1:
        return _planned(connection, declared, instants, total, bounds)
    return _sampled(connection, declared, instants, total)


def _counted(connection: Connection, declared: BoundPolicy, instants: Sequence[datetime]) -> Expiring:
    rows = _rows(connection, declared, instants)
    return Expiring(
        counts=running_totals([(row[0], row[1]) for row in rows], len(instants)),
        rows=sum(row[1] for row in rows),
        bytes=paths.total_bytes(connection, declared.table),
        oldest=_oldest(rows),
        exact=True,
        method="scan",
    )


def _planned(
    connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], total: int, bounds: int
) -> Expiring:
    """The planner reads its histogram between two bounds as a straight line: it is off by one stretch at most."""
    counts = [paths.expected_rows(connection, declared, instant) for instant in instants]
    # One row is what the planner says where it expects none.
    counts = [0 if count <= 1 else min(count, total) for count in counts]
    return Expiring(
        counts=tuple(accumulate(counts, max)),
        rows=total,
        bytes=paths.total_bytes(connection, declared.table),
        oldest=_earliest(connection, declared, instants[0], total),
        exact=False,
        method=f"planner statistics, a histogram of {bounds - 1:,} parts",
        margin=total // (bounds - 1),
    )


def _sampled(connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], total: int) -> Expiring:
    rows = _rows(connection, declared, instants, _percent(total))
    hits = sum(row[1] for row in rows)
    weight = total / hits if hits else 0.0
    counts = running_totals([(row[0], row[1]) for row in rows], len(instants))
    blocks = max(paths.blocks(connection, declared.table) * hits // max(total, 1), 1)
    return Expiring(
        counts=tuple(round(count * weight) for count in counts),
        rows=total,
        bytes=paths.total_bytes(connection, declared.table),
        oldest=_oldest(rows),
        exact=False,
        method=f"sample of {hits:,} rows",
        margin=total // max(isqrt(blocks), 1),
    )


def _percent(total: int) -> float:
    return min(100.0, 100.0 * SAMPLE_ROWS / max(total, 1))


def tablesample(total: int) -> str:
    return reads.tablesample(f"{_percent(total):.6f}")


def _rows(
    connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], percent: float | None = None
) -> list[tuple[int, int, datetime | None]]:
    """(bucket, rows, earliest expiry)."""
    found = calling.read(connection, declared, instants, Read.BUCKETS, percent=percent)
    return [(int(row[0]), int(row[1]), utc(row[2])) for row in found]


def _oldest(rows: list[tuple[int, int, datetime | None]]) -> datetime | None:
    return min((row[2] for row in rows if row[2] is not None), default=None)


def _earliest(connection: Connection, declared: BoundPolicy, instant: datetime, total: int) -> datetime | None:
    """By the index, if there is one that has not too many values that are no times; otherwise of a sample."""
    if declared.table.index_on(declared.columns_read[0]) is not None:
        first = paths.within(connection, paths.PROBE_MS, declared, [instant], Read.EARLIEST)
        if first is not paths.TOO_LONG:
            return utc(first)
    return utc(calling.read(connection, declared, [instant], Read.SAMPLED_EARLIEST, percent=_percent(total)))


def _histogram_bounds(connection: Connection, declared: BoundPolicy) -> int:
    """How finely the planner knows the column; 0 where it does not."""
    expiry = declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry) or not declared.is_time_alone:
        return 0
    values = {"name": relation(declared.table.name), "column": expiry.column}
    return int(connection.exec_driver_sql(_BOUNDS, values).scalar() or 0)


def survey(connection: Connection, target: Target) -> Survey:
    table, declared = target.declared.table, target.declared
    size = paths.total_bytes(connection, table)
    total = paths.estimate_rows(connection, table)
    if total > EXACT_ROWS:
        expired = min(paths.expected_rows(connection, declared, target.cutoff), total)
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
