"""The condition that is true for expired rows and for no other, for jobs, previews and the live view."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from lapse.engines.base import Declared
from lapse.engines.mysql import times
from lapse.engines.mysql.expression import Writer
from lapse.engines.mysql.names import literal
from lapse.engines.mysql.times import Kind
from lapse.errors import Drift, Unsupported
from lapse.model.expression import columns as expression_columns
from lapse.model.policy import ColumnExpiry
from lapse.model.table import Column

NOW = "utc_timestamp(6)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """`sql` decides; `column` is set where an index on it can find the candidates.

    `moment` is SQL for a row's expiry before the interval is added, to be read in `zone`.
    """

    sql: str
    moment: str
    zone: ZoneInfo
    column: Column | None = None
    last: str | None = None
    """The latest value of `column` that has expired."""


def at(connection: Connection, declared: Declared, cutoff: datetime) -> Condition:
    """The condition of a job with this cutoff, for a session in UTC."""
    policy, expiry = declared.policy, declared.policy.expiry
    if isinstance(expiry, ColumnExpiry):
        column = _column(declared, expiry.column)
        kind = times.require_kind(column, declared.table.name)
        limit = times.threshold(column, kind, expiry.after, cutoff, policy.time_zone)
        moment = times.moment(column, kind)
        return Condition(sql=limit.sql, moment=moment, zone=limit.zone, column=column, last=limit.last)
    assert declared.expression is not None
    _require_zone(connection, declared)
    now = times.instant_literal(cutoff)
    instant = Writer(table=declared.table, now=now, zone=policy.time_zone).time(declared.expression)
    return Condition(sql=_passed(instant, now), moment=instant, zone=ZoneInfo("UTC"))


def expired_now(connection: Connection, declared: Declared) -> str:
    """The condition at the time it is evaluated, in a session of anybody's, for the live view."""
    policy, expiry = declared.policy, declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        assert declared.expression is not None
        _require_zone(connection, declared)
        instant = Writer(table=declared.table, now=NOW, zone=policy.time_zone).time(declared.expression)
        return _passed(instant, NOW)
    column = _column(declared, expiry.column)
    kind = times.require_kind(column, declared.table.name)
    now = NOW
    if policy.time_zone != "UTC" and kind in (Kind.WALL_CLOCK, Kind.DAY):
        _require_zone_tables(connection, policy.time_zone)
        now = f"convert_tz({NOW}, '+00:00', {literal(policy.time_zone)})"
    return f"({times.moment(column, kind)} <= {times.shifted(now, expiry.after, '-')})"


def _passed(instant: str, now: str) -> str:
    """A text that is no time becomes the zero date in some modes, which must not count as long ago."""
    return f"({instant} BETWEEN TIMESTAMP'0001-01-01 00:00:00' AND {now})"


def _column(declared: Declared, name: str) -> Column:
    column = declared.table.column(name)
    if column is None:
        raise Drift(f"table {declared.table.name} has no column {name}, which its TTL policy reads")
    return column


def _require_zone(connection: Connection, declared: Declared) -> None:
    zone = declared.policy.time_zone
    if zone == "UTC" or declared.expression is None:
        return
    kinds = [
        times.kind_of(column)
        for name in expression_columns(declared.expression)
        if (column := declared.table.column(name)) is not None
    ]
    if Kind.WALL_CLOCK in kinds or Kind.DAY in kinds:
        _require_zone_tables(connection, zone)


def _require_zone_tables(connection: Connection, zone: str) -> None:
    known = connection.exec_driver_sql(
        f"SELECT convert_tz('2000-01-01 00:00:00', '+00:00', {literal(zone)}) IS NOT NULL"
    ).scalar_one()
    if not known:
        raise Unsupported(
            f"the server does not know the time zone {zone}, so it cannot compute with wall-clock columns in it",
            hint="load the zones: mariadb-tzinfo-to-sql /usr/share/zoneinfo | mariadb mysql",
        )
