"""Quoting, and the names of what Lapse makes in a PostgreSQL database."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

from lapse.errors import Unsupported
from lapse.model.interval import Interval
from lapse.model.table import TableName

CATALOG_SCHEMA = "lapse"
STAMP_FUNCTION = "lapse.stamp_expiration"
UPDATE_TRIGGER = "lapse_ttl_update"
INSERT_TRIGGER = "lapse_ttl_insert"
HIDE_POLICY = "lapse_hide_expired"
ALLOW_POLICY = "lapse_allow_all"
MADE_BY_LAPSE = "made by Lapse"
LEAVING_MARK = "Lapse detaches this partition to drop it: "
"""In the comment of a partition; what it was follows, as JSON."""
SEE_EXPIRED = "lapse.see_expired"
"""A session that sets this to `on` is shown expired rows in spite of `ttl_hide_expired = 'policy'`."""
MAX_NAME_BYTES = 63

_QUALIFIED = re.compile(r'"((?:[^"]|"")+)"\."((?:[^"]|"")+)"')


def quote(name: str) -> str:
    if "\0" in name:
        raise Unsupported(f"the name {name!r} contains a zero byte")
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    if "\0" in text:
        raise Unsupported("a text with a zero byte cannot be written in SQL")
    if "\\" in text:
        # Read the same whatever standard_conforming_strings says.
        return " E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return "'" + text.replace("'", "''") + "'"


def relation(name: TableName) -> str:
    """The physical table as SQL: the leaf itself where `name` has a partition."""
    own = own_name(name)
    return f"{quote(own.schema)}.{quote(own.name)}" if own.schema else quote(own.name)


def own_name(name: TableName) -> TableName:
    """The name of a leaf as the table it is; a name without partition stays as it is."""
    if name.partition is None:
        return name
    qualified = _QUALIFIED.fullmatch(name.partition)
    if qualified is None:
        return TableName(name.partition, name.schema)
    schema, leaf = (part.replace('""', '"') for part in qualified.groups())
    return TableName(leaf, schema)


def partition_label(leaf: str, schema: str, parent_schema: str) -> str:
    """How a leaf is called under its parent: by its name alone where both are in one schema."""
    return leaf if schema == parent_schema else f"{quote(schema)}.{quote(leaf)}"


def live_view(table: str) -> str:
    name = f"{table}_live"
    if len(name.encode()) > MAX_NAME_BYTES:
        raise Unsupported(f"the view {name} would have a name longer than {MAX_NAME_BYTES} bytes")
    return name


# Values. Each is written so that no setting of the session changes its meaning.


def instant(moment: datetime) -> str:
    return f"TIMESTAMPTZ '{_stamp(moment.astimezone(UTC))}+00'"


def wall_clock(moment: datetime) -> str:
    return f"TIMESTAMP '{_stamp(moment)}'"


def day(moment: date) -> str:
    return f"DATE '{moment.year:04}-{moment.month:02}-{moment.day:02}'"


def months(count: int) -> str:
    return f"INTERVAL '{count} months'"


def micros(count: int) -> str:
    """Never in days, whose length depends on the session's time zone."""
    seconds, rest = divmod(count, 1_000_000)
    return f"INTERVAL '{seconds}.{rest:06} seconds'" if rest else f"INTERVAL '{seconds} seconds'"


def shifted(moment: str, interval: Interval, sign: str) -> str:
    """An instant plus or minus an interval, its months counted in UTC."""
    if interval.months:
        moment = f"(({moment} AT TIME ZONE 'UTC' {sign} {months(interval.months)}) AT TIME ZONE 'UTC')"
    return f"({moment} {sign} {micros(interval.micros)})" if interval.micros else moment


def _stamp(moment: datetime) -> str:
    return (
        f"{moment.year:04}-{moment.month:02}-{moment.day:02} "
        f"{moment.hour:02}:{moment.minute:02}:{moment.second:02}.{moment.microsecond:06}"
    )
