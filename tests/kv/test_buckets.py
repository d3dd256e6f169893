"""Time buckets: expiry is a drop of whole buckets, oldest first."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.clock import ManualClock
from lapse.errors import InvalidValue
from lapse.kv import Store
from tests.kv.conftest import Kind, Opener

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def has_buckets(kind: Kind) -> None:
    if kind.bucket is None:
        pytest.skip("no buckets in this layout")


def fill_hours(store: Store, clock: ManualClock, hours: int, *, ttl: str) -> None:
    for hour in range(hours):
        store.put_many([(b"%02d-%03d" % (hour, i), b"v") for i in range(100)], ttl=ttl)
        clock.advance(HOUR)


def test_whole_buckets_are_dropped(store: Store, clock: ManualClock) -> None:
    fill_hours(store, clock, 6, ttl="3 hours")
    assert store.stats().buckets == 6
    result = store.purge()
    assert (result.units_dropped, result.purged) == (4, 400)
    assert len(list(store.scan())) == 200
    clock.advance(10 * HOUR)
    store.put(b"now", b"v", ttl="1 hour")
    assert store.purge().units_dropped == 2
    assert store.stats().buckets == 1


def test_a_long_lived_row_keeps_younger_buckets_from_being_dropped_around_it(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"long", ttl="50 hours")
    clock.advance(2 * HOUR)
    store.put(b"k", b"short", ttl="1 hour")
    store.put(b"other", b"short", ttl="1 hour")
    clock.advance(5 * HOUR)
    result = store.purge()
    assert (result.units_dropped, result.purged) == (0, 2)
    assert store.get(b"k") is None
    assert list(store.scan(include_expired=True)) == []
    clock.advance(50 * HOUR)
    assert store.purge().units_dropped == 2
    assert store.stats(count=True).rows == 0


def test_buckets_survive_a_restart(opener: Opener, clock: ManualClock) -> None:
    store = opener()
    fill_hours(store, clock, 4, ttl="2 hours")
    store.close()
    store = opener()
    assert store.stats().buckets == 4
    assert len(list(store.scan())) == 100
    assert store.purge().units_dropped == 3
    assert store.get(b"03-001") == b"v"


def test_the_width_cannot_change(opener: Opener) -> None:
    opener().close()
    with pytest.raises(InvalidValue, match="cannot be changed"):
        opener(bucket="1 day")
    opener(bucket="1 hour").close()


@pytest.mark.parametrize("width", ["0 hours", "1 ms", "1 month", "5"])
def test_widths_that_make_no_sense(opener: Opener, width: str) -> None:
    with pytest.raises(InvalidValue):
        opener(bucket=width)
    assert not opener.path.exists()
