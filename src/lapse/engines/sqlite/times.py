"""Time in SQLite, which has no time type: four ways to store it, told apart by declaration and data.

Inside expressions every instant is a whole number of milliseconds since 1970, SQLite's own resolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from lapse.engines.sqlite.names import quote
from lapse.engines.walltime import safe_wall_clock
from lapse.errors import Unsupported
from lapse.model.interval import MILLISECOND, Interval
from lapse.model.table import Column, Table, TimeFormat

ISO_PATTERN = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*"
_UNIX_EPOCH_JULIAN = "2440587.5"
_MS_PER_DAY = "86400000.0"

_BANDS = (
    (TimeFormat.JULIAN, 1_000_000.0, 5_400_000.0),
    (TimeFormat.UNIX, 1e8, 2.6e10),
    (TimeFormat.UNIX_MS, 1e11, 2.6e13),
)
"""Numbers from the years 1973 to 2790 fall into exactly one of these, so a number tells its own unit."""

LARGEST_OFFSET = timedelta(hours=14)
"""How far ahead of UTC a zone can be: text with an offset may carry a later date than its instant."""

_TIME_WORDS = ("DATE", "TIME")
_SAMPLE = 500


def is_declared_time(column: Column) -> bool:
    return any(word in column.type.upper() for word in _TIME_WORDS)


def detect(connection: Connection, table: Table, column: Column, *, whole: bool) -> TimeFormat:
    """How `column` stores time. `whole` reads every row (at declaration), otherwise a sample from both ends.

    An empty column is taken for the format whose instants are latest, so a wrong guess never expires a row early.
    """
    found = _seen_formats(connection, table, column, whole=whole)
    if len(found) > 1:
        kinds = ", ".join(sorted(found))
        raise Unsupported(
            f"column {column.name} of {table.name} holds a mixture of times: {kinds}",
            hint="make the column uniform, or say which it is with ttl_time_format; other values then never expire",
        )
    if found:
        (word,) = found
        if word in list(TimeFormat):
            return TimeFormat(word)
        raise Unsupported(
            f"column {column.name} of {table.name} does not hold times: found {word}",
            hint="times are ISO-8601 text, unix seconds, unix milliseconds or Julian days; see ttl_time_format",
        )
    return _declared_format(table, column)


def _declared_format(table: Table, column: Column) -> TimeFormat:
    declared = column.type.upper()
    if is_declared_time(column) or "CHAR" in declared or "TEXT" in declared or "CLOB" in declared:
        return TimeFormat.ISO
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return TimeFormat.JULIAN
    if "BOOL" in declared or "BLOB" in declared:
        raise Unsupported(
            f"column {column.name} of {table.name} is {column.type}, which cannot hold a time",
            hint="use a column with ISO-8601 text, unix seconds, unix milliseconds or Julian days",
        )
    if "INT" in declared or "NUM" in declared or "DEC" in declared or not declared:
        return TimeFormat.UNIX
    return TimeFormat.ISO


def _seen_formats(connection: Connection, table: Table, column: Column, *, whole: bool) -> set[str]:
    name, source = quote(column.name), quote(table.name.name)
    if not whole:
        order = "rowid" if not table.key else ", ".join(quote(part) for part in table.key)
        descending = ", ".join(f"{part} DESC" for part in order.split(", "))
        ends = [
            f"SELECT * FROM (SELECT {name} FROM {source} ORDER BY {way} LIMIT {_SAMPLE})" for way in (order, descending)
        ]
        source = f"({' UNION ALL '.join(ends)})"
    bands = " ".join(f"WHEN {name} >= {low!r} AND {name} < {high!r} THEN '{word.value}'" for word, low, high in _BANDS)
    sql = (
        f"SELECT DISTINCT CASE"
        f" WHEN typeof({name}) = 'text' AND {name} GLOB '{ISO_PATTERN}' AND julianday({name}) IS NOT NULL THEN 'iso'"
        f" WHEN typeof({name}) = 'text' THEN 'text that is no ISO-8601 time'"
        f" WHEN typeof({name}) = 'blob' THEN 'blobs'"
        f" {bands} ELSE 'numbers that are no time' END FROM {source} WHERE {name} IS NOT NULL"
    )
    return {str(row[0]) for row in connection.exec_driver_sql(sql)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """`column + interval <= cutoff`, turned into a comparison of the bare column.

    `sql` is the exact condition; `bound` alone is implied by it and can be served by an index on the column.
    """

    sql: str
    bound: str


def threshold(column: str, fmt: TimeFormat, interval: Interval, cutoff: datetime, zone: str) -> Threshold:
    name = quote(column)
    instant = interval.subtracted_from(cutoff.astimezone(UTC))
    if fmt is TimeFormat.ISO:
        wall = interval.subtracted_from(safe_wall_clock(cutoff, ZoneInfo(zone)))
        return _iso_threshold(name, instant, wall)
    if fmt is TimeFormat.JULIAN:
        bound = f"{name} <= julianday('{_iso(instant)}')"
    else:
        bound = f"{name} <= {_milliseconds(instant) if fmt is TimeFormat.UNIX_MS else _seconds(instant)}"
    return Threshold(sql=f"({bound} AND typeof({name}) IN ('integer', 'real'))", bound=bound)


def _iso_threshold(name: str, instant: datetime, wall: datetime) -> Threshold:
    """Text with `Z` or an offset is an instant, text without is wall-clock time in the policy's zone."""
    latest = max(instant.replace(tzinfo=None) + LARGEST_OFFSET, wall) + timedelta(days=1)
    bound = f"{name} < '{latest:%Y-%m-%d}'"
    exact = f"julianday({name}) <= julianday('{_iso(wall)}')"
    if instant.replace(tzinfo=None) != wall:
        zoned = f"(substr({name}, 11) GLOB '*[-+Zz]*')"
        exact = f"CASE WHEN {zoned} THEN julianday({name}) <= julianday('{_iso(instant)}') ELSE {exact} END"
    return Threshold(sql=f"({bound} AND {name} GLOB '{ISO_PATTERN}' AND {exact})", bound=bound)


def column_milliseconds(column: str, fmt: TimeFormat) -> str:
    """SQL for a column's instant in milliseconds; NULL for values that are no time."""
    name = quote(column)
    if fmt is TimeFormat.ISO:
        return text_milliseconds(name)
    numeric = f"typeof({name}) IN ('integer', 'real')"
    if fmt is TimeFormat.UNIX_MS:
        value = f"CAST({name} AS INTEGER)"
    elif fmt is TimeFormat.UNIX:
        value = f"CAST({name} * 1000 AS INTEGER)"
    else:
        value = _julian_to_milliseconds(name)
    return f"(CASE WHEN {numeric} THEN {value} END)"


def text_milliseconds(sql: str) -> str:
    return f"(CASE WHEN {sql} GLOB '{ISO_PATTERN}' THEN {_julian_to_milliseconds(f'julianday({sql})')} END)"


def months_later(milliseconds: str, months: int) -> str:
    """Calendar months added to an instant, clamped to the end of a shorter month as everywhere in Lapse."""
    moment = f"{milliseconds} / 1000.0, 'unixepoch'"
    shifted = clamped_date(moment, months)
    return f"({text_milliseconds(f'({shifted} || strftime({chr(39)} %H:%M:%f{chr(39)}, {moment}))')})"


def clamped_date(moment: str, months: int) -> str:
    """The date `months` later: SQLite overflows 31 January + 1 month into March, so take the earlier of two."""
    plain = f"date({moment}, '{months:+d} months')"
    last_day = f"date({moment}, 'start of month', '{months + 1:+d} months', '-1 day')"
    return f"min({plain}, {last_day})"


def shifted_now(interval: Interval, sign: int) -> str:
    """SQL text for now plus or minus an interval, as `YYYY-MM-DD HH:MM:SS.SSS`."""
    milliseconds = sign * interval.micros // MILLISECOND
    moment = "'now'" if not milliseconds else f"'now', '{milliseconds / 1000:+.3f} seconds'"
    if not interval.months:
        return f"strftime('%Y-%m-%d %H:%M:%f', {moment})"
    return f"({clamped_date(moment, sign * interval.months)} || strftime(' %H:%M:%f', {moment}))"


def to_text(moment: datetime) -> str:
    """An instant as the managed column stores it."""
    return _iso(moment.astimezone(UTC))


def milliseconds_of(moment: datetime) -> int:
    return _milliseconds(moment)


def from_milliseconds(value: int | None) -> datetime | None:
    return None if value is None else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)


def _julian_to_milliseconds(sql: str) -> str:
    return f"CAST(round(({sql} - {_UNIX_EPOCH_JULIAN}) * {_MS_PER_DAY}) AS INTEGER)"


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03}"


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _seconds(moment: datetime) -> str:
    whole, rest = divmod(_milliseconds(moment), 1000)
    return f"{whole}.{rest:03}" if rest else str(whole)
