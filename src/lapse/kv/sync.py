"""From the asynchronous interface, which both engines implement, to the synchronous one.

The wrapper has every method of the interface: one that is added to it needs nothing here.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Self, TypeVar, cast

from lapse.errors import StoreClosed
from lapse.kv.abc import Batch, Snapshot, Store, Transaction
from lapse.kv.base import AsyncStore
from lapse.kv.batch import AsyncBatch
from lapse.kv.keys import take_rows
from lapse.kv.reads import AsyncBlock, RawRow, Scan
from lapse.kv.ttl import Ttl, TtlLike, plain_ttl

T = TypeVar("T")
_PUBLIC = {name for kind in (Store, Snapshot, Transaction, Batch) for name in dir(kind) if not name.startswith("_")}
"""What the wrapper hands on."""


def blocking(open_store: Callable[[], Coroutine[Any, Any, AsyncStore]], runner: Runner | Direct) -> Store:
    """A store for code that is not asynchronous."""
    try:
        return cast(Store, _Blocking(runner.run(open_store()), runner))
    except BaseException:
        runner.close()
        raise


def _plain(given: Any) -> Any:
    """A TTL as its own class and time zone say it, before anything is locked."""
    return plain_ttl(given) if isinstance(given, str | timedelta | datetime) else given


class _Blocking:
    """A store, snapshot, transaction or batch whose coroutines are run by the caller."""

    def __init__(self, inner: Any, runner: Runner | Direct) -> None:
        self._inner = inner
        self._runner = runner
        vars(self).update(inner.quick())

    def __getattr__(self, name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"a store has no {name!r}", name=name, obj=self._inner)
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        return partial(self._end if name in ("close", "rollback") else self._call, found)

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        runner = self._runner
        if runner.is_closed:
            raise StoreClosed("the store is closed")
        answer = method(*map(_plain, args), **{name: _plain(given) for name, given in options.items()})
        if inspect.iscoroutine(answer):
            answer = runner.run(answer)
        if isinstance(answer, AsyncBlock):
            return (_BlockingBatch if isinstance(answer, AsyncBatch) else _Blocking)(answer, runner)
        return answer

    def put_many(self, rows: Any, ttl: TtlLike = Ttl.DEFAULT) -> Any:
        """Nothing of the caller's runs in the loop."""
        if self._runner.is_closed:
            raise StoreClosed("the store is closed")
        ttl = plain_ttl(ttl)
        return self._call(self._inner.put_taken, take_rows(rows, ttl), ttl)

    def scan(self, *args: Any, **options: Any) -> Iterator[RawRow]:
        """The loop is entered once per chunk, not once per row."""
        scan: Scan = self._call(self._inner.scan, *args, **options)
        first = self._call(scan.fill)  # now, not at the first row: this is when the scan begins

        def chunks(rows: Iterator[RawRow] | None) -> Iterator[Iterator[RawRow]]:
            while rows is not None:
                yield rows
                if self._runner.is_closed:
                    raise StoreClosed("the store was closed during this scan")
                rows = self._runner.run(scan.fill())

        return chain.from_iterable(chunks(first))

    def _end(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ending what a closed store has ended is no error."""
        if self._runner.is_closed:
            return
        try:
            self._runner.run(end())
        finally:
            if isinstance(self._inner, AsyncStore):
                self._runner.close()
                for name in ("get", "put", "put_many"):  # those of RocksDB would keep the engine alive
                    vars(self).pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        (getattr(self, "commit", self.close) if kind is None else self.close)()


class _BlockingBatch(_Blocking):
    def __len__(self) -> int:
        return len(self._inner)


class Direct:
    """For coroutines that never wait, as those of RocksDB: they are done after one step, in the thread that calls."""

    is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            work.send(None)
        except StopIteration as end:
            answer: T = end.value
            return answer
        raise AssertionError("a coroutine that must not wait did")

    def close(self) -> None:
        self.is_closed = True


class Runner:
    """For coroutines that wait: each runs in the thread that calls. As in an event loop, one of them runs at a time,
    and another one while it waits; but there is no task, no round of a loop and no socket to wake it, which together
    cost more than a get of the engine."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._has_ended = threading.Condition(self._turn)
        self._callers: set[int] = set()
        self.is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The user may interrupt it between any two steps: what is left undone here, the thread's next call does."""
        outer, loop, caller = asyncio._get_running_loop(), Loop(), threading.get_ident()
        with self._turn:
            if self.is_closed:
                work.close()
                raise StoreClosed("the store is closed")
            try:
                self._callers.add(caller)
                asyncio._set_running_loop(loop)  # type: ignore[arg-type]
                future = work.send(None)
                while True:
                    error = self._wait(future, loop.limit_s)
                    future = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                answer: T = end.value
                return answer
            finally:
                work.close()
                asyncio._set_running_loop(None if isinstance(outer, Loop) else outer)
                self._callers.discard(caller)
                self._has_ended.notify_all()

    def _wait(self, future: LoopFuture | None, limit_s: float) -> BaseException | None:
        """Returns what the coroutine is to be told: that there was no answer, or that the user has interrupted it."""
        told: BaseException | None = None
        try:
            self._turn.release()
            told = None if future is None or future.is_over.acquire(timeout=limit_s) else TimeoutError()
        except BaseException as error:
            told = error
        while True:
            try:
                if not self._turn._is_owned():  # type: ignore[attr-defined]
                    self._turn.acquire()
                return told
            except BaseException as error:
                told = error

    def close(self) -> None:
        """Calls under way end first; each of them has a time limit."""
        with self._turn:
            self.is_closed = True
            self._callers.discard(threading.get_ident())
            self._has_ended.wait_for(lambda: not self._callers)


class Loop:
    """What a coroutine that a Runner runs takes for its event loop. What is waited for is a lock: a thread of the
    engine, a timer or another coroutine releases it."""

    limit_s: float = -1
    """How long an answer may take; without an end where it is less than 0."""

    def create_future(self) -> LoopFuture:
        return LoopFuture()

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        callback(*args)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> LoopFuture:
        def work() -> None:
            time.sleep(seconds)
            callback(*args)

        return self.run_in_executor(None, work)

    def run_in_executor(self, executor: None, function: Callable[[], Any]) -> LoopFuture:
        future = LoopFuture()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


class LoopFuture:
    def __init__(self) -> None:
        self.is_over = threading.Lock()
        self.is_over.acquire()
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        """What waited has gone; an answer that comes later is not looked at."""
        return False

    def set_result(self, result: Any) -> None:
        self._result = result
        self._is_done = True
        self.is_over.release()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self.set_result(None)

    def __await__(self) -> Generator[LoopFuture, None, Any]:
        if not self._is_done:
            yield self
        if self._error is not None:
            raise self._error
        return self._result
