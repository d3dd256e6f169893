"""How much a purge may do: rows, rows per second, time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from lapse.errors import InvalidValue
from lapse.kv.options import DurationLike
from lapse.kv.ttl import read_duration


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """None means no limit. With `within_s` the purge goes on until the bytes are gone, but no longer."""

    within_s: float | None = None
    max_rows: int | None = None
    rows_per_second: float | None = None

    @staticmethod
    def read(*, within: DurationLike | None, max_rows: int | None, rows_per_second: float | None) -> Budget:
        if max_rows is not None and (isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows <= 0):
            raise InvalidValue("max_rows", max_rows, "must be a whole number, more than 0")
        if rows_per_second is not None and not rows_per_second > 0:
            raise InvalidValue("rows_per_second", rows_per_second, "must be more than 0")
        if within is None:
            return Budget(max_rows=max_rows, rows_per_second=rows_per_second)
        if max_rows is not None:
            raise InvalidValue("max_rows", max_rows, "cannot be combined with within, which promises to remove all")
        within_s = read_duration(within, name="within").interval.approximate_seconds
        return Budget(within_s=within_s, rows_per_second=rows_per_second)


class Spending:
    """What one purge has used of its budget. Once `stop` is set it is over."""

    def __init__(self, budget: Budget, stop: threading.Event | None = None) -> None:
        self.budget = budget
        self.rows = 0
        self._stop = stop or threading.Event()
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        return float("inf") if self.budget.within_s is None else self.budget.within_s - self.elapsed_s

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0 or self.is_stopped

    @property
    def exhausted(self) -> bool:
        max_rows = self.budget.max_rows
        return self.is_over or (max_rows is not None and self.rows >= max_rows)

    @property
    def why_over(self) -> str:
        if self.is_stopped:
            return "the purge was asked to stop"
        return "the time was up" if self.left_s <= 0 else "the budget was used up"

    def next_batch(self, most: int) -> int:
        max_rows = self.budget.max_rows
        return most if max_rows is None else max(1, min(most, max_rows - self.rows))

    def spend(self, rows: int) -> None:
        """Count rows removed."""
        self.rows += rows

    @property
    def pause_s(self) -> float:
        """How long the rate demands to rest now."""
        if self.budget.rows_per_second is None or self.is_stopped:
            return 0.0
        return min(self.left_s, self.rows / self.budget.rows_per_second - self.elapsed_s)
