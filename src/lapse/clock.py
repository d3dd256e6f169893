"""Where the time comes from: passed in, so that nothing has to wait for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

_WAITED = Path("/proc/thread-self/schedstat")
"""On Linux: nanoseconds on a processor, nanoseconds of waiting for one."""


class Clock(Protocol):
    def now(self) -> datetime:
        """The current instant, aware, in UTC."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = (start or datetime.now(UTC)).astimezone(UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, step: timedelta) -> None:
        self._now += step

    def set(self, instant: datetime) -> None:
        self._now = instant.astimezone(UTC)


def starved_seconds() -> float:
    """How long this thread has been ready to run and the machine had no processor for it; 0 where that is not told."""
    try:
        return int(_WAITED.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
