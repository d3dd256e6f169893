"""Does the database's clock tell the time? One that jumps ahead would expire everything at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from time import monotonic

TOLERANCE = timedelta(minutes=10)


class ClockWatch:
    """Compares the database's clock with how much time has passed here since it was last looked at."""

    def __init__(self, elapsed: Callable[[], float] = monotonic) -> None:
        self._elapsed = elapsed
        self._last: tuple[datetime, float] | None = None

    def jump(self, now: datetime) -> timedelta | None:
        """How far the clock is ahead of where it should be, if that is more than it can be off by."""
        here = self._elapsed()
        last, self._last = self._last, (now, here)
        if last is None:
            return None
        ahead = (now - last[0]) - timedelta(seconds=here - last[1])
        return ahead if ahead > TOLERANCE else None
