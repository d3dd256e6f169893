"""Purging: idle stores, whole units, nothing that comes back, and bytes that are really gone."""

from __future__ import annotations

import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import lapse.kv
from lapse.clock import ManualClock
from lapse.errors import InvalidValue
from lapse.kv import Store, Ttl
from tests.kv.conftest import Kind, Opener, settle

HOUR = timedelta(hours=1)
SECRET = b"a secret that must not outlive its hour"


def occurrences(path: Path, needle: bytes) -> list[str]:
    return [str(file) for file in path.rglob("*") if file.is_file() and needle in file.read_bytes()]


def fill(store: Store, count: int, prefix: bytes, ttl: str) -> None:
    store.put_many([(prefix + b"%06d" % i, b"value-%06d" % i) for i in range(count)], ttl=ttl)


def test_an_idle_store_is_purged(opener: Opener, clock: ManualClock) -> None:
    store = opener()
    fill(store, 500, b"short", "1 hour")
    fill(store, 100, b"long", "10 hours")
    store.close()
    clock.advance(2 * HOUR)
    store = opener()  # nothing is written from here on
    result = store.purge()
    assert (result.purged, result.complete) == (500, True)
    assert len(list(store.scan(include_expired=True))) == 100
    assert opener.metric("lapse_kv_purged_rows_total") == 500
    assert opener.metric("lapse_kv_last_purge_timestamp_seconds") == clock.now().timestamp()


def test_a_purge_within_a_time_leaves_no_byte_behind(opener: Opener, clock: ManualClock) -> None:
    store = opener()
    for i in range(200):
        store.put(b"k%03d" % i, SECRET + os.urandom(16), ttl="1 hour")
    store.put(b"keep", b"another value, which stays", ttl="9 hours")
    store.close()
    store = opener()
    store.put(b"k000", SECRET + os.urandom(16), ttl="1 hour")
    store.flush()
    assert occurrences(opener.path, SECRET)
    clock.advance(HOUR)
    result = store.purge(within="20 seconds")
    assert (result.purged, result.complete, result.reasons) == (200, True, ())
    assert result.verification is not None
    assert result.verification.clean
    assert result.verification.payloads == 64
    assert result.verification.payloads_searchable > 0
    assert occurrences(opener.path, SECRET) == []
    assert store.get(b"keep") == b"another value, which stays"
    store.close()
    assert occurrences(opener.path, SECRET) == []
    assert opener().get(b"keep") == b"another value, which stays"


def test_live_rows_with_the_same_value_are_not_taken_for_purged_ones(opener: Opener, clock: ManualClock) -> None:
    store = opener()
    for i in range(50):
        store.put(b"k%d" % i, SECRET, ttl="1 hour" if i % 2 else "9 hours")
    clock.advance(2 * HOUR)
    result = store.purge(within="20 seconds")
    assert (result.purged, result.complete, result.reasons) == (25, True, ())
    assert result.verification is not None and result.verification.payloads_left == 0


def test_a_store_in_memory_is_not_called_searched(clock: ManualClock) -> None:
    with lapse.kv.open("slatedb:memory:", clock=clock, registry=CollectorRegistry()) as store:
        store.put(b"k", SECRET, ttl="1 hour")
        clock.advance(HOUR)
        result = store.purge(within="20 seconds")
    assert (result.purged, result.complete) == (1, True)
    assert result.verification is not None
    assert "a store in memory has no files" in str(result.verification.unchecked)


def test_older_versions_go_with_the_newest(opener: Opener, clock: ManualClock) -> None:
    store = opener()
    for hours in (30, 20, 1):
        store.put(b"k", SECRET + b"%d" % hours, ttl=f"{hours} hours")
        store.purge(within="10 seconds")  # each version ends up in a level of its own
        clock.advance(HOUR)
    assert store.get(b"k") is None
    store.purge()
    assert store.get(b"k") is None
    assert store.get(b"k", include_expired=True) is None
    clock.advance(40 * HOUR)
    store.purge(within="20 seconds")
    assert occurrences(opener.path, SECRET) == []


def test_nothing_comes_back_at_any_step(opener: Opener, clock: ManualClock) -> None:
    """Long-lived versions below, a short-lived one on top: the issue every drop-based purge has."""
    store = opener()
    keys = [b"k%02d" % i for i in range(20)]
    store.put_many([(key, b"old") for key in keys], ttl="100 hours")
    store.flush()
    clock.advance(3 * HOUR)
    store.put_many([(key, b"new") for key in keys], ttl="1 hour")
    clock.advance(HOUR)
    for step in range(6):
        assert [store.get(key) for key in keys] == [None] * 20
        assert list(store.scan()) == []
        if step % 2:
            store.close()
            store = opener()
        store.purge(within="10 seconds" if step > 2 else None)
        clock.advance(HOUR)


def test_a_row_renewed_during_a_purge_stays(store: Store, clock: ManualClock) -> None:
    store.put(b"z", b"stays", ttl="9 hours")
    fill(store, 3000, b"k", "1 hour")
    clock.advance(HOUR)
    renewed = [b"k%06d" % i for i in range(0, 3000, 100)]
    with ThreadPoolExecutor(max_workers=1) as pool:
        purge = pool.submit(store.purge, rows_per_second=5_000)
        for key in renewed:
            store.put(key, b"renewed", ttl="1 hour")
        assert purge.result().purged >= 3000 - len(renewed)
    assert [store.get(key) for key in renewed] == [b"renewed"] * len(renewed)


def test_a_purge_that_takes_its_time_stops_nobody(store: Store, clock: ManualClock) -> None:
    store.put(b"z", b"stays", ttl="9 hours")
    fill(store, 3000, b"k", "1 hour")
    clock.advance(HOUR)
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        purge = pool.submit(store.purge, rows_per_second=1, stop=stop)  # it rests for minutes after its first batch
        try:
            store.put(b"k000000", b"renewed", ttl="1 hour")
            store.put(b"k002999", b"renewed", ttl="1 hour")
            assert store.get(b"z") is not None
            assert not purge.done()
        finally:
            stop.set()
    assert not purge.result().complete
    store.purge()
    assert [key for key, _ in store.scan()] == [b"k000000", b"k002999", b"z"]


def test_nothing_expired_means_nothing_read(store: Store, clock: ManualClock, kind: Kind) -> None:
    fill(store, 100, b"k", "10 hours")
    store.purge()
    result = store.purge()
    assert (result.purged, result.units_skipped, result.complete) == (0, 1, True)


@pytest.mark.parametrize(
    "bad",
    [
        {"rows_per_second": 0},
        {"within": "0 seconds"},
        {"within": "5"},
    ],
    ids=str,
)
def test_bad_budgets_are_refused(store: Store, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        store.purge(**bad)  # type: ignore[arg-type]


def test_rows_per_second_is_kept(store: Store, clock: ManualClock) -> None:
    store.put(b"z", b"stays", ttl="9 hours")
    fill(store, 3000, b"k", "1 hour")
    clock.advance(HOUR)
    began = time.monotonic()
    store.purge(rows_per_second=20_000)
    assert time.monotonic() - began >= 0.1


def test_a_preview_counts_the_backlog(store: Store, clock: ManualClock, opener: Opener) -> None:
    fill(store, 30, b"a", "1 hour")
    fill(store, 20, b"b", "9 hours")
    clock.advance(2 * HOUR)
    preview = store.preview()
    assert (preview.rows, preview.expired, preview.last_purge) == (50, 30, None)
    assert preview.oldest_expired == clock.now() - HOUR
    assert opener.metric("lapse_kv_backlog_rows") == 30
    assert opener.metric("lapse_kv_oldest_expired_timestamp_seconds") == (clock.now() - HOUR).timestamp()
    store.purge()
    assert store.stats().last_purge == clock.now()
    assert opener.metric("lapse_kv_backlog_rows") == 0


def test_rows_that_a_snapshot_reads_are_the_backlog(opener: Opener, clock: ManualClock) -> None:
    store = opener()
    fill(store, 30, b"k", "1 hour")
    with store.snapshot():
        clock.advance(2 * HOUR)
        result = store.purge()
        assert (result.complete, result.held, result.left) == (False, 30, 30)
        assert result.oldest_left == clock.now() - HOUR
        assert opener.metric("lapse_kv_backlog_rows") == 30
        assert opener.metric("lapse_kv_oldest_expired_timestamp_seconds") == (clock.now() - HOUR).timestamp()
    assert store.purge().left == 0
    assert opener.metric("lapse_kv_backlog_rows") == 0


def test_the_backlog_of_a_stopped_purge_is_not_known(opener: Opener, clock: ManualClock) -> None:
    store, stop = opener(), threading.Event()
    fill(store, 30, b"k", "1 hour")
    store.put(b"keep", b"a value that stays", ttl="9 hours")
    clock.advance(2 * HOUR)
    stop.set()
    for within in (None, "1 minute"):
        result = store.purge(within=within, stop=stop)
        assert (result.purged, result.complete, result.left) == (0, False, None)
        assert "the purge was asked to stop" in result.reasons
    assert math.isnan(opener.metric("lapse_kv_backlog_rows"))
    assert math.isnan(opener.metric("lapse_kv_oldest_expired_timestamp_seconds"))
    assert store.purge().purged == 30
    assert opener.metric("lapse_kv_backlog_rows") == 0


def test_a_row_that_was_deleted_before_it_expired(opener: Opener, clock: ManualClock) -> None:
    """Its table holds nothing of it, only keys on both sides, and need not be replaced by another one."""
    store = opener()
    store.put_many([(b"a", b"v"), (b"c", b"v")], ttl=Ttl.NO_EXPIRY)
    settle(store)
    store.put(b"b", b"v", ttl="1 minute")
    store.delete(b"b")
    clock.advance(HOUR)
    store.put(b"a", b"v", ttl=Ttl.NO_EXPIRY)
    store.close()
    store = opener()
    result = store.purge(within="5 seconds")
    assert result.complete, result
    assert [key for key, _ in store.scan(include_expired=True)] == [b"a", b"c"]
