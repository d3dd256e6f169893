"""Batches, merges, and input that is refused with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lapse.clock import ManualClock
from lapse.errors import InvalidValue, Unsupported
from lapse.kv import Store
from tests.kv.conftest import START, Opener

HOUR = timedelta(hours=1)

BAD_TTLS: list[Any] = [
    "0 seconds",
    timedelta(0),
    timedelta(seconds=-1),
    "-5 minutes",
    "5",
    "soon",
    "",
    5,
    1.5,
    None,
    True,
    b"1 hour",
    "2000 years",
    timedelta.max,
    START,
    START - HOUR,
    datetime(2040, 1, 1),  # noqa: DTZ001 - naive on purpose
    datetime.min.replace(tzinfo=UTC),
]
BAD_KEYS: list[Any] = [b"", "text", None, 7, bytearray(b"k"), memoryview(b"k"), b"k" * 65_536]
BAD_VALUES: list[Any] = ["text", None, 7, bytearray(b"v")]


@pytest.mark.parametrize("ttl", BAD_TTLS, ids=repr)
def test_ttls_that_cannot_be(store: Store, ttl: Any) -> None:
    for write in (
        lambda: store.put(b"k", b"v", ttl=ttl),
        lambda: store.put_many([(b"k", b"v")], ttl=ttl),
        lambda: store.batch().put(b"k", b"v", ttl=ttl),
    ):
        with pytest.raises(InvalidValue):
            write()
    assert list(store.scan(include_expired=True)) == []


def test_a_bad_ttl_leaves_the_row_as_it_was(store: Store) -> None:
    store.put(b"k", b"v", ttl="1 hour")
    with pytest.raises(InvalidValue):
        store.touch(b"k", ttl="0 hours")
    meta = store.meta(b"k")
    assert meta is not None
    assert meta.remaining == HOUR


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: repr(key)[:12])
def test_keys_that_cannot_be(store: Store, key: Any) -> None:
    for call in (
        lambda: store.put(key, b"v"),
        lambda: store.put_many([(b"good", b"v"), (key, b"v")]),
        lambda: store.get(key),
        lambda: store.meta(key),
        lambda: store.delete(key),
        lambda: store.touch(key),
        lambda: store.batch().put(key, b"v"),
        lambda: store.batch().delete(key),
    ):
        with pytest.raises(InvalidValue, match="key"):
            call()
    assert list(store.scan(include_expired=True)) == []


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_values_that_cannot_be(store: Store, value: Any) -> None:
    for call in (
        lambda: store.put(b"k", value),
        lambda: store.put_many([(b"good", b"v"), (b"k", value)]),
        lambda: store.batch().put(b"k", value),
    ):
        with pytest.raises(InvalidValue, match="value"):
            call()
    assert list(store.scan(include_expired=True)) == []


def test_an_empty_value_is_a_value(store: Store) -> None:
    store.put(b"k", b"")
    assert store.get(b"k") == b""
    assert list(store.scan()) == [(b"k", b"")]


def test_a_key_lapse_keeps_for_itself(store: Store) -> None:
    """On one engine only it is needed; on all it is the same."""
    for write in (
        lambda: store.put(b"\x00lapse/format", b"v"),
        lambda: store.put_many([(b"\x00lapse/format", b"v")]),
        lambda: store.batch().put(b"\x00lapse/format", b"v"),
        lambda: store.delete(b"\x00lapse/format"),
        lambda: store.get(b"\x00lapse/format"),
    ):
        with pytest.raises(InvalidValue, match="keeps for itself"):
            write()
    store.put(b"\x00", b"v")
    store.put(b"\x00lapse0", b"v")
    assert store.get(b"\x00") == b"v"


class TestBatch:
    def test_all_or_nothing(self, store: Store) -> None:
        store.put(b"old", b"v")
        with store.batch() as batch:
            batch.put(b"a", b"1", ttl="1 hour")
            batch.put(b"b", b"2")
            batch.delete(b"old")
            assert len(batch) == 3
            assert store.get(b"a") is None
        assert list(store.scan()) == [(b"a", b"1"), (b"b", b"2")]
        with pytest.raises(ZeroDivisionError), store.batch() as batch:
            batch.put(b"c", b"3")
            raise ZeroDivisionError
        assert store.get(b"c") is None

    def test_the_last_write_of_a_key_wins(self, store: Store, clock: ManualClock) -> None:
        with store.batch() as batch:
            batch.put(b"k", b"1", ttl="9 hours")
            batch.put(b"k", b"2", ttl="1 hour")
            batch.put(b"gone", b"1")
            batch.delete(b"gone")
        assert list(store.scan()) == [(b"k", b"2")]
        clock.advance(HOUR)
        assert store.get(b"k") is None

    def test_a_ttl_counts_from_the_commit(self, store: Store, clock: ManualClock) -> None:
        batch = store.batch()
        batch.put(b"k", b"v", ttl="1 hour")
        clock.advance(2 * HOUR)
        batch.commit()
        assert store.get(b"k") == b"v"

    def test_an_instant_that_has_passed_by_the_commit_refuses_all_of_it(self, store: Store, clock: ManualClock) -> None:
        batch = store.batch()
        batch.put(b"a", b"v")
        batch.put(b"b", b"v", ttl=START + HOUR)
        clock.advance(2 * HOUR)
        with pytest.raises(InvalidValue, match="later than now"):
            batch.commit()
        assert list(store.scan()) == []

    def test_empty(self, store: Store) -> None:
        store.batch().commit()


class TestMerge:
    @pytest.fixture
    def counter(self, opener: Opener) -> Store:
        return opener(merge=lambda existing, operand: b"%d" % (int(existing or 0) + int(operand)))

    def test_it_combines_live_values_only(self, counter: Store, clock: ManualClock) -> None:
        assert counter.merge(b"n", b"5", ttl="1 hour") == b"5"
        assert counter.merge(b"n", b"2", ttl="2 hours") == b"7"
        clock.advance(HOUR)
        assert counter.get(b"n") == b"7"  # the latest write decides the TTL
        clock.advance(HOUR)
        assert counter.merge(b"n", b"1") == b"1"  # what has expired does not come back
        assert counter.get(b"n") == b"1"

    def test_without_a_function_it_is_refused(self, store: Store) -> None:
        with pytest.raises(Unsupported, match="merge"):
            store.merge(b"n", b"1")

    def test_a_function_that_fails_writes_nothing(self, counter: Store) -> None:
        counter.put(b"n", b"not a number")
        with pytest.raises(ValueError, match="invalid literal"):
            counter.merge(b"n", b"1")
        assert counter.get(b"n") == b"not a number"

    def test_a_function_that_returns_no_bytes_writes_nothing(self, opener: Opener) -> None:
        store = opener(merge=lambda existing, operand: 7)
        with pytest.raises(InvalidValue):
            store.merge(b"n", b"1")
        assert store.get(b"n") is None


def test_another_ttl_for_every_row(store: Store, clock: ManualClock) -> None:
    """Each is kept to the millisecond, by reads and by the purges that look for what has expired."""
    count = 1_500

    def put_each(rows: list[Any]) -> None:
        for row in rows:
            store.put(*row)

    writes: list[Callable[[list[Any]], object]] = [store.put_many, put_each]
    for write in writes:
        lives = [timedelta(milliseconds=i + 1) for i in range(count)]
        rows = [(b"k%04d" % i, b"v", life if i % 2 else clock.now() + life) for i, life in enumerate(lives)]
        write(rows)
        for passed in (count // 3, count // 3):
            clock.advance(timedelta(milliseconds=passed))
            expected = [key for key, _ in store.scan()]
            store.purge()
            assert [key for key, _ in store.scan(include_expired=True)] == expected
        assert expected == [b"k%04d" % i for i in range(count // 3 * 2, count)]


class TestPutMany:
    """Rows are written in the order of their keys; nothing of that shows."""

    def test_of_rows_with_one_key_the_last_wins(self, store: Store) -> None:
        store.put_many([(b"b", b"1"), (b"a", b"2"), (b"b", b"0"), (b"a", b"1")])
        assert list(store.scan()) == [(b"a", b"1"), (b"b", b"0")]
        store.put_many([(b"b", b"5", "1 hour"), (b"a", b"4", HOUR), (b"b", b"3", "2 hours")])
        assert list(store.scan()) == [(b"a", b"4"), (b"b", b"3")]
        meta = store.meta(b"b")
        assert meta is not None and meta.remaining == 2 * HOUR

    def test_rows_of_any_kind_and_length(self, store: Store, clock: ManualClock) -> None:
        rows: list[Any] = [(b"c", b"1"), [b"b", b"2", "1 hour"], iter((b"a", b"3")), (b"c", b"4", "1 hour")]
        assert store.put_many(rows, ttl="2 hours") == 4
        clock.advance(HOUR)
        assert list(store.scan()) == [(b"a", b"3")]

    def test_a_bad_row_anywhere_writes_none(self, store: Store) -> None:
        class Key(bytes):
            pass

        bad: list[Any] = [
            (b"", b"v"),
            (b"k",),
            (b"k", b"v", "1 hour", b""),
            ("k", b"v"),
            (Key(b"k"), b"v"),
            (b"k", "v"),
        ]
        bad += [(b"k", bytearray(b"v")), (b"k", b"v", -HOUR), (b"k", b"v", []), (b"x" * 65_536, b"v"), 7, (None, b"v")]
        for row in bad:
            for rows in ([row], [(b"z", b"v"), row], [row, (b"z", b"v", "1 hour")]):
                with pytest.raises((InvalidValue, TypeError)):
                    store.put_many(rows)
        assert list(store.scan()) == []
