"""Where the time comes from: passed in, so that nothing has to wait for it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from threading import local
from typing import Protocol

_WAITED = "/proc/thread-self/schedstat"
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


class _Waited:
    """The kernel's account of one thread, kept open: it is read twice for each batch."""

    def __init__(self) -> None:
        self._file = os.open(_WAITED, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def seconds(self) -> float:
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9


_of_this_thread = local()


def starved_seconds() -> float:
    """How long this thread has been ready to run and the machine had no processor for it; 0 where that is not told."""
    try:
        if not hasattr(_of_this_thread, "waited"):
            _of_this_thread.waited = _Waited()
        return float(_of_this_thread.waited.seconds())
    except (OSError, IndexError, ValueError):
        return 0.0
