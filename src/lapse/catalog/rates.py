"""Rate limits of the whole fleet: one row each, holding the moment from which the next row may be taken.

Taking `count` rows moves that moment by `count / rate` seconds. A worker that takes rows waits until the moment it
found. No worker has to know of any other, and the sum of what all take is exact.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from lapse.catalog.schema import rate
from lapse.errors import Retryable

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
MICROSECONDS = 1_000_000


def take(connection: Connection, name: str, per_second: int, count: int, now: datetime) -> float:
    """Reserve `count` rows; returns the seconds to wait before using them. Inside the caller's transaction."""
    now_us = (now - _EPOCH) // _MICROSECOND
    free_at = connection.execute(select(rate.c.free_at_us).where(rate.c.name == name).with_for_update()).scalar()
    start = max(int(free_at), now_us) if free_at is not None else now_us
    after = start + count * MICROSECONDS // per_second
    if free_at is None:
        try:
            connection.execute(insert(rate).values(name=name, free_at_us=after))
        except IntegrityError as error:
            raise Retryable(f"another worker was first to use the rate limit {name}") from error
    else:
        connection.execute(update(rate).where(rate.c.name == name).values(free_at_us=after))
    return (start - now_us) / MICROSECONDS


def give_back(connection: Connection, name: str, per_second: int, count: int) -> None:
    """Return rows that were reserved and not used."""
    connection.execute(
        update(rate)
        .where(rate.c.name == name)
        .values(free_at_us=rate.c.free_at_us - count * MICROSECONDS // per_second)
    )
