"""Does the database's clock tell the time? One that jumps ahead would expire everything at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lapse.catalog import Catalog, meta, settings
from lapse.clock import SystemClock
from lapse.model.settings import Settings
from lapse.runner.retry import retried

TOLERANCE = timedelta(minutes=10)
CONFIRM = "confirm with lapse resume --clock"
REMEMBERED_SECONDS = 60.0
SAME_SECONDS = 1.0
"""What an earlier process has seen is not written anew by one that follows soon and sees the clock go on as it did."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def since_boot() -> float:
    """Seconds that cannot be set, the same for all processes of this machine; they go on while it sleeps, on Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ClockWatch:
    """Compares the database's clock with how much time has passed here since it was last looked at."""

    def __init__(self, elapsed: Callable[[], float] = since_boot) -> None:
        self._elapsed = elapsed
        self._last: tuple[datetime, float] | None = None

    def check(
        self, catalog: Catalog, now: datetime, current: Settings, facts: Mapping[str, str] | None = None
    ) -> Settings:
        """The settings that hold: no job goes on while a clock that is ahead waits for confirmation.

        `facts` are those of the catalog, where they were read just now.
        """
        self.recall(catalog, now, facts)
        jump = self.jump(now)
        if jump is not None:
            return _hold(catalog, f"the database's clock jumped ahead by {jump}; {CONFIRM}", now)
        # A run that begins after the jump has only this machine's clock to compare with.
        ahead = now - datetime.now(UTC)
        if catalog.engine.clock is None and ahead > TOLERANCE and current.clock_hold is None:
            accepted = _fact(catalog, meta.CLOCK_AHEAD, facts)
            if ahead > TOLERANCE + timedelta(seconds=float(accepted or 0)):
                return _hold(catalog, f"the database's clock is {ahead} ahead of this machine's; {CONFIRM}", now)
        return current

    def jump(self, now: datetime) -> timedelta | None:
        """How far the clock is ahead of where it should be, if that is more than it can be off by."""
        here = self._elapsed()
        last, self._last = self._last, (now, here)
        if last is None:
            return None
        ahead = (now - last[0]) - timedelta(seconds=here - last[1])
        return ahead if ahead > TOLERANCE else None

    @retried
    def recall(self, catalog: Catalog, now: datetime, facts: Mapping[str, str] | None = None) -> None:
        """Go on from what an earlier process on this machine has seen, before the first look; a run is short.

        A boot begins the seconds anew, and another machine has others: then there is nothing to go on from.
        """
        if self._last is not None or not isinstance(catalog.engine.clock, SystemClock | None):
            return
        boot = None
        with suppress(OSError):
            boot = BOOT_ID.read_text().strip()
        if boot is None:
            return
        before = _fact(catalog, meta.CLOCK_SEEN, facts)
        seen, elapsed = json.loads(before) if before else {}, self._elapsed()
        if seen.get("boot") == boot:
            self._last = datetime.fromisoformat(seen["now"]), float(seen["elapsed"])
            passed = elapsed - self._last[1]
            if passed < REMEMBERED_SECONDS and abs((now - self._last[0]).total_seconds() - passed) < SAME_SECONDS:
                return
        here = {"boot": boot, "now": now.isoformat(), "elapsed": elapsed}
        with catalog.writing(durable=False) as connection:
            meta.replace_fact(connection, meta.CLOCK_SEEN, before, json.dumps(here))


def _fact(catalog: Catalog, name: str, facts: Mapping[str, str] | None) -> str | None:
    if facts is not None:
        return facts.get(name)
    with catalog.reading() as connection:
        return meta.read_fact(connection, name)


def _hold(catalog: Catalog, reason: str, now: datetime) -> Settings:
    with catalog.writing() as connection:
        settings.hold_clock(connection, reason, now)
        return settings.load_settings(connection)
