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
        clock = clock or SystemClock()
        self.is_system = type(clock) is SystemClock
        self.now_ms, self._advance = _system_time() if self.is_system else _time_of(clock)

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
                f"the clock says {from_millis(self.now_ms()).isoformat()}, "
                f"but this store has already seen {from_millis(mark_ms).isoformat()}",
                hint="set the clock right, or open the store with read_only=True",
            )
        self._advance(mark_ms)


Monotonic = tuple[Callable[[], int], Callable[[int], None]]
"""What tells the time, and what moves it on. Closures, not methods, because every row that is read asks."""


def _system_time() -> Monotonic:
    latest, time_ns = 0, time.time_ns

    def now_ms() -> int:
        nonlocal latest
        now = time_ns() // 1_000_000
        if now > latest:
            latest = now
        return latest

    def advance(to_ms: int) -> None:
        nonlocal latest
        latest = max(latest, to_ms)

    return now_ms, advance


def _time_of(clock: Clock) -> Monotonic:
    latest = 0

    def now_ms() -> int:
        nonlocal latest
        latest = max(latest, to_millis(clock.now()))
        return latest

    def advance(to_ms: int) -> None:
        nonlocal latest
        latest = max(latest, to_ms)

    return now_ms, advance
