"""Time in SQLite, which has no time type: four ways to store it, told apart by declaration and data.

Inside expressions every instant is a whole number of milliseconds since 1970, SQLite's own resolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from lapse.engines.plausible import BANDS, NEVER
from lapse.engines.sqlite.names import column as column_name
from lapse.engines.sqlite.names import quote
from lapse.engines.walltime import expired_wall_clock
from lapse.errors import Unsupported
from lapse.model.interval import MILLISECOND, Interval
from lapse.model.table import Column, Table, TimeFormat

_DATE = "????-??-??"
_CLOCK = "[T ]??:"
_USUAL = "????-??-[012][0-8][T ][01]?:*"
"""Days and hours of which there is no doubt: most."""
_UNIX_EPOCH_JULIAN = "2440587.5"
_MS_PER_DAY = "86400000.0"

LARGEST_OFFSET = timedelta(hours=14)
"""How far ahead of UTC a zone can be: text with an offset may carry a later date than its instant."""

_TIME_WORDS = ("DATE", "TIME")
_SAMPLE = 500


def is_declared_time(column: Column) -> bool:
    return any(word in column.type.upper() for word in _TIME_WORDS)


def detect(connection: Connection, table: Table, column: Column, *, whole: bool) -> TimeFormat:
    """How `column` stores time. `whole` reads every row (at declaration), otherwise a sample from both ends.

    Values that say "never" tell nothing. What is no time at all is refused at declaration, and later never expires. An
    empty column is taken for the format whose instants are latest, so a wrong guess never expires a row early.
    """
    found = _seen_formats(connection, table, column, whole=whole)
    formats = [TimeFormat(word) for word in sorted(found) if word in list(TimeFormat)]
    if len(formats) > 1 or (whole and formats and len(found) > 1):
        kinds = ", ".join(sorted(found))
        raise Unsupported(
            f"column {column.name} of {table.name} holds a mixture of times: {kinds}",
            hint="make the column uniform, or say which it is with ttl_time_format; other values then never expire",
        )
    if formats:
        return formats[0]
    if found:
        raise Unsupported(
            f"column {column.name} of {table.name} does not hold times: found {', '.join(sorted(found))}",
            hint="times are ISO-8601 text, unix seconds, unix milliseconds or Julian days; see ttl_time_format",
        )
    return _declared_format(table, column)


def format_by_type(table: Table, column: Column) -> TimeFormat:
    """Without a look at the data: columns of numbers may hold several kinds of times."""
    if is_declared_time(column) or any(word in column.type.upper() for word in ("CHAR", "TEXT", "CLOB")):
        return TimeFormat.ISO
    raise Unsupported(
        f"table {table.name}: what the numbers in its {column.type} column mean must be said",
        hint="give the policy ttl_time_format: unix, unix_ms or julian",
    )


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
    name, source = column_name(column.name), quote(table.name.name)
    if not whole:
        order = "rowid" if not table.key else ", ".join(quote(part) for part in table.key)
        descending = ", ".join(f"{part} DESC" for part in order.split(", "))
        ends = [
            f"SELECT * FROM (SELECT {name} FROM {source} ORDER BY {way} LIMIT {_SAMPLE})" for way in (order, descending)
        ]
        source = f"({' UNION ALL '.join(ends)})"
    bands = " ".join(f"WHEN {name} >= {low} AND {name} < {high} THEN '{word}'" for word, (low, high) in BANDS.items())
    sql = (
        f"SELECT DISTINCT CASE"
        f" WHEN typeof({name}) = 'text' AND {_is_iso(name)} THEN 'iso'"
        f" WHEN typeof({name}) = 'text' THEN 'text that is no ISO-8601 time'"
        f" WHEN typeof({name}) = 'blob' THEN 'blobs'"
        f" {bands} ELSE 'numbers that are no time' END FROM {source} WHERE {name} NOT IN (0, -1)"
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
    name = column_name(column)
    instant = interval.subtracted_from(cutoff.astimezone(UTC))
    if fmt is TimeFormat.ISO:
        return _iso_threshold(name, instant, expired_wall_clock(cutoff, interval, ZoneInfo(zone)))
    if fmt is TimeFormat.JULIAN:
        last = f"julianday('{_iso(instant)}')"
    else:
        last = str(_milliseconds(instant)) if fmt is TimeFormat.UNIX_MS else _seconds(instant)
    bound = f"{name} >= {BANDS[fmt][0]} AND {name} <= {last}"
    return Threshold(sql=f"({bound} AND typeof({name}) IN ('integer', 'real'))", bound=bound)


def _iso_threshold(name: str, instant: datetime, wall: datetime) -> Threshold:
    """Text with `Z` or an offset is an instant, text without is wall-clock time in the policy's zone.

    The bounds are no numbers, even with half a date, so that they stay text beside a column of numeric affinity.
    """
    latest = max(instant.replace(tzinfo=None) + LARGEST_OFFSET, wall) + timedelta(days=1)
    bound = f"{name} >= '1000-' AND {name} < '{latest.date().isoformat()}'"
    exact = f"julianday({name}) <= julianday('{_iso(wall)}')"
    if instant.replace(tzinfo=None) != wall:
        zoned = f"(substr({name}, 11) GLOB '*[-+Zz]*')"
        exact = f"CASE WHEN {zoned} THEN julianday({name}) <= julianday('{_iso(instant)}') ELSE {exact} END"
    return Threshold(sql=f"({bound} AND {exact} AND {_reads_iso(name)})", bound=bound)


def _is_iso(sql: str) -> str:
    """Is a text a time in ISO 8601?"""
    return f"({_reads_iso(sql)} AND julianday({sql}) IS NOT NULL)"


def _reads_iso(sql: str) -> str:
    """The same of a text that `julianday` reads, so that digits are digits: not a number or a time of day alone. SQLite
    itself takes 30 February for a day, and 24:59 for a time of day.

    Every row that is read is asked, so what holds for most rows is asked first.
    """
    day = f"substr({sql}, 1, 10)"
    return (
        f"({sql} GLOB '{_USUAL}'"
        f" OR ((({sql} GLOB '{_DATE}{_CLOCK}*' AND substr({sql}, 12, 2) < '24') OR {sql} GLOB '{_DATE}')"
        f" AND (substr({sql}, 9, 2) < '29' OR date({day}, '+0 days') = {day})))"
    )


def column_milliseconds(column: str, fmt: TimeFormat, *, never: bool = False, compared: bool = False) -> str:
    """SQL for a column's instant in milliseconds; NULL for values that are no time.

    What says "never" is NULL, or with `never` far ahead; for a comparison text is as it is.
    """
    name = column_name(column)
    if fmt is TimeFormat.ISO:
        return text_milliseconds(name, never=never, compared=compared)
    if fmt is TimeFormat.UNIX_MS:
        value = f"CAST({name} AS INTEGER)"
    elif fmt is TimeFormat.UNIX:
        value = f"CAST({name} * 1000 AS INTEGER)"
    else:
        value = _julian_to_milliseconds(name)
    low, high = BANDS[fmt]
    otherwise = f" ELSE {_milliseconds(NEVER)}" if never else ""
    sane = f"CASE WHEN {name} >= {low} AND {name} < {high} THEN {value}{otherwise} END"
    return f"(CASE WHEN typeof({name}) IN ('integer', 'real') THEN {sane} END)"


def text_milliseconds(sql: str, *, never: bool = False, compared: bool = False) -> str:
    """Offsets may be written without minutes or colon, which SQLite does not read."""
    normal = (
        f"(CASE WHEN {sql} GLOB '*:*[-+][0-9][0-9]' THEN {sql} || ':00'"
        f" WHEN {sql} GLOB '*:*[-+][0-9][0-9][0-9][0-9]'"
        f" THEN substr({sql}, 1, length({sql}) - 2) || ':' || substr({sql}, -2) ELSE {sql} END)"
    )
    value = _julian_to_milliseconds(f"julianday({normal})")
    if not compared:
        otherwise = f" ELSE {_milliseconds(NEVER)}" if never else ""
        value = f"CASE WHEN {sql} >= '1000-' AND {sql} < '9999-' THEN {value}{otherwise} END"
    return f"(CASE WHEN typeof({sql}) = 'text' AND {_is_iso(normal)} THEN {value} END)"


def plain_milliseconds(sql: str) -> str:
    """Of text that SQLite itself has written."""
    return _julian_to_milliseconds(f"julianday({sql})")


def months_later(milliseconds: str, months: int) -> str:
    """Calendar months added to an instant, clamped to the end of a shorter month as everywhere in Lapse."""
    moment = f"{milliseconds} / 1000.0, 'unixepoch'"
    shifted = clamped_date(moment, months)
    return plain_milliseconds(f"({shifted} || strftime(' %H:%M:%f', {moment}))")


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
    """None, too, where the year has more than four digits."""
    try:
        return None if value is None else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)
    except OverflowError:
        return None


def _julian_to_milliseconds(sql: str) -> str:
    return f"CAST(round(({sql} - {_UNIX_EPOCH_JULIAN}) * {_MS_PER_DAY}) AS INTEGER)"


def _iso(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _seconds(moment: datetime) -> str:
    whole, rest = divmod(_milliseconds(moment), 1000)
    return f"{whole}.{rest:03}" if rest else str(whole)
