"""A process that dies between two statements: from then on it does nothing at all, not even cleaning up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Engine, event

from lapse.app import Lapse


class Died(BaseException):
    """Not an Exception: nobody may catch it and carry on."""


class CrashAfter:
    """Lets `statements` statements of this thread through, then fails every one that follows, of any thread."""

    def __init__(self, db: Lapse, statements: int) -> None:
        self._left = statements
        self._thread = threading.get_ident()
        self.crashed = False
        for database in vars(db.engine).values():
            # Some engines delete on connections of another kind.
            if isinstance(database, Engine):
                event.listen(database, "before_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._left -= 1
        if self._left < 0:
            self.crashed = True
            raise Died


@contextmanager
def dying() -> Iterator[None]:
    """A crash ends this block, and the threads beside it at whatever statement they have come to.

    Anything else that ends a thread meanwhile is raised here.
    """
    others: list[BaseException] = []

    def note(ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, Died):
            others.append(ended.exc_value or ended.exc_type())

    before, threading.excepthook = threading.excepthook, note
    try:
        with suppress(Died):
            yield
    finally:
        threading.excepthook = before
    if others:
        raise others[0]
