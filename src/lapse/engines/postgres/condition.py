"""The condition that is true for expired rows and for no other, for jobs, previews, the live view and row security."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from lapse.engines.base import Declared
from lapse.engines.postgres.expression import (
    INSTANT,
    NUMBERS,
    UNITS_PER_SECOND,
    WALL_CLOCKS,
    Writer,
    base_type,
    from_number,
    wall_shifted,
)
from lapse.engines.postgres.names import day, instant, literal, quote, shifted, wall_clock
from lapse.engines.walltime import safe_wall_clock
from lapse.errors import Drift, Unsupported
from lapse.model.interval import Interval
from lapse.model.policy import ColumnExpiry
from lapse.model.table import Column, TimeFormat

_EPOCH = datetime.fromtimestamp(0, UTC)
EARLIEST_SECOND = 100_000_000
"""In 1973: where nobody has said that numbers are times, smaller ones are taken for ids or counters and kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """`sql` decides, in a form that an index on `column` can serve. `threshold` is what the column is compared with.

    `instant` is SQL for a row's expiry. `column` and `threshold` are None for expressions.
    """

    sql: str
    instant: str
    column: str | None = None
    threshold: str | None = None

    @property
    def unindexed(self) -> str:
        """The same, in a form that no index can serve: the scan keeps to physical order."""
        return f"({self.sql}) IS TRUE"


def at(declared: Declared, cutoff: datetime) -> Condition:
    """The condition of a job with this cutoff."""
    policy, expiry = declared.policy, declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        return _expression(declared, instant(cutoff))
    column = _time_column(declared, expiry.column)
    name, kind = quote(column.name), base_type(column)
    if kind == INSTANT:
        threshold = instant(expiry.after.subtracted_from(cutoff.astimezone(UTC)))
    elif kind in NUMBERS:
        units = UNITS_PER_SECOND[_number_format(declared, column, expiry.after)]
        since = expiry.after.subtracted_from(cutoff.astimezone(UTC)) - _EPOCH
        threshold = str(since * units // timedelta(seconds=1))
    else:
        wall = expiry.after.subtracted_from(safe_wall_clock(cutoff, ZoneInfo(policy.time_zone)))
        # A date is its midnight, which has come once the wall clock shows that date.
        threshold = day(wall.date()) if kind == "date" else wall_clock(wall)
    sql = f"{name} <= {threshold}"
    if kind in NUMBERS and policy.time_format is None:
        sql = f"{name} BETWEEN {EARLIEST_SECOND} AND {threshold}"
    return Condition(
        sql=sql,
        instant=_expiry_instant(declared, column, expiry.after),
        column=column.name,
        threshold=threshold,
    )


def expired_now(declared: Declared) -> str:
    """The condition at the time it is evaluated, for the live view and the row-security policy."""
    expiry = declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        return _expression(declared, "now()").sql
    column = _time_column(declared, expiry.column)
    name, kind = quote(column.name), base_type(column)
    if kind == INSTANT:
        return f"{name} <= {shifted('now()', expiry.after, '-')}"
    # Read in the zone, an hour that comes twice counts as its second coming: late, never early.
    return f"({_expiry_instant(declared, column, expiry.after)} <= now())"


def _expression(declared: Declared, now: str) -> Condition:
    assert declared.expression is not None
    policy = declared.policy
    writer = Writer(table=declared.table, now=now, zone=policy.time_zone, format=policy.time_format)
    found = writer.time(declared.expression)
    return Condition(sql=f"({found} <= {now})", instant=found)


def _expiry_instant(declared: Declared, column: Column, after: Interval) -> str:
    name = quote(column.name)
    if base_type(column) == INSTANT:
        return shifted(name, after, "+")
    if base_type(column) in NUMBERS:
        return shifted(from_number(column, _number_format(declared, column, after)), after, "+")
    wall = wall_shifted(f"{name}::timestamp", after, "+")
    return f"({wall} AT TIME ZONE {literal(declared.policy.time_zone)})"


def _number_format(declared: Declared, column: Column, after: Interval) -> TimeFormat:
    """Seconds, as in MyRocks, unless the policy says otherwise; but a bare number is not taken for an expiry."""
    if declared.policy.time_format is None and not after:
        raise Unsupported(
            f"column {column.name} of table {declared.table.name} has the type {column.type}, which is no time",
            hint="if it holds Unix time, say so: ttl_time_format = 'unix' or 'unix_ms'",
        )
    fmt = declared.policy.time_format or TimeFormat.UNIX
    if fmt not in UNITS_PER_SECOND:
        raise Unsupported(
            f"column {column.name} has the type {column.type}, so ttl_time_format = '{fmt}' cannot be",
            hint="use 'unix' or 'unix_ms'",
        )
    return fmt


def _time_column(declared: Declared, name: str) -> Column:
    column = declared.table.column(name)
    if column is None:
        raise Drift(f"table {declared.table.name} has no column {name}, which its TTL policy reads")
    if base_type(column) not in (INSTANT, *WALL_CLOCKS, *NUMBERS):
        raise Unsupported(
            f"column {name} of table {declared.table.name} has the type {column.type}, which is no time",
            hint="use a timestamp or date column, or an expression such as to_timestamp(seconds)",
        )
    return column
