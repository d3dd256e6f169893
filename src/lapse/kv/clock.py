"""A store's time: milliseconds that never run backwards, not even across a restart."""

from __future__ import annotations

import time
from collections.abc import Callable

from lapse.clock import Clock, SystemClock
from lapse.errors import ClockBehind
from lapse.kv.ttl import from_millis, to_millis

CLOCK_WAIT_S = 2.0
"""How long opening a store waits for a clock that is a little behind the store's mark."""


class StoreClock:
    """`now_ms` is the clock's time, or the latest time seen so far if the clock went back."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._latest_ms = 0
        self.is_system = type(self._clock) is SystemClock

    def now_ms(self) -> int:
        # The system's time without a datetime in between: this runs for every row that is read.
        now = time.time_ns() // 1_000_000 if self.is_system else to_millis(self._clock.now())
        if now > self._latest_ms:
            self._latest_ms = now
        return self._latest_ms

    def resume(
        self, mark_ms: int, *, wait_s: float = CLOCK_WAIT_S, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Go on from the latest time a store has seen; a clock that stays behind it is an error.

        Expiry compares instants of this clock with instants of earlier runs: with a clock in the past rows
        that were already gone would come back.
        """
        behind_s = (mark_ms - self.now_ms()) / 1000
        if 0 < behind_s <= wait_s:
            sleep(behind_s)
            behind_s = (mark_ms - self.now_ms()) / 1000
        if behind_s > 0:
            raise ClockBehind(
                f"the clock says {from_millis(self._latest_ms).isoformat()}, "
                f"but this store has already seen {from_millis(mark_ms).isoformat()}",
                hint="set the clock right, or open the store with read_only=True",
            )
        self._latest_ms = max(self._latest_ms, mark_ms)
