"""How many rows expire on each of the coming days, and how large the table gets in the long run. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy, Engine, Expiring
from lapse.errors import Unsupported
from lapse.model.interval import Interval
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import MANAGED_COLUMN, TableName

FORECAST_DAYS = 30
NEVER = timedelta(days=100 * 365)
"""A row that has not expired by then is taken for one that never does."""
ARRIVAL_WINDOW = timedelta(days=7)
"""How far back arrivals are counted: a week has all days of one in it. A shorter TTL has a shorter window."""
ARRIVAL_PARTS = 7
"""The window begins with the first of its parts in which anything arrived, for the sake of young tables."""
DAY = timedelta(days=1)

Shift = Callable[[datetime], datetime]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastDay:
    """Rows that expire after `start` and not after `end`, 24 hours later."""

    start: datetime
    end: datetime
    rows: int
    bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyState:
    """What the table settles at when rows keep arriving as they do now and each stays for `ttl`."""

    ttl: Interval
    rows_per_day: float
    rows: int
    bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """`expired` rows have expired `at` this moment already. `ttl` is set where the question was "what if?".

    `margin` is how many rows each number may be off where the numbers are not `exact`; `method` says where they come
    from. `steady` is None where the table does not say when its rows arrived.
    """

    table: TableName
    policy: Policy
    at: datetime
    ttl: Interval | None
    rows: int
    bytes: int | None
    expired: int
    days: tuple[ForecastDay, ...]
    steady: SteadyState | None
    exact: bool
    method: str
    margin: int

    def total(self, days: int) -> int:
        """Rows that expire within so many days from now."""
        return sum(day.rows for day in self.days[:days])


def together(parts: Sequence[Forecast]) -> Forecast:
    """Of several physical tables. What they settle at in the long run only a look at all of them at once tells."""
    sizes = [part.bytes for part in parts if part.bytes is not None]
    days = zip(*(part.days for part in parts), strict=True)
    return replace(
        parts[0],
        rows=sum(part.rows for part in parts),
        bytes=sum(sizes) if len(sizes) == len(parts) else None,
        expired=sum(part.expired for part in parts),
        days=tuple(replace(same[0], rows=sum(day.rows for day in same), bytes=None) for same in days),
        steady=parts[0].steady if len(parts) == 1 else None,
        exact=all(part.exact for part in parts),
        method=", ".join(sorted({part.method for part in parts})),
        margin=sum(part.margin for part in parts),
    )


class Forecaster:
    """Asks the engine once for all instants that a forecast needs, over all physical tables of a policy."""

    def __init__(self, engine: Engine, declared: Sequence[BoundPolicy], *, days: int, ttl: Interval | None) -> None:
        self._engine = engine
        self._declared = [_with_ttl(each, ttl) for each in declared]
        self._what_if = ttl
        self._days = days
        self._ttl = ttl or _lifetime(declared[0].policy)

    def look(self, connection: Connection, *, exact: bool) -> tuple[Forecast, Expiring]:
        """The forecast, and the numbers it was made of, of which the first count is that of now."""
        now = self._engine.now(connection)
        instants = self._instants(now)
        found = _together(
            [
                self._engine.expiring(connection, declared, [shift(moment) for moment in instants], exact=exact)
                for declared, shift in self._declared
            ]
        )
        return self._forecast(now, dict(zip(instants, found.counts, strict=True)), found), found

    def _instants(self, now: datetime) -> list[datetime]:
        wanted = {now + DAY * number for number in range(self._days + 1)} | {now + NEVER}
        wanted |= set(self._arrivals(now))
        # Nothing before now: the first is that of now.
        return sorted(moment for moment in wanted if moment >= now)

    def _arrivals(self, now: datetime) -> list[datetime]:
        """When rows expire that arrived at the edges of the window's parts; the last of them arrive now."""
        if not self._ttl:
            return []
        lifetime = timedelta(seconds=self._ttl.approximate_seconds)
        window, arrived = min(ARRIVAL_WINDOW, lifetime), self._ttl.added_to(now)
        edges = [arrived - window * part / ARRIVAL_PARTS for part in range(ARRIVAL_PARTS, -1, -1)]
        return [max(edge, now) for edge in edges]

    def _forecast(self, now: datetime, totals: Mapping[datetime, int], found: Expiring) -> Forecast:
        days = tuple(
            _day(now + DAY * number, totals[now + DAY * (number + 1)] - totals[now + DAY * number], found)
            for number in range(self._days)
        )
        declared = self._declared[0][0]
        return Forecast(
            table=TableName(declared.table.name.name, declared.table.name.schema),
            policy=declared.policy,
            at=now,
            ttl=self._what_if,
            rows=found.rows,
            bytes=found.bytes,
            expired=totals[now],
            days=days,
            steady=self._steady(now, totals, found),
            exact=found.exact,
            method=found.method,
            margin=found.margin,
        )

    def _steady(self, now: datetime, totals: Mapping[datetime, int], found: Expiring) -> SteadyState | None:
        edges = self._arrivals(now)
        begin = next((edge for edge, after in pairwise(edges) if totals[after] > totals[edge]), None)
        if not self._ttl or not found.rows or begin is None:
            return None
        per_day = (totals[edges[-1]] - totals[begin]) / ((edges[-1] - begin) / DAY)
        lasting = found.rows - totals[now + NEVER]
        rows = round(per_day * self._ttl.approximate_seconds / DAY.total_seconds()) + lasting
        return SteadyState(ttl=self._ttl, rows_per_day=per_day, rows=rows, bytes=_share(rows, found))


def _day(start: datetime, rows: int, found: Expiring) -> ForecastDay:
    return ForecastDay(start=start, end=start + DAY, rows=rows, bytes=_share(rows, found))


def _share(rows: int, found: Expiring) -> int | None:
    """Bytes of so many rows, if they are as large as the others."""
    return None if found.bytes is None or not found.rows else found.bytes * rows // found.rows


def _together(parts: Sequence[Expiring]) -> Expiring:
    sizes = [part.bytes for part in parts if part.bytes is not None]
    return Expiring(
        counts=tuple(map(sum, zip(*(part.counts for part in parts), strict=True))),
        rows=sum(part.rows for part in parts),
        bytes=sum(sizes) if len(sizes) == len(parts) else None,
        oldest=min((part.oldest for part in parts if part.oldest is not None), default=None),
        exact=all(part.exact for part in parts),
        method=", ".join(sorted({part.method for part in parts})),
        margin=sum(part.margin for part in parts),
    )


def _lifetime(policy: Policy) -> Interval | None:
    """How long a row lives from its arrival, where the policy says so."""
    if policy.expression is not None:
        return None
    return policy.interval if policy.column is not None else policy.expire_after


def _with_ttl(declared: BoundPolicy, ttl: Interval | None) -> tuple[BoundPolicy, Shift]:
    """The policy as if its TTL were another, and how to ask about an instant."""
    expiry = declared.policy.expiry
    if ttl is None:
        return declared, lambda moment: moment
    if not isinstance(expiry, ColumnExpiry):
        raise Unsupported(
            f"rows of table {declared.table.name} expire by an expression, so there is no TTL to try another for",
            hint="give the forecast without a TTL",
        )
    stamped = declared.policy.expire_after
    if expiry.column == MANAGED_COLUMN and declared.policy.column is None and stamped is not None:
        # The column is stamped with the present TTL: ask as if it had been stamped with the other.
        return declared, lambda moment: stamped.added_to(ttl.subtracted_from(moment))
    return replace(declared, policy=replace(declared.policy, interval=ttl)), lambda moment: moment
