"""SlateDB in an object store, through its own S3 client."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

import lapse.kv
from lapse.clock import ManualClock
from lapse.errors import DatabaseUnavailable, Fenced, InvalidValue, LapseError, NotFound, StoreLocked
from lapse.kv import Purger, PurgerConfig
from tests.kv.conftest import START, settle
from tests.kv.s3_server import BUCKET, Bucket

URL = f"slatedb:s3://{BUCKET}/some/prefix"
ROWS = [(b"k%03d" % i, b"payload-%03d" % i) for i in range(100)]


def test_rows_live_and_die_in_a_bucket(bucket: Bucket) -> None:
    with lapse.kv.open(URL, default_ttl="1 hour", snapshot_lifetime="1 ms") as store:
        store.put_many(ROWS, ttl="2 seconds")
        store.put(b"stays", b"a value that stays")
        store.flush()
        assert store.get(b"k001") == b"payload-001"
        assert [key for key, _ in store.scan(prefix=b"k00", limit=2)] == [b"k000", b"k001"]
        with pytest.raises(InvalidValue):
            store.put(b"stays", b"nothing is written", ttl="0 s")
    assert bucket.objects and all(key.startswith("some/prefix/") for key in bucket.objects)
    assert bucket.contains(b"payload-001")
    time.sleep(2)  # the engine's compaction knows no clock but the system's
    with lapse.kv.open(URL, create=False) as store:
        assert store.default_ttl == timedelta(hours=1)
        assert list(store.scan()) == [(b"stays", b"a value that stays")]
        result = store.purge(within="60 seconds")
    assert result.complete
    found = result.verification
    assert found is not None and found.clean and "Lapse does not read objects" in str(found.unchecked)
    assert bucket.forgeries == 0
    assert bucket.contains(b"a value that stays")
    assert not any(bucket.contains(value) for _, value in ROWS)
    with lapse.kv.open(URL, read_only=True) as store:
        assert list(store.scan(include_expired=True)) == [(b"stays", b"a value that stays")]


def test_tables_that_stay_are_found(bucket: Bucket) -> None:
    clock = ManualClock(START)
    with lapse.kv.open(URL, clock=clock) as store:
        store.put_many(ROWS, ttl="1 hour")
        store.put(b"stays", b"payload-001", ttl="1 day")
        store.purge(within="60 seconds")  # into a table
        clock.advance(timedelta(hours=1))
        kept = {key for key, body in bucket.objects.items() if b"payload-099" in body and "/compacted/" in key}
        assert kept
        bucket.undeletable |= kept
        result = store.purge(within="6 seconds")
        assert not result.complete
        assert result.reasons == ("purged bytes are still in the store's files: the time was up",)
        assert result.verification is not None
        assert set(result.verification.files_left) == kept
        bucket.undeletable.clear()
        assert store.purge(within="60 seconds").complete
        assert not bucket.contains(b"payload-099")


def test_a_guest_does_not_cut_off_the_owner(bucket: Bucket) -> None:
    """A worker, or a command, that comes to a store which an application writes."""
    with lapse.kv.open(URL) as owner:
        owner.put(b"k", b"first")
        with pytest.raises(StoreLocked, match=r"already open for writing \(process"):
            lapse.kv.open(URL, take_over=False)
        run = Purger(PurgerConfig(stores=(URL,))).run_once()
        assert isinstance(run.failed[URL], StoreLocked)
        owner.put(b"k", b"second")
        owner.flush()
        assert owner.get(b"k") == b"second"
    assert Purger(PurgerConfig(stores=(URL,))).run_once().purged[URL].complete
    with lapse.kv.open(URL, take_over=False) as store:
        assert store.get(b"k") == b"second"


def test_the_newer_writer_cuts_off_the_older(bucket: Bucket) -> None:
    with lapse.kv.open(URL) as newer_first:
        newer_first.put(b"k", b"first")
        newer_first.flush()
    older = lapse.kv.open(URL)
    try:
        with lapse.kv.open(URL) as newer:
            newer.put(b"k", b"second")
            newer.flush()
            with pytest.raises(Fenced):
                older.put(b"k", b"lost")
                older.flush()
            assert newer.get(b"k") == b"second"
    finally:
        with pytest.raises(LapseError):
            older.close()


def test_a_get_is_not_waited_for_for_ever(bucket: Bucket) -> None:
    with lapse.kv.open(URL) as store:
        store.put_many([(b"k%d" % i, b"v" * 10_000) for i in range(100)])  # more than the block that opening reads
        settle(store)
    with lapse.kv.open(URL, read_only=True, timeout="1 second") as store:
        bucket.answers.clear()
        began_s = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="no answer for 1 s"):
            store.get(b"k99")
        assert time.monotonic() - began_s < 5
        bucket.answers.set()
        assert store.get(b"k99") == b"v" * 10_000


def test_a_store_that_is_not_in_the_bucket(bucket: Bucket) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFound):
            lapse.kv.open(URL, **options)  # type: ignore[arg-type]
    assert bucket.objects == {}
