"""How many rows the next statement should take: as many as fit into the target time.

The rate is a weighted average over the last few statements. A size that the user set is a hard upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.model.policy import Policy
from lapse.model.settings import Settings

WEIGHT = 0.75
"""Share of the old average that stays: a memory of about four statements."""
MAX_ROWS = 50_000
MIN_ROWS = 100
"""A statement's fixed cost is more than that of a hundred rows: fewer make it slower, not gentler."""
WARM_UP = 10
"""Statements during which the size may double; afterwards it grows by a fifth, twofold while a statement takes less
than half of the target time, and fourfold while it takes less than a fifth."""
OUTLIER = 3.0
"""A statement counts as no slower than so many times what was expected of it: one that met a busy moment of a machine
says little of the next, and a server that has become slow shows it again."""


MOST_STARVED = 0.95


def served_seconds(busy: float, seconds: float, starved: float) -> float:
    """What of the `busy` time of a step was the server's. The step took `seconds`, and for `starved` of them this
    process waited for a processor: smaller statements would not make them fewer, but the other way round."""
    return busy * (1.0 - min(MOST_STARVED, max(0.0, starved) / max(seconds, 1e-6)))


@dataclass(kw_only=True)
class BatchSizer:
    target_seconds: float
    start: int
    ceiling: int
    adaptive: bool

    def __post_init__(self) -> None:
        self.size = max(1, min(self.start, self.ceiling))
        self._rows = 0.0
        self._seconds = 0.0
        self._seen = 0

    @property
    def floor(self) -> int:
        return min(MIN_ROWS, self.ceiling)

    @classmethod
    def for_policy(
        cls, policy: Policy, settings: Settings, target_seconds: float, learned: int | None = None
    ) -> BatchSizer:
        """`learned` is the size that an earlier task of the same table came to."""
        bounds = [size for size in (policy.select_batch_size, policy.delete_batch_size) if size is not None]
        start = min(
            policy.delete_batch_size or settings.delete_batch_size,
            policy.select_batch_size or settings.scan_batch_size,
        )
        ceiling = min(bounds) if bounds else (MAX_ROWS if policy.adaptive else start)
        if learned is not None and policy.adaptive:
            start = learned
        return cls(target_seconds=target_seconds, start=start, ceiling=ceiling, adaptive=policy.adaptive)

    def record(self, rows: int, seconds: float) -> None:
        """Learn from a statement; a quick one that found much less than it might have was reading, not deleting."""
        if not self.adaptive or rows <= 0 or (2 * rows < self.size and seconds <= self.target_seconds):
            return
        if self._seen:
            expected = max(rows * self._seconds / self._rows, self.target_seconds)
            seconds = min(seconds, OUTLIER * expected)
        self._rows = WEIGHT * self._rows + rows
        self._seconds = WEIGHT * self._seconds + max(seconds, 1e-6)
        self._seen += 1
        wanted = int(self._rows / self._seconds * self.target_seconds)
        growth = 2.0 if self._seen <= WARM_UP or seconds < self.target_seconds / 2 else 1.2
        if seconds < self.target_seconds / 5:
            growth = 4.0
        self._set(max(self.size // 2, min(wanted, int(self.size * growth) + 1)))

    def adopt(self, size: int, row_seconds: float) -> None:
        """What a server has come to that has fitted the size by itself."""
        if row_seconds > 0:
            self._rows, self._seconds, self._seen = float(size), size * row_seconds, self._seen + 1
        self._set(size)

    def halve(self) -> None:
        self._set(self.size // 2, floor=1)

    def _set(self, size: int, floor: int = MIN_ROWS) -> None:
        self.size = max(min(floor, self.ceiling), min(size, self.ceiling))
