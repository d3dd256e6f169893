"""A process that dies between two statements: from then on it does nothing at all, not even cleaning up."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import event

from lapse.app import Lapse


class Died(BaseException):
    """Not an Exception: nobody may catch it and carry on."""


class CrashAfter:
    """Lets `statements` statements of this thread through, then fails every one that follows, of any thread."""

    def __init__(self, db: Lapse, statements: int) -> None:
        self._left = statements
        self._thread = threading.get_ident()
        self.crashed = False
        event.listen(db.engine.database, "before_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._left -= 1
        if self._left < 0:
            self.crashed = True
            raise Died
