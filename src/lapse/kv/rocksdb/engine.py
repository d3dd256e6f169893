"""Reaching RocksDB: the boundary of every call into it, with Lapse's errors and a limit of time, and its iterators."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from lapse.errors import DatabaseError, DatabaseUnavailable, LapseError, MissingExtra, StoreClosed
from lapse.kv.keys import KeyRange
from lapse.kv.reads import RawRow
from lapse.kv.url import StoreUrl, lock_owner, store_locked
from lapse.kv.verify import IsOver

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

CHUNK_ROWS = 256
_PURGE_READAHEAD_BYTES = 1024 * 1024
_LOOK_S = 0.1
_EXIT_S = 10.0
_LIMITED = ("flush", "flush_wal")


def load() -> Any:
    """rocksdict has no types worth the name, so what comes from it is Any, here and only here."""
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtra("RocksDB (rocksdict)", "kv") from error
    return rocksdict


def translate(url: StoreUrl, error: Exception) -> Exception:
    text = str(error)
    if type(error).__name__ == "DbClosedError":
        return StoreClosed(f"{url} is closed")
    if "LOCK" in text and ("lock hold" in text or "While lock file" in text):
        return store_locked(url, lock_owner(url.path / "LOCK") if url.path is not None else "")
    if type(error) is Exception:  # what rocksdict raises for every status RocksDB returns
        return DatabaseError(f"{url}: {text}")
    return error


@contextmanager
def lapse_errors(url: StoreUrl) -> Iterator[None]:
    try:
        yield
    except LapseError:
        raise
    except Exception as error:
        raise translate(url, error) from error


class Calls:
    """Calls of the engine, each in a thread of its own, for which the caller waits only so long.

    That is possible where the binding lets other threads of Python run: flushes, compaction, lookups of many keys,
    closing. In all other calls (opening, a get, a put, a batch, a step of an iterator) it does not: while one of them
    waits for the disk, no code of this process runs that could notice it. They are kept away from a disk that is known
    not to answer: opening and purging begin with something that has a limit.
    """

    def __init__(self, url: StoreUrl, limit_s: float) -> None:
        self._url = url
        self._limit_s = limit_s
        self.under_way: set[Future[Any]] = set()
        self.overdue: set[Future[Any]] = set()
        """Those that were given up and have not ended yet. The store is not used until they have."""
        _ALL_CALLS.add(self)

    def wait_for(self, call: Callable[[], Any], *, is_over: IsOver | None = None) -> Any:
        """With `is_over` the call has until then, and None is the answer of one that goes on longer."""
        answer = Future[Any]()
        self.under_way.add(answer)
        try:
            threading.Thread(target=self._run, args=(call, answer), daemon=True).start()
        except RuntimeError:  # no thread can be made any more, as while the interpreter goes down: without a limit then
            self._run(call, answer)
        if is_over is not None:
            while not answer.done() and not is_over():
                wait([answer], _LOOK_S)
            return answer.result() if answer.done() else None
        wait([answer], self._limit_s)
        if not answer.done():
            self.overdue.add(answer)
            if answer in self.under_way:  # else it has just ended
                raise DatabaseUnavailable(
                    f"{self._url}: the engine gave no answer for {self._limit_s:g} s; what it was doing may or may not "
                    "be done",
                    hint="does the disk answer? the store can be used once it does; open(..., timeout=) sets the limit",
                )
            self.overdue.discard(answer)
        return answer.result()

    def _run(self, call: Callable[[], Any], answer: Future[Any]) -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:
            failure = error.with_traceback(None)
        self.under_way.discard(answer)
        self.overdue.discard(answer)
        answer.set_exception(failure) if failure is not None else answer.set_result(result)

    def close(self, database: list[Any]) -> None:
        """After the calls under way, during which it cannot be closed; if need be later. The thread that closes takes
        it out of the list and is the last to refer to it: one that could not be closed is closed when nothing does, not
        even a traceback. Where its last reference goes the engine waits for the disk, and the binding stops all other
        threads."""
        under_way = list(self.under_way)

        def close() -> None:
            wait(under_way)
            database.pop().close()

        self.wait_for(close)


_ALL_CALLS: WeakSet[Calls] = WeakSet()


@atexit.register
def _wait_for_all() -> None:
    """A call that came back while the interpreter goes down would abort the process."""
    for calls in list(_ALL_CALLS):
        wait(list(calls.under_way), _EXIT_S)


class Handle:
    """A database or a column family of the engine, whose calls raise Lapse's errors. `raw` is it itself, for calls that
    must be as quick as they can; None once it is closed."""

    def __init__(self, raw: Any, url: StoreUrl, calls: Calls) -> None:
        self.raw = raw
        self._url = url
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if self.raw is None:
            raise StoreClosed(f"{self._url} is closed")
        method = getattr(self.raw, name)

        def call(*args: Any, **options: Any) -> Any:
            with lapse_errors(self._url):
                if name in _LIMITED:
                    return self._calls.wait_for(partial(method, *args, **options))
                return method(*args, **options)

        return call

    def close(self) -> None:
        """The binding's `close` may fail and leave the database open: it is closed when nothing refers to it."""
        database, self.raw = [self.raw], None
        if database[0] is not None:
            self._calls.close(database)


# Iterators


def check_status(iterator: Any) -> None:
    """An iterator that is at no row is at its end only if the engine has no error to report."""
    try:
        iterator.status()
    except Exception as error:
        raise DatabaseError(f"reading failed, and what was read so far is not used: {error}") from error


class RangeCursor:
    """One pass over a range of a store, as the rows are when it is made.

    The binding's quick iterator ends at a read error as it does behind the last row, and cannot be asked which it was.
    A second one, of the same moment, is asked where the first has ended.
    """

    def __init__(self, store: RocksStore, keys: KeyRange, rows: int = CHUNK_ROWS, *, is_purge: bool = False) -> None:
        self._url = store.state.url
        self._rows = rows
        self._next = keys.start or b"\0"
        self._is_done = False
        with store.lock:
            store.state.check_open()
            store.save_mark_now(store.state.clock.now_ms())
            bounds = load().ReadOptions()
            if keys.end is not None:
                bounds.set_iterate_upper_bound(keys.end)
            if is_purge:  # reads much once: the blocks that the application reads stay in the cache
                bounds.fill_cache(False)
                bounds.set_readahead_size(_PURGE_READAHEAD_BYTES)
            items = store.handle.items(from_key=keys.start, read_opt=bounds)
            self._engine: tuple[Any, Any, Any] | None = bounds, items, store.handle.iter(bounds)
            """A bound and two iterators. The engine reads the bound where it is for as long as one of them lives, so it
            is freed last; and a thread that reads while another one closes the store holds all three."""
            store.views.add(self)

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def release(self) -> None:
        self._engine = None

    async def chunk(self) -> list[RawRow]:
        if self._is_done:
            return []
        engine = self._engine
        if engine is None:
            raise StoreClosed("the store was closed during this scan")
        with lapse_errors(self._url):
            rows: list[RawRow] = list(islice(engine[1], self._rows))
        if rows:
            self._next = rows[-1][0] + b"\0"
        if len(rows) < self._rows:
            self._check_end(engine[2])
            self._is_done = True
            self.release()
        return rows

    def _check_end(self, witness: Any) -> None:
        witness.seek(self._next)
        if witness.valid():
            raise DatabaseError("a scan ended before its last row, and what it read is not used", hint="run it again")
        check_status(witness)


class Pin:
    """A family as it was when the pin was made, for any number of reads.

    rocksdict's Snapshot pins point reads only: its iterators show later writes. A plain iterator is what
    really stands still, so one is kept and moved about.
    """

    def __init__(self, family: Any) -> None:
        self._iterator: Any = family.iter()
        self._lock = threading.Lock()

    def release(self) -> None:
        """After a read that is under way: then nothing keeps the database open."""
        with self._lock:
            self._iterator = None

    def get(self, key: bytes) -> bytes | None:
        rows = self.rows(key, key + b"\0", 1)
        return rows[0][1] if rows else None

    def rows(self, start: bytes = b"\0", end: bytes | None = None, most: int = CHUNK_ROWS) -> list[RawRow]:
        with self._lock:
            iterator, rows = self._iterator, list[RawRow]()
            if iterator is None:
                raise StoreClosed("the snapshot is closed")
            iterator.seek(start)
            while len(rows) < most and iterator.valid():
                key = iterator.key()
                if end is not None and key >= end:
                    break
                rows.append((key, iterator.value()))
                iterator.next()
            if not iterator.valid():
                check_status(iterator)
            return rows


@dataclass
class PinnedRows:
    """One pass over a range of a pin."""

    pin: Pin
    start: bytes = b"\0"
    end: bytes | None = None

    async def chunk(self) -> list[RawRow]:
        rows = self.pin.rows(self.start, self.end)
        if rows:
            self.start = rows[-1][0] + b"\0"
        return rows
