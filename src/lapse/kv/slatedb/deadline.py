"""The boundary of every call into the engine: a time limit, and Lapse's errors for the engine's.

On a full disk, or without its object store, SlateDB tries for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lapse.errors import DatabaseUnavailable, LapseError
from lapse.kv.slatedb.engine import translate
from lapse.kv.url import StoreUrl

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
                raise DatabaseUnavailable(
                    f"{self._url}: the engine gave no answer for {self._limit_s:g} s; a write may or may not be stored",
                    hint="is the disk full, or the object store unreachable? open(..., timeout=) sets the limit",
                ) from error
        if isinstance(error, Exception) and not isinstance(error, LapseError):
            raise translate(self._url, error) from error

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task, began_s in list(self._began.items()):
            if loop.time() - began_s >= self._limit_s:
                self._overdue.add(task)
                task.cancel()
        if self._began:
            self._timer = loop.call_later(self._limit_s / _LOOKS, self._look, loop)


class Guarded:
    """An object of the engine whose calls all have the limit, and those of what it answers with."""

    def __init__(self, inner: Any, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method, deadline, is_guarded = getattr(self._inner, name), self._deadline, name in _GUARDED_ANSWERS

        async def call(*args: Any) -> Any:
            with deadline:
                answer = await method(*args)
            return Guarded(answer, deadline) if is_guarded else answer

        setattr(self, name, call)
        return call
