"""When the rows of a batch were archived, by the column that says so."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lapse.archive.header import Header
from lapse.archive.loading import arrow
from lapse.errors import InvalidValue


def time_range(header: Header, batch: Any) -> tuple[datetime | None, datetime | None]:
    """The earliest and the latest time; None where the table has no such column, or no time is in it."""
    if header.time_column is None:
        return None, None
    found = arrow("compute").min_max(_instants(header, batch)).as_py()
    return found["min"], found["max"]


def within(header: Header, batch: Any, since: datetime | None, until: datetime | None) -> Any:
    """The rows of a batch that were archived in [since, until)."""
    if since is None and until is None:
        return batch
    if header.time_column is None:
        raise InvalidValue("since", since or until, f"{header.table} does not say when its rows were archived")
    compute, instants = arrow("compute"), _instants(header, batch)
    if since is not None:
        batch, instants = _only(batch, instants, compute.greater_equal(instants, _scalar(since)))
    if until is not None:
        batch, instants = _only(batch, instants, compute.less(instants, _scalar(until)))
    return batch


def _only(batch: Any, instants: Any, matches: Any) -> tuple[Any, Any]:
    return batch.filter(matches), instants.filter(matches)


def _scalar(moment: datetime) -> Any:
    return arrow().scalar(moment, _type())


def _instants(header: Header, batch: Any) -> Any:
    """Times without a zone are in UTC."""
    array = batch.column(batch.schema.names.index(header.time_column))
    if arrow("types").is_string(array.type):
        # The text of SQLite's archives ends with Z.
        array = array.cast(_type())
    if array.type.tz is not None:
        return array
    return arrow("compute").assume_timezone(array, "UTC")


def _type() -> Any:
    return arrow().timestamp("us", "UTC")
