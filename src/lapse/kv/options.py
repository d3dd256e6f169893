"""How a store is opened: read and checked once, before anything is touched."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock
from lapse.errors import InvalidValue
from lapse.kv.clock import CLOCK_WAIT_S
from lapse.kv.ttl import Duration, Ttl, read_default, read_duration
from lapse.model.interval import Interval

MergeFunction = Callable[[bytes | None, bytes], bytes]
"""`merge(existing, operand)`: the new value; `existing` is None where no live row exists."""

DurationLike = Interval | timedelta | str

DEFAULT_JITTER = 0.1
DEFAULT_BUDGET_BYTES = 1 << 30


class Unset(enum.Enum):
    UNSET = enum.auto()


UNSET = Unset.UNSET
DefaultTtlLike = Ttl | Interval | timedelta | str | None | Unset


class OpenOptions(TypedDict, total=False):
    """What `lapse.kv.open` takes; `docs/kv.md` says what each means."""

    default_ttl: DefaultTtlLike
    clock: Clock | None
    clock_wait_s: float
    max_clock_jump: DurationLike
    trust_clock: bool
    merge: MergeFunction | None
    snapshot_lifetime: DurationLike
    periodic_compaction_interval: DurationLike | None
    compaction_jitter: float
    compaction_budget_bytes: int
    read_only: bool
    create: bool
    take_over: bool
    durable: bool
    timeout: DurationLike
    registry: CollectorRegistry


@dataclass(frozen=True, kw_only=True)
class Options:
    """The same, valid once built. `default_ttl` is UNSET to keep the store's own."""

    default_ttl: DefaultTtlLike = UNSET
    clock: Clock | None = None
    clock_wait_s: float = CLOCK_WAIT_S
    max_clock_jump: DurationLike = "366 days"
    trust_clock: bool = False
    merge: MergeFunction | None = None
    snapshot_lifetime: DurationLike = "15 minutes"
    periodic_compaction_interval: DurationLike | None = None
    compaction_jitter: float = DEFAULT_JITTER
    compaction_budget_bytes: int = DEFAULT_BUDGET_BYTES
    read_only: bool = False
    create: bool = True
    take_over: bool = True
    durable: bool = False
    timeout: DurationLike = "1 minute"
    registry: CollectorRegistry = REGISTRY

    def __post_init__(self) -> None:
        if self.merge is not None and not callable(self.merge):
            raise InvalidValue("merge", self.merge, "must be a function of the existing value and the operand")
        if not 0 <= self.compaction_jitter < 1:
            raise InvalidValue("compaction_jitter", self.compaction_jitter, "must be at least 0 and less than 1")
        if self.compaction_budget_bytes <= 0:
            raise InvalidValue("compaction_budget_bytes", self.compaction_budget_bytes, "must be more than 0")
        if self.clock_wait_s < 0:
            raise InvalidValue("clock_wait_s", self.clock_wait_s, "must not be negative")
        for name in ("default_ttl", "trust_clock"):
            if self.read_only and getattr(self, name) not in (UNSET, False):
                raise InvalidValue(name, getattr(self, name), "cannot be set on a store opened read-only")
        # Each raises for what it cannot read.
        _ = self.new_default(), self.compact_after_s, self.timeout_s
        _ = self.max_clock_jump_ms, self.snapshot_lifetime_ms

    def new_default(self) -> Duration | Unset | None:
        return self.default_ttl if isinstance(self.default_ttl, Unset) else read_default(self.default_ttl)

    @property
    def max_clock_jump_ms(self) -> int:
        return _fixed_ms(self.max_clock_jump, "max_clock_jump")

    @property
    def snapshot_lifetime_ms(self) -> int:
        return _fixed_ms(self.snapshot_lifetime, "snapshot_lifetime")

    @property
    def timeout_s(self) -> float:
        return _fixed_ms(self.timeout, "timeout") / 1000

    @property
    def compact_after_s(self) -> float | None:
        """The seconds of `periodic_compaction_interval`."""
        interval = self.periodic_compaction_interval
        if interval is None:
            return None
        return read_duration(interval, name="periodic_compaction_interval").interval.approximate_seconds


def _fixed_ms(value: DurationLike, name: str) -> int:
    """Months have no fixed length."""
    millis = read_duration(value, name=name).millis
    if millis is None:
        raise InvalidValue(name, value, "must not have months or years")
    return millis
