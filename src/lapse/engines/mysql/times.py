"""What a column's type says about time, and the bare column compared with a cutoff.

TIMESTAMP is an instant, DATETIME and DATE are wall-clock time in the policy's zone, whole numbers are unix seconds. A
constant is cut to the column's own precision, so that no rounding decides. What says "never", the zero date above all,
lies outside the range that is compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from zoneinfo import ZoneInfo

from lapse.engines.mysql.names import quote
from lapse.engines.plausible import BANDS, LATEST, NEVER
from lapse.engines.walltime import expired_wall_clock
from lapse.errors import Unsupported
from lapse.model.interval import DAY, HOUR, MINUTE, SECOND, Interval
from lapse.model.table import Column, TableName, TimeFormat

EPOCH = "TIMESTAMP'1970-01-01 00:00:00'"


class TimeKind(StrEnum):
    INSTANT = "timestamp"
    WALL_CLOCK = "datetime"
    DAY = "date"
    SECONDS = "unix seconds"


_KINDS = {
    "timestamp": TimeKind.INSTANT,
    "datetime": TimeKind.WALL_CLOCK,
    "date": TimeKind.DAY,
    **dict.fromkeys(("int", "integer", "bigint", "mediumint"), TimeKind.SECONDS),
}
_FIRST = {
    TimeKind.INSTANT: "'1970-01-01 00:00:01'",
    TimeKind.WALL_CLOCK: "'1000-01-01 00:00:00'",
    TimeKind.DAY: "'1000-01-01'",
    TimeKind.SECONDS: str(BANDS[TimeFormat.UNIX][0]),
}


def kind_of(column: Column) -> TimeKind | None:
    return _KINDS.get(re.split(r"[( ]", column.type.lower(), maxsplit=1)[0])


def require_kind(column: Column, table: TableName) -> TimeKind:
    kind = kind_of(column)
    if kind is None:
        raise Unsupported(
            f"column {column.name} of {table} is {column.type}, which cannot hold an expiry",
            hint="use TIMESTAMP, DATETIME, DATE, or a whole number of unix seconds (INT, BIGINT)",
        )
    return kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """`column + interval <= cutoff` as a range of the bare column, which an index on it serves."""

    sql: str
    last: str
    """The latest value that has expired, as a typed constant."""
    zone: ZoneInfo
    """In which the column's values are to be read."""


def threshold(column: Column, kind: TimeKind, interval: Interval, cutoff: datetime, zone: str) -> Threshold:
    name = quote(column.name)
    if kind in (TimeKind.INSTANT, TimeKind.SECONDS):
        limit, read_in = interval.subtracted_from(cutoff.astimezone(UTC)), ZoneInfo("UTC")
    else:
        read_in = ZoneInfo(zone)
        limit = expired_wall_clock(cutoff, interval, read_in)
    if kind is TimeKind.SECONDS:
        last = typed = str(int(limit.timestamp() // 1))
    elif kind is TimeKind.DAY:
        last = f"'{limit.date().isoformat()}'"
        typed = f"DATE{last}"
    else:
        last = f"'{_cut(limit, fraction_digits(column))}'"
        typed = f"TIMESTAMP{last}"
    found = f"{name} >= {_FIRST[kind]} AND {name} <= {last}"
    return Threshold(sql=f"({found}{_whole_date(name, kind)})", last=typed, zone=read_in)


def _whole_date(name: str, kind: TimeKind) -> str:
    """Not `2024-00-00`, which is a date to the server."""
    return f" AND month({name}) > 0 AND dayofmonth({name}) > 0" if kind in (TimeKind.WALL_CLOCK, TimeKind.DAY) else ""


def moment(column: Column, kind: TimeKind) -> str:
    """SQL for the column as DATETIME(6): in UTC for instants in any session, wall-clock time for the others.

    NULL for what says "never".
    """
    name = quote(column.name)
    if kind is TimeKind.INSTANT:
        # Every TIMESTAMP but the zero date is a time.
        return f"({EPOCH} + INTERVAL nullif(unix_timestamp({name}), 0) SECOND)"
    if kind is TimeKind.SECONDS:
        last, then = str(BANDS[TimeFormat.UNIX][1]), f"({EPOCH} + INTERVAL {name} SECOND)"
    else:
        last, then = f"'{LATEST:%Y-%m-%d}'", f"CAST({name} AS DATETIME(6))"
    inside = f"{name} >= {_FIRST[kind]} AND {name} < {last}{_whole_date(name, kind)}"
    return f"(CASE WHEN {inside} THEN {then} END)"


def moment_or_never(column: Column, kind: TimeKind, *, compared: bool) -> str:
    """The same with what says "never" far ahead; for a comparison only the zero date does, which is no value."""
    name, found = quote(column.name), moment(column, kind)
    if compared and kind in (TimeKind.WALL_CLOCK, TimeKind.DAY):
        found = f"(CASE WHEN {name} >= '0001-01-01'{_whole_date(name, kind)} THEN CAST({name} AS DATETIME(6)) END)"
    return f"coalesce({found}, if({name} IS NULL, NULL, {instant_literal(NEVER)}))"


def shifted(sql: str, interval: Interval, sign: str) -> str:
    """SQL for a DATETIME plus or minus an interval; time first when going back, months first when going forward."""
    steps = [f"INTERVAL {interval.months} MONTH"] if interval.months else []
    if interval.micros:
        steps.append(_time_step(interval.micros))
    for step in steps if sign == "+" else reversed(steps):
        sql = f"({sql} {sign} {step})"
    return sql


def instant_literal(moment: datetime) -> str:
    return f"TIMESTAMP'{_cut(moment.astimezone(UTC), 6)}'"


def fraction_digits(column: Column) -> int:
    match = re.search(r"\((\d)\)", column.type)
    return int(match[1]) if match else 0


def _time_step(micros: int) -> str:
    for unit, name in ((DAY, "DAY"), (HOUR, "HOUR"), (MINUTE, "MINUTE"), (SECOND, "SECOND")):
        if micros % unit == 0:
            return f"INTERVAL {micros // unit} {name}"
    return f"INTERVAL {micros} MICROSECOND"


def _cut(moment: datetime, digits: int) -> str:
    text = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return text[: 20 + digits] if digits else text[:19]
