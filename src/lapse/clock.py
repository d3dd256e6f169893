"""Where the time comes from: passed in, so that nothing has to wait for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol


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
