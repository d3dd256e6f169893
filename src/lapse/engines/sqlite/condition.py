"""The condition that is true for expired rows and for no other, for jobs, previews and the live view."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from lapse.engines import condition as shared
from lapse.engines import keep_last
from lapse.engines.base import BoundPolicy
from lapse.engines.sqlite import times
from lapse.engines.sqlite.expression import Writer
from lapse.engines.sqlite.names import column as quote_column
from lapse.engines.sqlite.names import quote
from lapse.engines.walltime import expiry
from lapse.errors import Drift, Unsupported
from lapse.model.expression import Node, walk
from lapse.model.interval import Interval
from lapse.model.policy import ColumnExpiry
from lapse.model.table import MANAGED_COLUMN, Column, TimeFormat

_NOW_MS = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition(shared.Condition):
    """`column` and `bound` are set where an index on that column can find the candidates.

    `instant` is SQL for a row's expiry in milliseconds, before `after` is added to what is read in `zone`.
    """

    instant: str
    after: Interval = Interval()  # noqa: RUF009 - it is frozen
    zone: str = "UTC"
    column: str | None = None
    bound: str | None = None

    def expiry(self, milliseconds: int | None) -> datetime | None:
        """The instant at which a row with that `instant` expires."""
        moment = times.from_milliseconds(milliseconds)
        return None if moment is None else expiry(moment.replace(tzinfo=None), self.after, ZoneInfo(self.zone))


def own(found: shared.Condition) -> Condition:
    """A condition that this engine has compiled."""
    assert isinstance(found, Condition)
    return found


def at(connection: Connection | None, declared: BoundPolicy, cutoff: datetime, *, whole: bool = False) -> Condition:
    """The condition of a job with this cutoff. `whole` checks the time format of every row, not of a sample; without a
    connection, types alone tell it."""
    formats = _Formats(connection, declared, whole=whole)
    now = str(times.milliseconds_of(cutoff))
    required = _required(declared, formats, now)
    held = (
        _writer(declared, formats, now, each.where, "what is held").held(each) for each in declared.holds_at(cutoff)
    )
    found = _expired(declared, formats, cutoff).requiring(*required).but_not(*held)
    return replace(found, surplus=_surplus(declared))


def _required(declared: BoundPolicy, formats: _Formats, now: str) -> tuple[str, ...]:
    return tuple(_writer(declared, formats, now, node, what).truth(node, what) for what, node in declared.required)


def _surplus(declared: BoundPolicy, *, pinned: bool = True) -> str:
    """True for rows that `ttl_keep_last` does not keep; nothing where the policy has none. `pinned` to its index, which
    a view must not be: it would fail without it."""
    kept = keep_last.kept(declared)
    if kept is None:
        return ""
    table = quote(declared.table.name.name)
    if kept.index is None:
        name = quote("_".join((declared.table.name.name, *kept.index_columns)))
        columns = ", ".join(quote(column) for column in kept.index_columns)
        raise keep_last.missing_index(kept, f"CREATE INDEX {name} ON {table} ({columns});")
    rows = f"{table} INDEXED BY {quote(kept.index.name)}" if pinned else table
    return keep_last.surplus(
        kept,
        source=rows,
        quote=quote_column,
        equal=lambda one, other: f"{one} = {other}",
        less=lambda one, other: f"({one} < {other})",
    )


def _writer(declared: BoundPolicy, formats: _Formats, now: str, node: Node | None, what: str) -> Writer:
    writer = Writer(table=declared.table, now=now, format_of=formats.of)
    if declared.policy.zone != "UTC" and node is not None and any(map(writer.is_time, walk(node))):
        raise Unsupported(
            f"{what} cannot read times in ttl_time_zone = {declared.policy.zone!r} on SQLite, which knows no zones",
            hint="store instants in UTC, or go by something else",
        )
    return writer


def _expired(declared: BoundPolicy, formats: _Formats, cutoff: datetime) -> Condition:
    policy, table = declared.policy, declared.table
    expiry = policy.expiry
    if isinstance(expiry, ColumnExpiry):
        column = formats.column(expiry.column)
        fmt = formats.of(column.name)
        zone = policy.zone if fmt is TimeFormat.ISO and not formats.is_managed(column) else "UTC"
        limit = times.threshold(column.name, fmt, expiry.after, cutoff, zone)
        instant = times.column_milliseconds(column.name, fmt)
        return Condition(
            expired=limit.sql, instant=instant, after=expiry.after, zone=zone, column=column.name, bound=limit.bound
        )
    assert declared.expression is not None
    if policy.zone != "UTC":
        raise Unsupported(
            f"ttl_time_zone = {policy.zone!r} cannot be used with an expression on SQLite, which knows no zones",
            hint="use TTL = column + INTERVAL, or store instants in UTC",
        )
    writer = Writer(table=table, now=str(times.milliseconds_of(cutoff)), format_of=formats.of)
    instant = writer.time(declared.expression)
    return Condition(expired=f"({instant} <= {times.milliseconds_of(cutoff)})", instant=instant)


def expired_now(connection: Connection, declared: BoundPolicy) -> str:
    """The condition at the time it is evaluated, for the live view."""
    formats = _Formats(connection, declared, whole=False)
    required = _required(declared, formats, _NOW_MS)
    surplus = _surplus(declared, pinned=False)
    return shared.Condition(expired=_expired_now(declared, formats), required=required, surplus=surplus).sql


def _expired_now(declared: BoundPolicy, formats: _Formats) -> str:
    policy = declared.policy
    expiry = policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        assert declared.expression is not None
        instant = Writer(table=declared.table, now=_NOW_MS, format_of=formats.of).time(declared.expression)
        return f"({instant} <= {_NOW_MS})"
    column = formats.column(expiry.column)
    fmt = formats.of(column.name)
    if fmt is TimeFormat.ISO and policy.zone != "UTC" and not formats.is_managed(column):
        raise Unsupported(
            f"ttl_hide_expired = 'view' cannot work with ttl_time_zone = {policy.zone!r} on SQLite",
            hint="SQLite knows no time zones: store times in UTC, or leave ttl_hide_expired off",
        )
    earlier = times.shifted_now(expiry.after, -1)
    return f"({times.column_milliseconds(column.name, fmt)} <= {times.plain_milliseconds(earlier)})"


class _Formats:
    """How each time column stores time: said by the policy, or found in the data."""

    def __init__(self, connection: Connection | None, declared: BoundPolicy, *, whole: bool) -> None:
        self._connection = connection
        self._declared = declared
        self._whole = whole

    def column(self, name: str) -> Column:
        column = self._declared.table.column(name)
        if column is None:
            raise Drift(f"table {self._declared.table.name} has no column {name}, which its TTL policy reads")
        return column

    def is_managed(self, column: Column) -> bool:
        """Stamped by Lapse, as text in UTC."""
        return column.name == MANAGED_COLUMN and self._declared.policy.expire_after is not None

    def of(self, name: str) -> TimeFormat:
        column = self.column(name)
        if self.is_managed(column):
            return TimeFormat.ISO
        if self._declared.policy.time_format is not None:
            return self._declared.policy.time_format
        if self._connection is None:
            return times.format_by_type(self._declared.table, column)
        return times.detect(self._connection, self._declared.table, column, whole=self._whole)
