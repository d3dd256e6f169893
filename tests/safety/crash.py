"""A process that dies between two statements: from then on it does nothing at all, not even cleaning up."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event

from lapse.app import Lapse


class Died(BaseException):
    """Not an Exception: nobody may catch it and carry on."""


class CrashAfter:
    """Lets `statements` statements of a Lapse through, then fails every one that follows, COMMIT included."""

    def __init__(self, db: Lapse, statements: int) -> None:
        self._left = statements
        self.crashed = False
        event.listen(db.engine.database, "before_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self._left -= 1
        if self._left < 0:
            self.crashed = True
            raise Died
