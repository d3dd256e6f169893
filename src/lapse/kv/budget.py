"""How much a purge may do: rows, rows per second, time."""

from __future__ import annotations

import threading
import time
from typing import TypedDict

from lapse.errors import InvalidValue
from lapse.kv.options import DurationLike
from lapse.kv.ttl import read_duration


class PurgeLimits(TypedDict, total=False):
    """What `purge` takes; None means no limit."""

    within: DurationLike | None
    max_rows: int | None
    rows_per_second: float | None
    stop: threading.Event | None


class Budget:
    """What one purge may do, and what it has used. With `within` the purge goes on until the bytes are gone, but no
    longer; once `stop` is set it is over."""

    def __init__(
        self,
        *,
        within: DurationLike | None = None,
        max_rows: int | None = None,
        rows_per_second: float | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        if max_rows is not None and (isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows <= 0):
            raise InvalidValue("max_rows", max_rows, "must be a whole number, more than 0")
        if rows_per_second is not None and not rows_per_second > 0:
            raise InvalidValue("rows_per_second", rows_per_second, "must be more than 0")
        if within is not None and max_rows is not None:
            raise InvalidValue("max_rows", max_rows, "cannot be combined with within, which promises to remove all")
        self.is_physical = within is not None
        self.rows = 0
        self._within_s = (
            float("inf") if within is None else read_duration(within, name="within").interval.approximate_seconds
        )
        self._max_rows = max_rows
        self._rows_per_second = rows_per_second
        self._stop = stop or threading.Event()
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        return self._within_s - self.elapsed_s

    def is_over(self) -> bool:
        return self.left_s <= 0 or self._stop.is_set()

    @property
    def exhausted(self) -> bool:
        return self.is_over() or (self._max_rows is not None and self.rows >= self._max_rows)

    @property
    def why_over(self) -> str:
        if self._stop.is_set():
            return "the purge was asked to stop"
        return "the time was up" if self.left_s <= 0 else "the budget was used up"

    def next_batch(self, most: int) -> int:
        return most if self._max_rows is None else max(1, min(most, self._max_rows - self.rows))

    @property
    def pause_s(self) -> float:
        """How long the rate demands to rest now."""
        if self._rows_per_second is None or self._stop.is_set():
            return 0.0
        return min(self.left_s, self.rows / self._rows_per_second - self.elapsed_s)
