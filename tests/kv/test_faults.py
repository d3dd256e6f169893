"""Disks that fail: what is read is whole or an error, and a purge removes nothing that it has not read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from lapse.clock import ManualClock
from lapse.errors import LapseError
from lapse.kv import Store, Ttl
from tests.kv.conftest import Opener, settle
from tests.kv.faults import CallCount, bad_block, failing_calls, full, lost_file, small_disk

HOUR = timedelta(hours=1)
ROWS = 50_000
KNOWN, SWEPT = 500, 2_000
"""So many of them, spread over all keys, expire after an hour: few enough to be looked up by key, or to be read."""


Fill = Callable[..., set[bytes]]


def key(number: int) -> bytes:
    return b"row-%08d" % number


@pytest.fixture
def fill(opener: Opener, tmp_path_factory: pytest.TempPathFactory) -> Fill:
    """Writes the rows, to table files, and returns the keys of those that stay. The second time it copies the files."""

    def filled(expiring: int = KNOWN) -> set[bytes]:
        short = set(range(0, ROWS, ROWS // expiring))
        made = tmp_path_factory.getbasetemp() / f"filled-{opener.kind.engine}-{expiring}"
        if not made.exists():
            store = opener()
            store.put_many([(key(i), b"value %08d " % i * 3) for i in range(ROWS) if i not in short], ttl=Ttl.NO_EXPIRY)
            store.put_many([(key(i), b"value %08d " % i * 3) for i in short], ttl="1 hour")
            settle(store)
            store.close()
            shutil.copytree(opener.path, made)
        else:
            shutil.copytree(made, opener.path)
        return {key(i) for i in range(ROWS) if i not in short}

    return filled


def keys_of(store: Store) -> set[bytes]:
    return {found for found, _ in store.scan()}


READS: list[Callable[[Store], object]] = [
    lambda store: list(store.scan()),
    lambda store: list(store.scan(prefix=b"row-")),
    lambda store: list(store.scan(key(10), key(ROWS - 10))),
    lambda store: list(store.snapshot().scan()),
    lambda store: store.preview(),
]


@pytest.mark.parametrize("read", READS, ids=["scan", "prefix", "range", "snapshot", "count"])
def test_a_read_over_a_bad_block_is_an_error_and_not_a_short_answer(
    opener: Opener, fill: Fill, read: Callable[[Store], object]
) -> None:
    fill()
    with bad_block(opener.path):
        store = opener()
        with pytest.raises(LapseError):
            read(store)
        store.close()


@pytest.mark.parametrize("within", [None, "20 seconds"])
@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("expiring", [KNOWN, SWEPT])
def test_a_purge_over_a_bad_block_removes_no_live_row(
    opener: Opener, fill: Fill, clock: ManualClock, within: str | None, at: float, expiring: int
) -> None:
    staying = fill(expiring)
    clock.advance(2 * HOUR)
    with bad_block(opener.path, at=at):
        store = opener()
        try:
            result = store.purge(within=within)
        except LapseError:
            pass
        else:
            # Rows that are looked up by their keys may lie beside it.
            assert result.purged == expiring == KNOWN if result.complete else result.reasons
        with suppress(LapseError):  # the engine may refuse to write once it has seen the block
            store.close()
    store = opener()
    assert keys_of(store) == staying
    for wait in (HOUR, 24 * HOUR):  # what the failed purge has noted must not lead a later one astray
        clock.advance(wait)
        store.purge()
        assert keys_of(store) == staying
    assert store.purge(within="20 seconds").complete
    assert len(list(store.scan(include_expired=True))) == len(staying)


@pytest.mark.parametrize("within", [None, "20 seconds"])
@pytest.mark.parametrize("expiring", [KNOWN, SWEPT])
def test_a_purge_without_one_of_its_files_removes_no_live_row(
    opener: Opener, fill: Fill, clock: ManualClock, within: str | None, expiring: int
) -> None:
    staying = fill(expiring)
    clock.advance(2 * HOUR)
    with lost_file(opener.path), pytest.raises(LapseError), opener() as store:
        store.purge(within=within)
    store = opener()
    assert keys_of(store) == staying
    clock.advance(24 * HOUR)
    assert store.purge().purged == expiring
    assert keys_of(store) == staying


@pytest.mark.parametrize("expiring", [KNOWN, SWEPT])
def test_an_ordinary_purge_on_a_full_disk_says_what_it_did(
    opener: Opener, fill: Fill, tmp_path: Path, clock: ManualClock, expiring: int
) -> None:
    with small_disk(tmp_path / "disk", megabytes=64) as disk:
        opener.path = disk / "store"
        staying = fill(expiring)
        clock.advance(2 * HOUR)
        store, purged = opener(timeout="2 seconds"), 0
        with full(disk):
            try:
                result = store.purge()
            except LapseError:
                pass
            else:
                purged = result.purged
                assert purged == expiring if result.complete else result.reasons
            with suppress(LapseError):
                store.close()
        store = opener()
        assert keys_of(store) == staying
        left = len(list(store.scan(include_expired=True))) - len(staying)
        assert left <= expiring - purged
        assert store.purge().purged == left
        assert keys_of(store) == staying
        store.close()


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("within", [None, "20 seconds"])
def test_a_purge_may_fail_at_any_call_into_the_engine(
    opener: Opener, clock: ManualClock, within: str | None, before: bool
) -> None:
    """At each in turn. No live row goes, nothing that was removed is said to be there, and the next purge takes the
    rest: rows that are known by their keys, and rows that must be looked for."""
    store = opener()
    staying = {b"stays%04d" % number for number in range(1500)}
    store.put_many([(found, b"v" * 20) for found in staying], ttl=Ttl.NO_EXPIRY)
    step = 1 if opener.kind.engine == "rocksdb" else 7 if within else 3  # SlateDB is asked again and again
    for fails in range(1, 1000, step):
        store.put_many([(b"soon%04d" % number, b"w" * 20) for number in range(1200)], ttl="1 hour")
        store.put(b"stays0007x", b"w", ttl="10 minutes")
        clock.advance(HOUR)
        calls = CallCount(fails, before=before)
        purged = 0
        with failing_calls(store, calls), suppress(LapseError):
            purged = store.purge(within=within).purged
        assert keys_of(store) == staying, calls.made
        left = len(list(store.scan(include_expired=True))) - len(staying)
        assert left <= 1201 - purged, calls.made
        result = store.purge()
        assert (result.purged, result.complete, result.left) == (left, True, 0), calls.made
        assert {found for found, _ in store.scan(include_expired=True)} == staying
        if not calls.has_failed:
            break
    assert len(calls.made) < fails
    assert fails > 10
    assert store.purge(within="30 seconds").complete
