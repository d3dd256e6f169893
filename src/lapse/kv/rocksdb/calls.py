"""The boundary of every call into RocksDB: the errors that come out of it, and how long the caller waits."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

from lapse.errors import DatabaseError, DatabaseUnavailable, LapseError, StoreClosed
from lapse.kv.url import StoreUrl, lock_owner, store_locked
from lapse.kv.verify import IsOver

_LOOK_S = 0.1
_EXIT_S = 10.0
_LIMITED = ("flush", "flush_wal", "get_many")


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
        method = getattr(self.raw, name.removesuffix("_many"))

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
