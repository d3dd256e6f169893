"""From the asynchronous interface, which both engines implement, to the synchronous one, and for RocksDB back again.

The wrappers have every method of the interface: one that is added to it needs nothing here.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Self, TypeVar, cast

from lapse.errors import StoreClosed
from lapse.kv.abc import Batch, Snapshot, Store, Transaction
from lapse.kv.base import AsyncBatch, AsyncStore
from lapse.kv.keys import take_rows
from lapse.kv.reads import AsyncBlock, RawRow, Scan
from lapse.kv.ttl import Ttl, TtlLike

T = TypeVar("T")
_PUBLIC = {name for kind in (Store, Snapshot, Transaction, Batch) for name in dir(kind) if not name.startswith("_")}
"""What the wrappers hand on."""


def blocking(open_store: Callable[[], Coroutine[Any, Any, AsyncStore]], runner: Runner | Direct) -> Store:
    """A store for code that is not asynchronous."""
    try:
        return cast(Store, _Blocking(runner.run(open_store()), runner))
    except BaseException:
        runner.close()
        raise


def threaded(store: AsyncStore) -> AsyncStore:
    """A store for asyncio whose coroutines, which never wait, run in threads."""
    return cast(AsyncStore, _Threaded(store))


def _public(inner: Any, name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"a store has no {name!r}", name=name, obj=inner)
    return getattr(inner, name)


class _Blocking:
    """A store, snapshot, transaction or batch whose coroutines are run by the caller."""

    def __init__(self, inner: Any, runner: Runner | Direct) -> None:
        self._inner = inner
        self._runner = runner
        vars(self).update(inner.quick(runner.run))

    def __getattr__(self, name: str) -> Any:
        found = _public(self._inner, name)
        if not callable(found):
            return found
        return partial(self._end if name in ("close", "rollback") else self._call, found)

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        runner = self._runner
        if runner.is_closed:
            raise StoreClosed("the store is closed")
        answer = method(*args, **options)
        if inspect.iscoroutine(answer):
            answer = runner.run(answer)
        if isinstance(answer, AsyncBlock):
            return (_BlockingBatch if isinstance(answer, AsyncBatch) else _Blocking)(answer, runner)
        return answer

    def put_many(self, rows: Any, ttl: TtlLike = Ttl.DEFAULT) -> Any:
        """Nothing of the caller's runs in the loop."""
        if self._runner.is_closed:
            raise StoreClosed("the store is closed")
        return self._call(self._inner.put_taken, take_rows(rows), ttl)

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
                for name in ("get", "put"):  # they would keep the engine alive
                    vars(self).pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        (getattr(self, "commit", self.close) if kind is None else self.close)()


class _BlockingBatch(_Blocking):
    def __len__(self) -> int:
        return len(self._inner)


class _Threaded(AsyncBlock):
    """The same for asyncio: each call runs in a thread."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = _public(self._inner, name)
        if inspect.iscoroutinefunction(found):
            return partial(self._call, found)
        return partial(self._answer, found) if callable(found) else found

    async def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._wrapped(await asyncio.to_thread(Direct().run, method(*args, **options)))

    def _answer(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._wrapped(method(*args, **options))

    def _wrapped(self, answer: Any) -> Any:
        if isinstance(answer, AsyncBlock):
            return (_ThreadedBatch if isinstance(answer, AsyncBatch) else _Threaded)(answer)
        return answer

    async def close(self) -> None:
        await self._call(self._inner.close)

    async def scan(self, *args: Any, **options: Any) -> AsyncIterator[RawRow]:
        """Read in threads, judged here when handed out."""
        scan: Scan = self._inner.scan(*args, **options)
        while (rows := await asyncio.to_thread(Direct().run, scan.fill())) is not None:
            for found in rows:
                yield found


class _ThreadedBatch(_Threaded):
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
    """One event loop, driven by whichever thread calls: two and a half times as fast as handing every call to
    a thread of its own. A thread that calls while another one drives hands its work over, so that a get does
    not wait for a purge to end, and takes the wheel if the other is done first.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._turn = threading.Condition()
        self._driving = False
        self._calls = 0
        self.is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio._get_running_loop() is not None:
            # The caller is itself inside an event loop (a notebook, say): two cannot run in one thread.
            with ThreadPoolExecutor(max_workers=1) as pool:
                return pool.submit(self.run, work).result()
        with self._turn:
            if self.is_closed:
                work.close()
                raise StoreClosed("the store is closed")
            self._calls += 1
            is_mine = not self._driving
            self._driving = True
        try:
            return self._drive(work) if is_mine else self._hand_over(work)
        finally:
            with self._turn:
                if is_mine:
                    self._driving = False
                self._calls -= 1
                self._turn.notify_all()

    def close(self) -> None:
        """Calls under way end first; each of them has a time limit."""
        with self._turn:
            if self.is_closed:
                return
            self.is_closed = True
            self._turn.wait_for(lambda: not self._calls)
        self._loop.close()

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run_until_complete` does, in two rounds of the loop where that takes three."""
        loop = self._loop

        async def until_done() -> T:
            try:
                return await work
            finally:
                loop.stop()

        task = loop.create_task(until_done())
        while not task.done():  # one whose driver was interrupted may have stopped the loop
            loop.run_forever()
        return task.result()

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(self._wake)
        while True:
            with self._turn:
                self._turn.wait_for(lambda: future.done() or not self._driving)
                if future.done():
                    return future.result()
                self._driving = True
            try:
                with suppress(Exception):  # raised from the future, above
                    self._drive(_until_done(future))
            finally:
                with self._turn:
                    self._driving = False
                    self._turn.notify_all()

    def _wake(self, future: Future[Any]) -> None:
        with self._turn:
            self._turn.notify_all()


async def _until_done(future: Future[Any]) -> None:
    await asyncio.wrap_future(future)
