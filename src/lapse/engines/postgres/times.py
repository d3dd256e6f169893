"""Times and intervals as PostgreSQL's SQL.

Each is written so that no setting of the session changes its meaning, and so that no type, function or operator is
looked up by the search path, where another role may have put its own.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from lapse.model.interval import Interval


def instant(moment: datetime) -> str:
    return f"pg_catalog.timestamptz '{stamp(moment.astimezone(UTC))}+00'"


def wall_clock(moment: datetime) -> str:
    return f"TIMESTAMP '{stamp(moment)}'"


def day(moment: date) -> str:
    return f"pg_catalog.date '{moment.year:04}-{moment.month:02}-{moment.day:02}'"


_MAX_FIELD = 2**31
"""Before version 15 no number in an interval may be larger: 68 years in seconds."""


def months(count: int) -> str:
    return f"INTERVAL '{count} months'"


def micros(count: int) -> str:
    """Never in days, whose length depends on the session's time zone."""
    seconds, rest = divmod(count, 1_000_000)
    hours = ""
    if seconds >= _MAX_FIELD:
        whole, seconds = divmod(seconds, 3600)
        hours = f"{whole} hours "
    return f"INTERVAL '{hours}{seconds}{f'.{rest:06}' if rest else ''} seconds'"


def shifted(moment: str, interval: Interval, sign: str) -> str:
    """An instant plus or minus an interval, its months counted in UTC."""
    if interval.months:
        in_utc = f"({moment} AT TIME ZONE 'UTC')"
        moment = f"({operation(sign, in_utc, months(interval.months))} AT TIME ZONE 'UTC')"
    return operation(sign, moment, micros(interval.micros)) if interval.micros else moment


def operation(operator: str, left: str, right: str) -> str:
    """By PostgreSQL's own operator, whatever the search path."""
    return f"({left} OPERATOR(pg_catalog.{operator}) {right})"


def stamp(moment: datetime) -> str:
    return (
        f"{moment.year:04}-{moment.month:02}-{moment.day:02} "
        f"{moment.hour:02}:{moment.minute:02}:{moment.second:02}.{moment.microsecond:06}"
    )
