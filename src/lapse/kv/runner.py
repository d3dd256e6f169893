"""Running coroutines where they are called, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from lapse.errors import StoreClosed

T = TypeVar("T")


def give_back(lock: Any) -> None:
    """After an interrupt of the user, which may have come between taking the lock and the `try` that releases it."""
    while lock._is_owned():
        lock.release()


class Direct:
    """For coroutines that never wait, as those of RocksDB: they are done after one step, in the thread that calls."""

    is_closed = False
    lock: Any = None
    """The store's, which a call of the user's never begins with."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            work.send(None)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except KeyboardInterrupt:
            if self.lock is not None:
                give_back(self.lock)
            raise
        raise AssertionError("a coroutine that must not wait did")

    def close(self) -> None:
        """The store says itself that it is closed."""


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

    def _wait(self, future: LoopFuture | None, limit_s: float | None) -> BaseException | None:
        """Returns what the coroutine is to be told: that there was no answer, or that the user has interrupted it."""
        told: BaseException | None = None
        try:
            self._turn.release()
            if future is not None:
                future.exception(limit_s)
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
    """What a coroutine that a Runner runs takes for its event loop. What it waits for is set by a thread of the engine,
    a timer or another coroutine."""

    limit_s: float | None = None
    """How long an answer may take."""

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


class LoopFuture(Future[Any]):
    def cancel(self) -> bool:
        """What waited has gone; an answer that comes later is not looked at."""
        return False

    def __await__(self) -> Generator[LoopFuture, None, Any]:
        if not self.done():
            yield self
        return self.result()
