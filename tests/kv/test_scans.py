"""Ranges, prefixes, and iterators that are open while rows expire."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.clock import ManualClock
from lapse.errors import InvalidValue, StoreClosed
from lapse.kv import Store
from tests.kv.conftest import Opener, settle


def keys(store: Store, *args: bytes, **options: object) -> list[bytes]:
    return [key for key, _ in store.scan(*args, **options)]  # type: ignore[arg-type]


@pytest.fixture
def letters(store: Store, clock: ManualClock) -> Store:
    for letter in (b"a", b"b", b"ba", b"bb", b"c", b"\xff", b"\xff\xff"):
        store.put(letter, letter)
        clock.advance(timedelta(minutes=20))
    return store


def test_ranges_are_half_open_and_in_order(letters: Store) -> None:
    assert keys(letters) == [b"a", b"b", b"ba", b"bb", b"c", b"\xff", b"\xff\xff"]
    assert keys(letters, b"b", b"c") == [b"b", b"ba", b"bb"]
    assert keys(letters, b"bb") == [b"bb", b"c", b"\xff", b"\xff\xff"]
    assert keys(letters, b"b", b"b") == []


def test_prefixes(letters: Store) -> None:
    assert keys(letters, prefix=b"b") == [b"b", b"ba", b"bb"]
    assert keys(letters, b"ba", prefix=b"b") == [b"ba", b"bb"]
    assert keys(letters, prefix=b"\xff") == [b"\xff", b"\xff\xff"]
    assert keys(letters, prefix=b"nothing") == []


def test_limit_counts_live_rows_only(letters: Store, clock: ManualClock) -> None:
    clock.advance(timedelta(days=1) - timedelta(minutes=20 * 6))  # a and b have expired
    assert keys(letters, limit=2) == [b"ba", b"bb"]
    assert keys(letters, limit=0) == []


@pytest.mark.parametrize(
    "bad", [{"start": "a"}, {"end": 1}, {"prefix": "a"}, {"start": b"b", "end": b"a"}, {"limit": -1}]
)
def test_bad_ranges_are_refused(store: Store, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        store.scan(**bad)  # type: ignore[arg-type]


def test_a_row_that_expires_under_an_open_iterator_is_not_returned(store: Store, clock: ManualClock) -> None:
    store.put_many([(b"k%04d" % i, b"v") for i in range(2500)], ttl="1 hour")
    rows = store.scan()
    assert next(rows) == (b"k0000", b"v")
    clock.advance(timedelta(hours=1))
    assert list(rows) == []


def test_a_scan_shows_the_store_as_it_was_when_it_began(store: Store) -> None:
    store.put_many([(b"k%04d" % i, b"old") for i in range(2500)])
    rows = store.scan()
    store.put_many([(b"k%04d" % i, b"new") for i in range(2500)])
    store.put(b"k9999", b"new")
    assert {value for _, value in rows} == {b"old"}


def test_a_newer_version_replaces_an_older_one_in_a_scan(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"1")
    clock.advance(timedelta(hours=2))
    store.put(b"k", b"2")
    assert list(store.scan()) == [(b"k", b"2")]
    store.put(b"k", b"3", ttl="1 minute")
    clock.advance(timedelta(minutes=1))
    assert list(store.scan()) == []


def test_a_closed_store_ends_its_scans_with_an_error(store: Store) -> None:
    store.put_many([(b"k%04d" % i, b"v") for i in range(5000)])
    rows = store.scan()
    next(rows)
    store.close()
    with pytest.raises(StoreClosed):
        list(rows)


def test_a_prefix_gives_all_its_rows_and_no_others(opener: Opener) -> None:
    """Of many rows: what the engine reads beside a bound must not have been let go of."""
    store = opener()
    wanted = {prefix: [b"%s:%04d" % (prefix, i) for i in range(500)] for prefix in (b"a", b"item", b"user", b"zone")}
    store.put_many([(key, b"value of " + key) for keys in wanted.values() for key in keys])
    settle(store)
    for _ in range(20):
        for prefix, keys in wanted.items():
            assert [key for key, _ in store.scan(prefix=prefix + b":")] == keys
            assert [key for key, _ in store.scan(keys[100], keys[101] + b"~")] == keys[100:102]
