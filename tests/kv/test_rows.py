"""Writing rows and reading them back, alive and expired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lapse.clock import ManualClock
from lapse.errors import InvalidValue
from lapse.kv import Store, Ttl
from tests.kv.conftest import START, Opener

HOUR = timedelta(hours=1)


def test_a_row_is_there_until_its_expiry_and_not_at_it(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"v", ttl="1 hour")
    clock.advance(HOUR - timedelta(milliseconds=1))
    assert store.get(b"k") == b"v"
    clock.advance(timedelta(milliseconds=1))
    assert store.get(b"k") is None
    assert store.meta(b"k") is None
    assert list(store.scan()) == []


@pytest.mark.parametrize(
    "ttl", ["1 hour", "PT1H", timedelta(hours=1), START + HOUR, (START + HOUR).astimezone(UTC)], ids=str
)
def test_every_way_to_write_a_ttl(store: Store, clock: ManualClock, ttl: str | timedelta | datetime) -> None:
    store.put(b"k", b"v", ttl=ttl)
    meta = store.meta(b"k")
    assert meta is not None
    assert (meta.created, meta.expires, meta.remaining) == (START, START + HOUR, HOUR)


def test_calendar_months(store: Store) -> None:
    store.put(b"k", b"v", ttl="1 month")
    meta = store.meta(b"k")
    assert meta is not None
    assert meta.expires == datetime(2030, 2, 1, tzinfo=UTC)


def test_a_row_that_never_expires(opener: Opener, clock: ManualClock) -> None:
    store = opener(max_clock_jump="40000 days")
    store.put(b"k", b"v", ttl=Ttl.NO_EXPIRY)
    clock.advance(timedelta(days=36_500))
    assert store.get(b"k") == b"v"
    meta = store.meta(b"k")
    assert meta is not None
    assert (meta.expires, meta.remaining, meta.expired) == (None, None, False)


def test_the_latest_put_decides_the_ttl(store: Store, clock: ManualClock) -> None:
    store.put(b"shorter", b"1", ttl="10 hours")
    store.put(b"shorter", b"2", ttl="1 hour")
    store.put(b"longer", b"1", ttl="1 hour")
    store.put(b"longer", b"2", ttl="10 hours")
    clock.advance(2 * HOUR)
    assert store.get(b"shorter") is None
    assert store.get(b"longer") == b"2"


def test_a_put_over_an_expired_row_starts_anew(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"old", ttl="1 hour")
    clock.advance(2 * HOUR)
    store.put(b"k", b"new", ttl="1 hour")
    assert store.get(b"k") == b"new"
    clock.advance(HOUR)
    assert store.get(b"k") is None


def test_include_expired_shows_what_is_still_stored(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"v", ttl="1 hour")
    clock.advance(2 * HOUR)
    assert store.get(b"k", include_expired=True) == b"v"
    assert list(store.scan(include_expired=True)) == [(b"k", b"v")]
    meta = store.meta(b"k", include_expired=True)
    assert meta is not None
    assert meta.expired
    assert meta.remaining == timedelta(0)


def test_delete_hides_every_older_version(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"1")
    clock.advance(2 * HOUR)
    store.put(b"k", b"2")
    clock.advance(2 * HOUR)
    store.delete(b"k")
    assert store.get(b"k") is None
    assert store.get(b"k", include_expired=True) is None
    assert list(store.scan(include_expired=True)) == []
    store.delete(b"never there")


def test_touch_gives_a_live_row_a_new_ttl_and_keeps_its_birthday(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"v", ttl="1 hour")
    clock.advance(HOUR / 2)
    assert store.touch(b"k", ttl="2 hours")
    meta = store.meta(b"k")
    assert meta is not None
    assert (meta.created, meta.expires) == (START, START + HOUR / 2 + 2 * HOUR)
    clock.advance(2 * HOUR)
    assert not store.touch(b"k")
    assert not store.touch(b"missing")


def test_persist(opener: Opener, clock: ManualClock) -> None:
    store = opener(max_clock_jump="1000 days")
    store.put(b"k", b"v", ttl="1 hour")
    assert store.persist(b"k")
    clock.advance(timedelta(days=999))
    assert store.get(b"k") == b"v"
    assert not store.persist(b"missing")


def test_put_many_is_one_write(store: Store, clock: ManualClock) -> None:
    assert store.put_many(((b"k%d" % i, b"v") for i in range(3000)), ttl="1 hour") == 3000
    assert len(list(store.scan())) == 3000
    with pytest.raises(InvalidValue):
        store.put_many([(b"good", b"v"), (b"", b"v")])
    assert store.get(b"good") is None
    assert store.put_many([]) == 0


def test_hidden_rows_are_counted(store: Store, clock: ManualClock, opener: Opener) -> None:
    store.put_many([(b"a", b"1"), (b"b", b"2")], ttl="1 hour")
    clock.advance(HOUR)
    store.get(b"a")
    list(store.scan())
    assert opener.metric("lapse_kv_hidden_on_read_total") == 3


def test_a_get_has_no_default_value(store: Store, clock: ManualClock) -> None:
    """As `dict.get` has: it must not be taken for `include_expired`."""
    store.put(b"expired", b"v", ttl="1 hour")
    clock.advance(timedelta(hours=1))
    for key in (b"none", b"expired"):
        with pytest.raises(TypeError):
            store.get(key, b"default")  # type: ignore[call-arg,arg-type]
