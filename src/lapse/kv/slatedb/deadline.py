"""The boundary of every call into the engine: a time limit, and Lapse's errors for the engine's.

On a full disk, or while its object store is unreachable, SlateDB retries forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from threading import Lock
from typing import Any, TypeVar

from lapse.errors import DatabaseUnavailable, LapseError
from lapse.kv.slatedb.engine import translate
from lapse.kv.url import StoreUrl

T = TypeVar("T")
_LOOKS = 4
"""How often within a limit it is looked at. One timer for all calls costs each next to nothing."""
_GUARDED_ANSWERS = ("begin", "scan", "snapshot")


class Deadline:
    """Used as `with deadline:` around one call, in any number of tasks."""

    def __init__(self, url: StoreUrl, limit_s: float) -> None:
        self._url = url
        self._limit_s = limit_s
        self._began: dict[asyncio.Task[Any], float] = {}
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._began[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s / _LOOKS, self._look, loop)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._began.pop(task, None)
        if task in self._overdue:
            self._overdue.discard(task)
            task.uncancel()
            if kind is asyncio.CancelledError:
                raise self._no_answer() from error
        if isinstance(error, Exception) and not isinstance(error, LapseError):
            raise translate(self._url, error) from error

    def wait_for(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one call into the engine in this thread."""
        waiting, outer = _Waiting(), asyncio._get_running_loop()
        asyncio._set_running_loop(waiting)  # type: ignore[arg-type]
        try:
            while True:
                call.send(None)
                if not waiting.done.acquire(timeout=self._limit_s):
                    raise self._no_answer()
        except StopIteration as end:
            answer: T = end.value
            return answer
        except LapseError:
            raise
        except Exception as error:
            raise translate(self._url, error) from error
        finally:
            asyncio._set_running_loop(outer)
            call.close()

    def _no_answer(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"{self._url}: the engine gave no answer for {self._limit_s:g} s; a write may or may not be stored",
            hint="is the disk full, or the object store unreachable? open(..., timeout=) sets the limit",
        )

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task, began_s in list(self._began.items()):
            if loop.time() - began_s >= self._limit_s:
                self._overdue.add(task)
                task.cancel()
        if self._began:
            self._timer = loop.call_later(self._limit_s / _LOOKS, self._look, loop)


class _Waiting:
    """In place of an event loop, and of its future, while one call is waited for. The binding takes the future from the
    running loop, and a thread of the engine resolves it through the loop. With a lock instead there is no task, no
    round of a loop and no socket to wake it, which together cost half as much as a get."""

    def create_future(self) -> _Waiting:
        self.done = Lock()
        self.done.acquire()
        return self

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        callback(*args)

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: object) -> None:
        self.result = result
        self.done.release()

    def __await__(self) -> Generator[None, None, object]:
        yield
        return self.result


class Guarded:
    """An object of the engine whose calls all have the limit, and those of what it answers with. `raw` is it itself."""

    def __init__(self, raw: Any, deadline: Deadline) -> None:
        self.raw = raw
        self._deadline = deadline

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method, deadline, is_guarded = getattr(self.raw, name), self._deadline, name in _GUARDED_ANSWERS

        async def call(*args: Any) -> Any:
            with deadline:
                answer = await method(*args)
            return Guarded(answer, deadline) if is_guarded else answer

        setattr(self, name, call)
        return call
