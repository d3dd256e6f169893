"""SlateDB in an object store, through its own S3 client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import lapse.kv
from lapse.clock import ManualClock
from lapse.errors import Fenced, InvalidValue, LapseError, NotFound
from lapse.kv import Store
from tests.kv import s3_server
from tests.kv.conftest import START
from tests.kv.s3_server import BUCKET, KEY_ID, SECRET, Bucket

URL = f"slatedb:s3://{BUCKET}/some/prefix"
ROWS = [(b"k%03d" % i, b"payload-%03d" % i) for i in range(100)]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with s3_server.serving() as bucket:
        for name, value in {
            "AWS_ENDPOINT": bucket.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield bucket


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
    assert found is not None and found.clean and found.unchecked is None
    assert (found.payloads, found.payloads_searchable) == (64, 64)
    assert bucket.forgeries == 0
    assert bucket.contains(b"a value that stays")
    assert not any(bucket.contains(value) for _, value in ROWS)
    with lapse.kv.open(URL, read_only=True) as store:
        assert list(store.scan(include_expired=True)) == [(b"stays", b"a value that stays")]


def expired_rows(clock: ManualClock) -> Store:
    """A store in the bucket, all of whose rows but one are expired."""
    store = lapse.kv.open(URL, clock=clock)
    store.put_many(ROWS, ttl="1 hour")
    store.put(b"stays", b"payload-001", ttl="1 day")
    store.flush()
    clock.advance(timedelta(hours=1))
    return store


def test_bytes_that_stay_in_an_object_are_found(bucket: Bucket) -> None:
    with expired_rows(ManualClock(START)) as store:
        kept = {key for key, body in bucket.objects.items() if b"payload-099" in body}
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


def test_a_copy_of_purged_rows_is_found(bucket: Bucket) -> None:
    """Under a name that the store did not have before: only its bytes tell."""
    with expired_rows(ManualClock(START)) as store:
        key, body = next((key, body) for key, body in bucket.objects.items() if b"payload-001" in body)
        copy = key.replace("/wal/", "/compacted/") + ".copy"

        def put_copy() -> None:
            while key in bucket.objects:
                time.sleep(0.01)
            with bucket.lock:
                bucket.objects[copy], bucket.modified[copy] = body, bucket.modified[key]

        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(put_copy)
            result = store.purge(within="8 seconds")
        assert result.verification is not None
        assert (result.complete, result.verification.files_left) == (False, ())
        assert result.verification.payloads_left == len(ROWS[:64])


def test_objects_that_may_not_be_read_are_not_called_searched(bucket: Bucket) -> None:
    bucket.read_error = 403
    with expired_rows(ManualClock(START)) as store:
        result = store.purge(within="60 seconds")
    assert result.complete, result.reasons
    assert result.verification is not None
    assert result.verification.payloads == 0
    assert "they could not be read (HTTP Error 403" in str(result.verification.unchecked)
    assert not bucket.contains(b"payload-099")


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


def test_a_store_that_is_not_in_the_bucket(bucket: Bucket) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFound):
            lapse.kv.open(URL, **options)  # type: ignore[arg-type]
    assert bucket.objects == {}
