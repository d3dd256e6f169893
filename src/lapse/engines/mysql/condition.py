"""The condition that is true for expired rows and for no other, for jobs, previews and the live view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from lapse.engines import condition as shared
from lapse.engines.base import Declared
from lapse.engines.mysql import times
from lapse.engines.mysql.expression import Writer, zone_literal
from lapse.engines.values import HeldRows
from lapse.engines.walltime import expiry
from lapse.errors import Drift, Unsupported
from lapse.model.expression import Binary, ColumnRef, Span
from lapse.model.interval import Interval
from lapse.model.policy import ColumnExpiry
from lapse.model.table import MANAGED_COLUMN, Column

NOW = "utc_timestamp(6)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition(shared.Condition):
    """`column` is set where an index on it can find the candidates.

    `moment` is SQL for a row's expiry before `after` is added, to be read in `zone`.
    """

    moment: str
    zone: ZoneInfo
    after: Interval = Interval()  # noqa: RUF009 - it is frozen
    column: Column | None = None
    last: str | None = None
    """The latest value of `column` that has expired."""

    def expiry(self, value: object) -> datetime | None:
        """The instant at which a row with that `moment` expires."""
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return expiry(moment, self.after, self.zone) if isinstance(moment, datetime) else None


def own(found: shared.Condition) -> Condition:
    """A condition that this engine has compiled."""
    assert isinstance(found, Condition)
    return found


def at(connection: Connection, declared: Declared, cutoff: datetime) -> Condition:
    """The condition of a job with this cutoff, for a session in UTC."""
    now = times.instant_literal(cutoff)
    required, held = _required(declared, now), _held(declared, now, declared.holds_at(cutoff))
    if required or held:
        _require_zone(connection, declared)
    return _expired(connection, declared, cutoff).requiring(*required).but_not(*held)


def _required(declared: Declared, now: str) -> tuple[str, ...]:
    """What has to be true for a row beside its expiry."""
    return () if declared.filter is None else (_writer(declared, now).truth(declared.filter),)


def _held(declared: Declared, now: str, holds: Sequence[HeldRows]) -> tuple[str, ...]:
    writer = _writer(declared, now)
    return tuple(writer.held(each) for each in holds)


def _expired(connection: Connection, declared: Declared, cutoff: datetime) -> Condition:
    policy = declared.policy
    if isinstance(policy.expiry, ColumnExpiry):
        column = _column(declared, policy.expiry.column)
        kind = times.require_kind(column, declared.table.name)
        zone = "UTC" if _is_managed(declared, column) else policy.zone
        limit = times.threshold(column, kind, policy.expiry.after, cutoff, zone)
        moment = times.moment(column, kind)
        after = policy.expiry.after
        return Condition(expired=limit.sql, moment=moment, zone=limit.zone, after=after, column=column, last=limit.last)
    _require_zone(connection, declared)
    now = times.instant_literal(cutoff)
    instant = _instant(declared, now)
    return Condition(expired=_passed(instant, now), moment=instant, zone=ZoneInfo("UTC"))


def expired_now(connection: Connection, declared: Declared) -> str:
    """The condition at the time it is evaluated, in a session of anybody's, for the live view."""
    _require_zone(connection, declared)
    return expired_sql(declared)


def expired_sql(declared: Declared) -> str:
    """The same without asking whether the server knows the policy's zone; if it does not, nothing has expired."""
    return shared.Condition(expired=_passed(_instant(declared, NOW), NOW), required=_required(declared, NOW)).sql


def reads_wall_clock(declared: Declared) -> bool:
    """Does the policy's zone change what expires?"""
    read_in = (replace(declared, policy=replace(declared.policy, time_zone=zone)) for zone in ("UTC", "Asia/Tokyo"))
    one, other = ((_instant(each, NOW), _required(each, NOW), _held(each, NOW, each.holds)) for each in read_in)
    return one != other


def _instant(declared: Declared, now: str) -> str:
    """SQL for when a row expires."""
    policy, node = declared.policy, declared.expression
    if isinstance(policy.expiry, ColumnExpiry):
        column = _column(declared, policy.expiry.column)
        times.require_kind(column, declared.table.name)
        node = Binary("+", ColumnRef(column.name), Span(policy.expiry.after))
    assert node is not None
    return _writer(declared, now).time(node)


def _writer(declared: Declared, now: str) -> Writer:
    policy = declared.policy
    return Writer(table=declared.table, now=now, zone=policy.zone, managed=policy.expire_after is not None)


def _passed(instant: str, now: str) -> str:
    """A text that is no time becomes the zero date in some modes, which must not count as long ago."""
    return f"({instant} BETWEEN TIMESTAMP'1000-01-01 00:00:00' AND {now})"


def _is_managed(declared: Declared, column: Column) -> bool:
    return column.name == MANAGED_COLUMN and declared.policy.expire_after is not None


def _column(declared: Declared, name: str) -> Column:
    column = declared.table.column(name)
    if column is None:
        raise Drift(f"table {declared.table.name} has no column {name}, which its TTL policy reads")
    return column


def _require_zone(connection: Connection, declared: Declared) -> None:
    """Where the server computes with the zone, it has to know it."""
    zone = declared.policy.zone
    if zone == "UTC" or not reads_wall_clock(declared):
        return
    known = connection.exec_driver_sql(
        f"SELECT convert_tz('2000-01-01 00:00:00', '+00:00', {zone_literal(zone)}) IS NOT NULL"
    ).scalar_one()
    if not known:
        raise Unsupported(
            f"the server does not know the time zone {zone}, so it cannot compute with wall-clock columns in it",
            hint="load the zones: mariadb-tzinfo-to-sql /usr/share/zoneinfo | mariadb mysql",
        )
