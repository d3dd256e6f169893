"""Calling coroutines from code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from lapse.errors import StoreClosed

T = TypeVar("T")


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
