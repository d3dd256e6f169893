"""The condition that is true for expired rows and for no other, for jobs, previews and the live view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from lapse.engines import condition as shared
from lapse.engines import keep_last
from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import times
from lapse.engines.mysql.expression import Writer, zone_literal
from lapse.engines.mysql.names import qualified, quote
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


def at(connection: Connection, declared: BoundPolicy, cutoff: datetime) -> Condition:
    """The condition of a job with this cutoff, for a session in UTC."""
    now = times.instant_literal(cutoff)
    required, held = _required(declared, now), _held(declared, now, declared.holds_at(cutoff))
    if required or held:
        _require_zone(connection, declared)
    found = _expired(connection, declared, cutoff).requiring(*required).but_not(*held)
    return replace(found, surplus=_surplus(declared))


def _required(declared: BoundPolicy, now: str) -> tuple[str, ...]:
    writer = _writer(declared, now)
    return tuple(writer.truth(node, what) for what, node in declared.required)


def _surplus(declared: BoundPolicy, *, pinned: bool = True) -> str:
    """True for rows that `ttl_keep_last` does not keep; nothing where the policy has none. `pinned` to its index, which
    a view must not be: it would fail without it."""
    kept = require_kept(declared)
    if kept is None:
        return ""
    rows = qualified(declared.table.name) + (_forced(kept) if pinned else "")
    return keep_last.surplus(kept, source=rows, quote=quote, equal=_equal, less=_less)


def lasting_surplus(declared: BoundPolicy, *, is_mariadb: bool) -> str:
    """The same for the statement that locks the rows of a batch: the rows that are kept instead are locked as well, so
    that they are there, and the last ones, until the batch is committed. Rows that others have locked may be about to
    go and do not count."""
    kept = require_kept(declared)
    if kept is None:
        return ""
    name = qualified(declared.table.name)
    last = keep_last.lasting(kept, row=name, table=f"{name} AS lapse_last{_forced(kept)}", quote=quote, equal=_equal)
    if is_mariadb:
        nth = f"({last} LIMIT 1 OFFSET {kept.rows - 1} LOCK IN SHARE MODE SKIP LOCKED)"
    else:
        # MySQL unlocks what an OFFSET passes over; MariaDB, which does not, has no such subquery.
        columns = [f"lapse_last.{quote(column)}" for column in kept.order]
        nth = (
            f"(SELECT {', '.join(columns)} FROM ({last} LIMIT {kept.rows} FOR SHARE SKIP LOCKED) AS lapse_last"
            f" ORDER BY {', '.join(f'{column} DESC' for column in columns)} LIMIT 1 OFFSET {kept.rows - 1})"
        )
    return _less(f"({', '.join(f'{name}.{quote(column)}' for column in kept.order)})", nth)


def require_kept(declared: BoundPolicy) -> keep_last.Kept | None:
    kept = keep_last.kept(declared)
    if kept is None:
        return None
    for name in kept.order:
        column = declared.table.column(name)
        if column is not None and column.type.lower().startswith(("enum", "set")):
            raise Unsupported(
                f"column {name} of table {declared.table.name} has the type {column.type}, which is compared as text"
                " but sorted by number, so ttl_keep_last cannot go by it"
            )
    if kept.index is None:
        columns = ", ".join(quote(name) for name in kept.index_columns)
        raise keep_last.missing_index(kept, f"ALTER TABLE {qualified(declared.table.name)} ADD INDEX ({columns});")
    return kept


def _forced(kept: keep_last.Kept) -> str:
    assert kept.index is not None
    return f" FORCE INDEX ({quote(kept.index.name)})"


def _equal(one: str, other: str) -> str:
    return f"{one} = {other}"


def _less(one: str, other: str) -> str:
    return f"({one} < {other})"


def _held(declared: BoundPolicy, now: str, holds: Sequence[HeldRows]) -> tuple[str, ...]:
    writer = _writer(declared, now)
    return tuple(writer.held(each) for each in holds)


def _expired(connection: Connection, declared: BoundPolicy, cutoff: datetime) -> Condition:
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


def expired_now(connection: Connection, declared: BoundPolicy) -> str:
    """The condition at the time it is evaluated, in a session of anybody's, for the live view."""
    _require_zone(connection, declared)
    return expired_sql(declared)


def expired_sql(declared: BoundPolicy) -> str:
    """The same without asking whether the server knows the policy's zone; if it does not, nothing has expired."""
    expired, surplus = _passed(_instant(declared, NOW), NOW), _surplus(declared, pinned=False)
    return shared.Condition(expired=expired, required=_required(declared, NOW), surplus=surplus).sql


def reads_wall_clock(declared: BoundPolicy) -> bool:
    """Does the policy's zone change what expires?"""
    read_in = (replace(declared, policy=replace(declared.policy, time_zone=zone)) for zone in ("UTC", "Asia/Tokyo"))
    one, other = ((_instant(each, NOW), _required(each, NOW), _held(each, NOW, each.holds)) for each in read_in)
    return one != other


def _instant(declared: BoundPolicy, now: str) -> str:
    """SQL for when a row expires."""
    policy, node = declared.policy, declared.expression
    if isinstance(policy.expiry, ColumnExpiry):
        column = _column(declared, policy.expiry.column)
        times.require_kind(column, declared.table.name)
        node = Binary("+", ColumnRef(column.name), Span(policy.expiry.after))
    assert node is not None
    return _writer(declared, now).time(node)


def _writer(declared: BoundPolicy, now: str) -> Writer:
    policy = declared.policy
    return Writer(table=declared.table, now=now, zone=policy.zone, managed=policy.expire_after is not None)


def _passed(instant: str, now: str) -> str:
    """A text that is no time becomes the zero date in some modes, which must not count as long ago."""
    return f"({instant} BETWEEN TIMESTAMP'1000-01-01 00:00:00' AND {now})"


def _is_managed(declared: BoundPolicy, column: Column) -> bool:
    return column.name == MANAGED_COLUMN and declared.policy.expire_after is not None


def _column(declared: BoundPolicy, name: str) -> Column:
    column = declared.table.column(name)
    if column is None:
        raise Drift(f"table {declared.table.name} has no column {name}, which its TTL policy reads")
    return column


def _require_zone(connection: Connection, declared: BoundPolicy) -> None:
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
