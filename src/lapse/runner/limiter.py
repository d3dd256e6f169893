"""Rate limits of the whole fleet, and waiting for them, never inside a transaction.

Each limit is one row of the catalog that holds the moment from which the next row may be taken. Taking `count` rows
moves that moment by `count / rate` seconds. A worker that takes rows waits until the moment it found. No worker has to
know of any other, and the sum of what all take is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from lapse.catalog import Catalog
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.schema import rate
from lapse.errors import Retryable
from lapse.model.settings import Settings
from lapse.runner.retry import retried

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECONDS = 1_000_000

SLICE_SECONDS = 0.25
"""One batch may use up at most this much of a limit, so that the rate is smooth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """`name` is the row in the catalog, `per_second` counts rows of the whole fleet."""

    name: str
    per_second: int


def delete_limits(stored: StoredPolicy, settings: Settings) -> list[Limit]:
    limits = []
    if stored.policy.delete_rate_limit:
        limits.append(Limit(name=f"delete:{stored.id}", per_second=stored.policy.delete_rate_limit))
    if settings.delete_rate_limit:
        limits.append(Limit(name="delete", per_second=settings.delete_rate_limit))
    return limits


def select_limits(stored: StoredPolicy) -> list[Limit]:
    if not stored.policy.select_rate_limit:
        return []
    return [Limit(name=f"select:{stored.id}", per_second=stored.policy.select_rate_limit)]


def cap(size: int, limits: list[Limit]) -> int:
    return max(1, min([size, *(int(limit.per_second * SLICE_SECONDS) for limit in limits)]))


class Limiter:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def acquire(self, limits: list[Limit], count: int, wait: Callable[[float, str], None]) -> None:
        """Reserve `count` rows of every limit, then wait as long as the slowest says."""
        if not limits or count <= 0:
            return
        seconds, slowest = self._reserve(limits, count)
        if seconds > 0:
            wait(seconds, _reason(slowest))

    def pay(self, limits: list[Limit], count: int, wait: Callable[[float, str], None]) -> None:
        """Wait for `count` rows that were used already, which was not known before: until they are free again."""
        if not limits or count <= 0:
            return
        seconds, slowest = self._reserve(limits, count)
        wait(seconds + count / slowest.per_second, _reason(slowest))

    @retried
    def _reserve(self, limits: list[Limit], count: int) -> tuple[float, Limit]:
        with self._catalog.writing(durable=False) as connection:
            now = self._catalog.engine.stopwatch(connection)
            delays = [(take(connection, limit.name, limit.per_second, count, now), limit) for limit in limits]
        return max(delays, key=lambda delay: delay[0])

    @retried
    def refund(self, limits: list[Limit], count: int) -> None:
        if not limits or count <= 0:
            return
        with self._catalog.writing(durable=False) as connection:
            for limit in limits:
                give_back(connection, limit.name, limit.per_second, count)


def _reason(limit: Limit) -> str:
    return f"rate limit of {limit.per_second} rows/s"


def take(connection: Connection, name: str, per_second: int, count: int, now: datetime) -> float:
    """Reserve `count` rows; returns the seconds to wait before using them. Inside the caller's transaction."""
    now_us = (now - _EPOCH) // _MICROSECOND
    free_at = connection.execute(select(rate.c.free_at_us).where(rate.c.name == name).with_for_update()).scalar()
    start = max(int(free_at), now_us) if free_at is not None else now_us
    after = start + count * _MICROSECONDS // per_second
    if free_at is None:
        try:
            connection.execute(insert(rate).values(name=name, free_at_us=after))
        except IntegrityError as error:
            raise Retryable(f"another worker was first to use the rate limit {name}") from error
    else:
        connection.execute(update(rate).where(rate.c.name == name).values(free_at_us=after))
    return (start - now_us) / _MICROSECONDS


def give_back(connection: Connection, name: str, per_second: int, count: int) -> None:
    """Return rows that were reserved and not used."""
    connection.execute(
        update(rate)
        .where(rate.c.name == name)
        .values(free_at_us=rate.c.free_at_us - count * _MICROSECONDS // per_second)
    )
