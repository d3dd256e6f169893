"""Stores that the first version wrote, saved in `saved/`: they open, have the rows they had, and are purged as
before."""

from __future__ import annotations

import tarfile
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import lapse.kv
from lapse.clock import Clock, ManualClock, SystemClock
from lapse.errors import ClockAhead, Refused
from tests.kv.conftest import START

SAVED = Path(__file__).with_name("saved")
LATER = START + timedelta(minutes=90)
"""When they were closed."""
LONG = [b"long%04d" % number for number in range(200)]


def unpack(name: str, folder: Path) -> str:
    with tarfile.open(SAVED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return f"{name.partition('-')[0]}:{folder / 'store'}"


def open_saved(url: str, clock: Clock, **options: object) -> lapse.kv.Store:
    return lapse.kv.open(url, clock=clock, registry=CollectorRegistry(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rocksdb", "slatedb", "rocksdb-buckets", "slatedb-buckets"])
def test_a_store_of_the_first_version(name: str, tmp_path: Path) -> None:
    url, clock = unpack(name, tmp_path), ManualClock(LATER)
    wanted = {*LONG, b"twice", b"last"} | (set() if "buckets" in name else {b"stays"})
    for _ in range(2):  # the second time it is a store of this version
        with open_saved(url, clock) as store:
            assert {key for key, _ in store.scan()} == wanted
            assert store.default_ttl == timedelta(days=1)
            assert (store.get(b"twice"), store.get(b"gone"), store.get(b"short0007")) == (b"second", None, None)
            assert store.get(b"gone", include_expired=True) is None
            meta = store.meta(b"long0007")
            assert meta is not None and meta.created == START
            assert (store.history(), store.stats().paused) == ([], None)
    with open_saved(url, clock, read_only=True) as store:
        assert {key for key, _ in store.scan()} == wanted
    clock.advance(timedelta(hours=2))
    with open_saved(url, clock) as store:
        assert store.purge().complete
        assert {key for key, _ in store.scan(include_expired=True)} == wanted - {b"last"}
        result = store.purge(within="30 seconds")
        assert result.complete, result
    folder = tmp_path / "store"
    assert not [
        file for file in folder.rglob("*") if file.is_file() and b"written after the purge" in file.read_bytes()
    ]
    clock.advance(timedelta(days=39))
    with open_saved(url, clock) as store:
        assert store.get(b"twice") == b"second"
        clock.advance(timedelta(days=1))
        assert (store.get(b"twice"), store.purge().purged) == (None, 1)
        assert store.get(b"twice", include_expired=True) is None, "its older version has not come back"


@pytest.mark.parametrize("name", ["rocksdb-buckets", "slatedb-buckets"])
def test_buckets_are_converted_only_for_writing(name: str, tmp_path: Path) -> None:
    url = unpack(name, tmp_path)
    with pytest.raises(Refused, match="time buckets"):
        open_saved(url, ManualClock(LATER), read_only=True)


def test_a_store_on_the_system_clock(tmp_path: Path) -> None:
    """Written in January 2024, and not touched since."""
    url = unpack("slatedb-system", tmp_path)
    with pytest.raises(ClockAhead, match="2024-01-01"):
        open_saved(url, SystemClock())
    with open_saved(url, SystemClock(), trust_clock=True) as store:
        assert {key for key, _ in store.scan()} == {*LONG, b"stays"}
        assert store.purge(within="30 seconds").complete
        assert {key for key, _ in store.scan(include_expired=True)} == {*LONG, b"stays"}
    with open_saved(url, SystemClock()) as store:
        assert store.get(b"long0007") == b"value 7"
