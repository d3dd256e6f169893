"""Something that another client does between two statements of Lapse's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from sqlalchemy import Engine, event

from lapse.model.job import Job
from lapse.runner.events import NullListener


class Meddler(NullListener):
    """Calls `act` once, after so many statements of any connection; again before each next one while it returns False.

    It runs before a statement, in the thread whose statement that is. As a listener of a run it counts from the moment
    at which the job has been created.
    """

    def __init__(self, after: int, act: Callable[[], bool], *, at_once: bool) -> None:
        self._left = after
        self._act = act
        self._counting = at_once
        self._lock = Lock()
        self.done = False

    def job_created(self, job: Job) -> None:
        self._counting = True

    def count(self, *_: Any) -> None:
        if not self._counting or self.done or not self._lock.acquire(blocking=False):
            return
        try:
            self._left -= 1
            if self._left < 0:
                self.done = self._act()
        finally:
            self._lock.release()


@contextmanager
def meddling(after: int, act: Callable[[], bool], *, at_once: bool = True) -> Iterator[Meddler]:
    meddler = Meddler(after, act, at_once=at_once)
    event.listen(Engine, "before_cursor_execute", meddler.count)
    try:
        yield meddler
    finally:
        event.remove(Engine, "before_cursor_execute", meddler.count)
