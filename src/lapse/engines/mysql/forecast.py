"""How many rows have expired and how many expire when: counted in a small table, in a large one told by a sample.

What the optimizer says of a long index range is no help: it may be off by a factor of two. Whole numbers as keys are
sampled one by one, moments a few rows at many places, other keys at both ends. Where that tells too little, all rows
are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import hypot, isqrt

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy, Expiring, Survey, Target
from lapse.engines.buckets import bucket, running_totals
from lapse.engines.mysql import condition, inspect, keys, paths, split
from lapse.engines.mysql.condition import Condition
from lapse.engines.mysql.names import quote, source
from lapse.model.table import Table

SCANNED_ROWS = 200_000
"""A table of at most about this many rows is counted: that takes a moment only."""
SAMPLE_POINTS = 20_000
MIN_HITS = 2_000
"""Keys too sparse for this many hits make a sample too small to speak for the table."""
PLACES, MIN_PLACES = 64, 8
ROWS_PER_PLACE = 400
"""How many places of the table are looked at, where keys are no whole numbers or sparse, and how many rows at each."""
MOST_UNCERTAIN = 0.2
"""Of all rows: a sample that may be further off is not worth telling, and the rows are counted."""
_JITTER = 2_654_435_761
"""Moves each point within its own stretch, so that no pattern in the keys repeats in the sample."""
_WHOLE_NUMBERS = ("int", "bigint", "mediumint", "smallint", "integer")
_DIGIT = " UNION ALL ".join(f"SELECT {digit}" + (" AS d" if digit == 0 else "") for digit in range(10))


def expiring(connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool) -> Expiring:
    table = declared.table
    conditions = [condition.at(connection, declared, instant) for instant in instants]
    found = None if exact else sampled(connection, table, conditions)
    if found is not None:
        return found
    rows = _rows(connection, conditions, source(table.name))
    return Expiring(
        counts=running_totals([(row[0], row[1]) for row in rows], len(instants)),
        rows=sum(row[1] for row in rows),
        bytes=paths.table_bytes(connection, table.name),
        oldest=_oldest(rows),
        exact=True,
        method="scan",
    )


def survey(connection: Connection, target: Target) -> Survey:
    """What is in a table now."""
    table = target.declared.table
    found = condition.own(target.condition)
    sample = sampled(connection, table, [found])
    return sample.as_survey() if sample is not None else _scanned(connection, table, found)


def _scanned(connection: Connection, table: Table, found: Condition) -> Survey:
    """Every row is read, without a lock."""
    rows, expired, oldest, newest = connection.exec_driver_sql(
        f"SELECT count(*), coalesce(sum({found.sql} IS TRUE), 0), min(if({found.sql}, {found.moment}, NULL)),"
        f" max(if({found.sql}, {found.moment}, NULL)) FROM {source(table.name)}"
    ).one()
    size = paths.table_bytes(connection, table.name)
    return Survey.scanned(int(rows), int(expired), oldest=found.expiry(oldest), newest=found.expiry(newest), size=size)


def sample(connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
    table = target.declared.table
    columns = ", ".join(quote(column.name) for column in table.columns)
    rows = connection.exec_driver_sql(
        f"SELECT {columns} FROM {source(table.name)} WHERE {target.condition.sql} LIMIT {int(count)}"
    )
    return [dict(row) for row in rows.mappings()]


def sampled(connection: Connection, table: Table, conditions: Sequence[Condition]) -> Expiring | None:
    """None for a table that can be scanned in a moment, or has to be."""
    total = paths.estimate_rows(connection, table.name)
    if total <= SCANNED_ROWS:
        return None
    return _by_number(connection, table, conditions) or _by_places(connection, table, conditions, total)


def _has_number_key(table: Table) -> bool:
    if len(table.primary_key) != 1:
        return False
    column = table.column(table.primary_key[0])
    return column is not None and column.type.lower().split("(")[0].split()[0] in _WHOLE_NUMBERS


def _by_number(connection: Connection, table: Table, conditions: Sequence[Condition]) -> Expiring | None:
    """Each point is a key that may or may not be there: how many are says how many rows there are."""
    found = sample_points(connection, table)
    if found is None:
        return None
    points, stride = found
    rows = _rows(connection, conditions, points)
    hits = sum(row[1] for row in rows)
    if hits < MIN_HITS:
        return None
    return Expiring(
        counts=tuple(count * stride for count in running_totals([(r[0], r[1]) for r in rows], len(conditions))),
        rows=hits * stride,
        bytes=paths.table_bytes(connection, table.name),
        oldest=_oldest(rows),
        exact=False,
        method=f"sample of {hits:,} rows",
        # Two standard deviations where half of the rows have expired, which is where they are largest.
        margin=hits * stride // isqrt(hits),
    )


def sample_points(connection: Connection, table: Table) -> tuple[str, int] | None:
    """The rows at keys spread over the table, as it stands after FROM, and how far these keys are apart.

    None where the key is no whole number, or the table is empty.
    """
    if not _has_number_key(table):
        return None
    key = quote(table.primary_key[0])
    # By order and not by min() and max(), for which the server would read a descending key from end to end.
    ends = (f"(SELECT {key} FROM {source(table.name)} ORDER BY {key} {order} LIMIT 1)" for order in ("ASC", "DESC"))
    low, high = connection.exec_driver_sql(f"SELECT {', '.join(ends)}").one()
    if low is None:
        return None
    stride = -((int(low) - int(high) - 1) // SAMPLE_POINTS)
    number = "a.d * 10000 + b.d * 1000 + c.d * 100 + e.d * 10 + f.d"
    digits = ", ".join(f"({_DIGIT}) AS {name}" for name in "bcef")
    points = (
        f"SELECT {int(low)} + ({number}) * {stride} + ({number}) * {_JITTER} % {stride} AS lapse_point"
        f" FROM (SELECT 0 AS d UNION ALL SELECT 1) AS a, {digits}"
    )
    return f"({points}) AS lapse_points JOIN {source(table.name)} ON {key} = lapse_point", stride


def _by_places(connection: Connection, table: Table, conditions: Sequence[Condition], total: int) -> Expiring | None:
    """The first and the last rows of many stretches of the key, which speak for their stretch.

    None where they tell too little: a key that cannot be cut, and that goes hand in hand with the expiry.
    """
    walk = keys.load(connection, table.name, inspect.key_index(table))
    columns = ", ".join(quote(column.name) for column in table.columns)
    stretches = split.Cutter(connection, table.name, walk).stretches(PLACES)
    # A key that allows few cuts is looked at in few places, but closely.
    most = ROWS_PER_PLACE * PLACES // max(len(stretches), MIN_PLACES) // 2
    rows, places = [], []
    for stretch in stretches:
        where = " AND ".join(stretch.where(walk)) or "TRUE"
        some = f"SELECT {columns} FROM {source(table.name)}{walk.hint()} WHERE {where} ORDER BY"
        first, last = (
            _rows(connection, conditions, f"({some} {order} LIMIT {most}) AS lapse_place")
            for order in (walk.order, walk.backwards)
        )
        rows += [*first, *last]
        if first and last:
            ends = (_shares(first, len(conditions)), _shares(last, len(conditions)))
            places.append(_Place(rows=max(stretch.rows, 1), first=ends[0], last=ends[1]))
    shares, uncertainty = _together(places) if places else ([0.0] * len(conditions), 1.0)
    if places and uncertainty > MOST_UNCERTAIN:
        return None
    return Expiring(
        counts=tuple(int(total * share) for share in shares),
        rows=total,
        bytes=paths.table_bytes(connection, table.name),
        oldest=_oldest(rows),
        exact=False,
        method=f"sample of {sum(row[1] for row in rows):,} rows at {len(places)} places",
        margin=int(total * uncertainty),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A stretch of about `rows` rows: the shares that have expired at each instant, of its first and its last ones."""

    rows: int
    first: list[float]
    last: list[float]


def _shares(look: list[tuple[int, int, datetime | None]], instants: int) -> list[float]:
    seen = sum(row[1] for row in look)
    return [count / seen for count in running_totals([(row[0], row[1]) for row in look], instants)]


def _together(places: Sequence[_Place]) -> tuple[list[float], float]:
    """The share of all rows that has expired at each instant; and two standard deviations, where they are largest."""
    total = sum(place.rows for place in places)
    shares, deviations = [], []
    for instant in range(len(places[0].first)):
        ends = [(place.rows, place.first[instant], place.last[instant]) for place in places]
        shares.append(sum(rows * (first + last) / 2 for rows, first, last in ends) / total)
        deviations.append(hypot(*(rows * (first - last) / 2 for rows, first, last in ends)) / total)
    return shares, 2 * max(deviations)


def _rows(
    connection: Connection, conditions: Sequence[Condition], tables: str
) -> list[tuple[int, int, datetime | None]]:
    """(bucket, rows, earliest expiry)."""
    first = conditions[0]
    found = connection.exec_driver_sql(
        f"SELECT STRAIGHT_JOIN {bucket([each.sql for each in conditions])} AS number, count(*), min({first.moment})"
        f" FROM {tables} GROUP BY 1"
    )
    return [(int(row[0]), int(row[1]), first.expiry(row[2])) for row in found]


def _oldest(rows: list[tuple[int, int, datetime | None]]) -> datetime | None:
    return min((row[2] for row in rows if row[2] is not None), default=None)
