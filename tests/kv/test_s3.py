"""SlateDB in an object store, through its own S3 client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

import lapse.kv
from lapse.errors import Fenced, InvalidValue, LapseError, NotFound
from tests.kv import s3_server
from tests.kv.s3_server import BUCKET, Bucket

URL = f"slatedb:s3://{BUCKET}/some/prefix"
ROWS = [(b"k%03d" % i, b"payload-%03d" % i) for i in range(100)]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with s3_server.serving() as bucket:
        for name, value in {
            "AWS_ENDPOINT": bucket.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
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
        assert store.purge(within="60 seconds").complete
    assert bucket.contains(b"a value that stays")
    assert not any(bucket.contains(value) for _, value in ROWS)
    with lapse.kv.open(URL, read_only=True) as store:
        assert list(store.scan(include_expired=True)) == [(b"stays", b"a value that stays")]


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
