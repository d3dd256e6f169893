"""SlateDB on the system's clock, which libfaketime moves: what cannot be tested with a manual clock.

FAKETIME_TIMESTAMP_FILE=F LD_PRELOAD=libfaketimeMT.so.1 python native_process.py SCENARIO PATH
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import lapse.kv
from lapse.errors import ClockBehind, SnapshotTooOld
from lapse.kv.slatedb.engine import meta_key
from lapse.kv.slatedb.purge import compact, tick

TIME_FILE = Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
ROWS = [(b"k%04d" % i, b"value-%04d-" % i + b"x" * 40) for i in range(1000)]


def move_to(offset: str) -> None:
    """libfaketime reads the file at every call; replaced, never half written."""
    draft = TIME_FILE.with_suffix(".new")
    draft.write_text(offset)
    draft.replace(TIME_FILE)


def open_store(path: str) -> lapse.kv.Store:
    return lapse.kv.open(f"slatedb:{path}", default_ttl="1 hour", snapshot_lifetime="30 minutes")


def idle_purge(path: str) -> None:
    with open_store(path) as store:
        store.put_many(ROWS)
        store.put(b"stays", b"v", ttl="9 days")
        store.flush()
        assert store.purge().units_skipped == 1
        move_to("+65m")
        assert list(store.scan()) == [(b"stays", b"v")]
        result = store.purge()
        assert (result.purged, result.complete, result.bytes_compacted) == (1000, True, 0), result
        assert list(store.scan(include_expired=True)) == [(b"stays", b"v")]
    move_to("+3h")
    with open_store(path) as store:
        store.put_many(ROWS, ttl="2 hours")
        store.flush()
    move_to("+6h")
    with open_store(path) as store:
        result = store.purge(within="20 seconds")
        assert (result.purged, result.complete) == (1000, True), result
        assert result.verification is not None and result.verification.clean
        assert list(store.scan(include_expired=True)) == [(b"stays", b"v")]


def engine_drops(path: str) -> None:
    """What the engine drops by itself, once no snapshot can read it any more, a purge does not count."""
    with open_store(path) as store:
        store.put_many(ROWS)
        store.flush()
    move_to("+3h")
    with open_store(path) as store:
        adapted: Any = store
        inner, run = adapted._inner, adapted._runner.run
        run(tick(inner.handle, 0, key=meta_key(b"heartbeat")))
        assert run(compact(inner.admin, b"", is_over=lambda: False))
        run(
            tick(inner.handle, 0, key=meta_key(b"heartbeat"))
        )  # until its next flush the writer reads the tables of before
        result = store.purge()
        assert (result.purged, result.left, result.complete) == (0, 0, True), result
        assert list(store.scan(include_expired=True)) == []


def frozen(path: str) -> None:
    with open_store(path) as store:
        store.put_many(ROWS)
        move_to("+50m")
        snapshot, transaction = store.snapshot(), store.transaction()
        move_to("+75m")
        assert store.get(b"k0001") is None
        store.purge()
        store.purge(within="3 seconds")
        assert list(snapshot.scan()) == ROWS
        assert list(transaction.scan()) == ROWS
        assert snapshot.get(b"k0007") == transaction.get(b"k0007") == ROWS[7][1]
        scan = snapshot.scan()
        next(scan)
        move_to("+85m")
        for read in (
            lambda: snapshot.get(b"k0001"),
            lambda: list(scan),
            lambda: transaction.get(b"k0001"),
            lambda: transaction.put(b"k", b"v"),
            lambda: snapshot.scan(),
        ):
            try:
                read()
            except SnapshotTooOld:
                continue
            raise AssertionError("read a snapshot that is too old")


def into_the_past(path: str) -> None:
    with open_store(path) as store:
        move_to("+2d")
        store.put(b"k", b"v")
    move_to("+1d")
    began = time.perf_counter()
    try:
        open_store(path)
    except ClockBehind as error:
        assert "already seen" in str(error)
    else:
        raise AssertionError("opened in the past")
    assert time.perf_counter() - began < 5, "that was not a short wait"
    with lapse.kv.open(f"slatedb:{path}", read_only=True) as store:
        assert store.get(b"k") == b"v"
    move_to("+2d")
    with open_store(path) as store:
        assert store.get(b"k") == b"v"


if __name__ == "__main__":
    {f.__name__: f for f in (idle_purge, engine_drops, frozen, into_the_past)}[sys.argv[1]](sys.argv[2])
