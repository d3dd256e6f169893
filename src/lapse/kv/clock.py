"""A store's time: milliseconds that never run backwards, not even across a restart, and never leap ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from lapse.clock import Clock, SystemClock
from lapse.errors import ClockAhead, ClockBehind
from lapse.kv.row import live_from
from lapse.kv.ttl import from_millis, to_millis

CLOCK_WAIT_S = 2.0
"""How long opening a store waits for a clock that is a little behind the store's mark."""
_ROUNDING_S = 1e-6
"""More than a time as a float, which is a third quicker to read than an integer, can be off."""
_TRUST = "if the clock is right now: `lapse kv clock URL --trust`, or open(..., trust_clock=True)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One millisecond. It lasts while the clock reads less than `ends_s`, which it also does when it went back; rows
    from `live_from` on are live in it."""

    now_ms: int
    ends_s: float
    live_from: bytes


def moment_at(now_ms: int) -> Moment:
    return Moment(now_ms=now_ms, ends_s=end_of(now_ms), live_from=live_from(now_ms))


def end_of(now_ms: int) -> float:
    """When a millisecond is over, or a little before: then the clock is asked once more."""
    return (now_ms + 1) / 1000 - _ROUNDING_S


class StoreClock:
    """`now_ms` is the clock's time, or the latest time seen so far if the clock went back.

    Reads that must be quick do what `now_ms` does themselves: take `moment`, and `advance` where `read_s` says that
    it is over. `max_jump_ms` bounds one step forward: one reading that is years ahead would expire every row.
    """

    def __init__(self, clock: Clock | None = None, *, max_jump_ms: int | None = None) -> None:
        clock = clock or SystemClock()
        self.is_system = type(clock) is SystemClock
        self.read_s: Callable[[], float] = time.time if self.is_system else lambda: to_millis(clock.now()) / 1000
        self._clock = clock
        self.moment = moment_at(0)
        self.on_advance: Callable[[], object] = int
        """Called when a new moment begins."""
        self._max_jump_ms = max_jump_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self.present().now_ms

    def present(self) -> Moment:
        moment = self.moment
        return moment if self.read_s() < moment.ends_s else self.advance()

    def advance(self) -> Moment:
        """The present moment, or the latest if the clock went back."""
        now_ms = self._read_ms()
        with self._lock:
            last_ms = self.moment.now_ms
            if now_ms > last_ms:
                if self._max_jump_ms is not None and last_ms and now_ms - last_ms > self._max_jump_ms:
                    raise ClockAhead(
                        f"the clock says {from_millis(now_ms).isoformat()}, far ahead of "
                        f"{from_millis(last_ms).isoformat()}, the latest time this store has seen",
                        hint=f"set the clock right; {_TRUST}",
                    )
                self.moment = moment_at(now_ms)
                self.on_advance()
            return self.moment

    def resume(self, mark_ms: int, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Go on from the latest time a store has seen; a clock that stays behind it is an error.

        Expiry compares instants of this clock with instants of earlier runs: with a clock in the past rows
        that were already gone would come back.
        """
        now_ms = self._read_ms()
        if 0 < mark_ms - now_ms <= CLOCK_WAIT_S * 1000:
            sleep((mark_ms - now_ms) / 1000)
            now_ms = self._read_ms()
        if now_ms < mark_ms:
            raise ClockBehind(
                f"the clock says {from_millis(now_ms).isoformat()}, "
                f"but this store has already seen {from_millis(mark_ms).isoformat()}",
                hint=f"set the clock right, or open the store with read_only=True; {_TRUST}",
            )
        self.start_at(mark_ms)
        self.advance()

    def _read_ms(self) -> int:
        return time.time_ns() // 1_000_000 if self.is_system else to_millis(self._clock.now())

    def start_at(self, now_ms: int) -> None:
        """Never be before this time, wherever the clock is."""
        self.moment = moment_at(max(now_ms, self.moment.now_ms))


class StoppedClock(StoreClock):
    """The time of a snapshot: its only moment is always over and begins again, unless `check` raises because the
    snapshot must not be read any more."""

    def __init__(self, now_ms: int, check: Callable[[], object]) -> None:
        self.moment = Moment(now_ms=now_ms, ends_s=0, live_from=live_from(now_ms))
        self.read_s = float  # that is, 0
        self._check = check

    def advance(self) -> Moment:
        self._check()
        return self.moment
