"""Disks that do not answer: a call into the engine is not waited for for ever, and nothing is lost by that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import lapse.kv
from lapse.clock import ManualClock
from lapse.errors import DatabaseUnavailable, LapseError
from lapse.kv import Store
from tests.kv.conftest import START, settle

LIMIT_S = 0.3
COMING_FILES = 50
HOUR = timedelta(hours=1)


@contextmanager
def stalled(path: Path) -> Iterator[None]:
    """The next tables cannot be written while inside: pipes that are read by no process have their names, and opening
    one waits. Afterwards they can be opened, and end in an error."""
    newest = max(int(file.stem) for file in path.iterdir() if file.stem.isdecimal())
    pipes = [path / f"{number:06}.sst" for number in range(newest + 1, newest + 1 + COMING_FILES)]
    for pipe in pipes:
        os.mkfifo(pipe)
    try:
        yield
    finally:
        readers = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes if pipe.exists()]
        time.sleep(0.2)
        for reader in readers:
            os.close(reader)
        for pipe in pipes:
            if pipe.is_fifo():
                pipe.unlink()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def open_store(path: Path, clock: ManualClock, timeout: str = "20 seconds") -> Store:
    return lapse.kv.open(f"rocksdb:{path}", clock=clock, timeout=timeout, registry=CollectorRegistry())


def shorten_limit(store: Store) -> Any:
    """Only once it is open, so that a busy machine is not taken for a disk that does not answer."""
    inner: Any = store._inner
    inner.calls._limit_s = LIMIT_S
    return inner


def took_s(began_s: float) -> float:
    return time.monotonic() - began_s


def test_a_flush_without_an_answer_is_an_error_for_all_who_write(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "store"
    store = open_store(path, clock)
    store.put(b"k", b"v")
    shorten_limit(store)
    with stalled(path):
        began_s = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match=r"no answer for 0\.3 s"):
            settle(store)
        assert took_s(began_s) < 5
        clock.advance(HOUR)  # a put of the same millisecond may still be taken
        for use in (lambda: store.put(b"x", b"v"), store.flush, lambda: store.put_many([(b"x", b"v")]), store.purge):
            with pytest.raises(DatabaseUnavailable, match="still has no answer"):
                use()
        with pytest.raises(DatabaseUnavailable):
            store.close()
    _wait_until_free(path, clock)
    with open_store(path, clock) as store:
        assert (store.get(b"k"), store.get(b"x")) == (b"v", None)


def test_a_store_is_used_again_once_the_disk_answers(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "store"
    store = open_store(path, clock)
    release = threading.Event()
    inner = shorten_limit(store)
    with pytest.raises(DatabaseUnavailable):
        inner.calls.wait_for(release.wait)
    inner.calls._limit_s = 20
    clock.advance(HOUR)
    with pytest.raises(DatabaseUnavailable):
        store.put(b"k", b"v")
    release.set()
    until_s = time.monotonic() + 5
    while inner.state.overdue and time.monotonic() < until_s:
        time.sleep(0.01)
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"
    store.close()


@pytest.mark.parametrize("is_stopped", [False, True], ids=["time", "stop"])
def test_a_purge_does_not_wait_for_a_compaction_longer_than_it_may(
    tmp_path: Path, clock: ManualClock, is_stopped: bool
) -> None:
    path = tmp_path / "store"
    store = open_store(path, clock)
    store.put_many([(b"stays%04d" % i, b"v") for i in range(1000)])
    store.put_many([(b"gone%04d" % i, b"secret payload %d" % i) for i in range(1000)], ttl="1 hour")
    settle(store)
    clock.advance(HOUR)
    stop = threading.Event()
    compacting = StallingCompactions(store)
    if is_stopped:
        threading.Timer(0.5, stop.set).start()
    began_s = time.monotonic()
    result = store.purge(within="60 seconds" if is_stopped else "500 milliseconds", stop=stop)
    assert took_s(began_s) < 8
    assert (result.purged, result.complete) == (1000, False)
    store.put(b"x", b"v")  # the store can be used: a compaction may be slow
    compacting.end.set()
    store.close()
    with open_store(path, clock) as store:
        assert len(list(store.scan(include_expired=True))) == 1001
        assert store.purge(within="30 seconds").complete


class StallingCompactions:
    """The engine of a store, whose compactions wait for a disk until `end` is set."""

    def __init__(self, store: Store) -> None:
        handle = store._inner.handle
        self.end = threading.Event()
        self._inner = handle.raw
        handle.raw = self

    def compact_range(self, *args: object, **options: object) -> None:
        self.end.wait(20)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_opening_does_not_wait_for_ever(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "store"
    open_store(path, clock).close()
    current = path / "CURRENT"
    content = current.read_bytes()
    current.unlink()
    os.mkfifo(current)
    began_s = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="no answer"):
        open_store(path, clock, f"{LIMIT_S} seconds")
    assert took_s(began_s) < 5
    with current.open("wb", buffering=0) as stream:  # lets the reader go
        stream.write(content)
    current.unlink()
    current.write_bytes(content)
    open_store(path, clock).close()


def _wait_until_free(path: Path, clock: ManualClock) -> None:
    until_s = time.monotonic() + 10
    while True:
        try:
            open_store(path, clock).close()
            return
        except LapseError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def test_a_process_that_gave_up_a_call_ends_as_it_says(tmp_path: Path) -> None:
    """The binding aborts a process in which a call comes back while the interpreter goes down."""
    program = (
        "import lapse.kv, threading, time\n"
        f"store = lapse.kv.open('rocksdb:{tmp_path / 'store'}', timeout='50 ms')\n"
        "store._inner.calls.wait_for(lambda: time.sleep(0.5) or store._inner.handle.raw.flush())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, "no answer for 0.05 s" in ended.stderr) == (1, True)


def test_where_no_thread_can_be_made_a_store_can_still_be_closed(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    store = open_store(tmp_path / "store", clock)
    store.put(b"k", b"v")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        store.flush()
        store.close()
    with open_store(tmp_path / "store", clock) as store:
        assert store.get(b"k") == b"v"
