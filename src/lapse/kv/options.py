"""How a store is opened: read and checked once, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypedDict, Unpack

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock
from lapse.errors import InvalidValue
from lapse.kv.clock import CLOCK_WAIT_S
from lapse.kv.ttl import Ttl, read_default, read_duration
from lapse.model.interval import Interval

MergeFunction = Callable[[bytes | None, bytes], bytes]
"""`merge(existing, operand)`: the new value; `existing` is None where no live row exists."""

DurationLike = Interval | timedelta | str


class OpenOptions(TypedDict, total=False):
    """What `lapse.kv.open` takes; `docs/kv.md` says what each means."""

    default_ttl: Ttl | DurationLike | None
    clock: Clock | None
    clock_wait_s: float
    max_clock_jump: DurationLike
    trust_clock: bool
    merge: MergeFunction | None
    snapshot_lifetime: DurationLike
    read_only: bool
    create: bool
    take_over: bool
    durable: bool
    timeout: DurationLike
    registry: CollectorRegistry


class Options:
    """The same, valid once built, with units and defaults."""

    def __init__(self, **given: Unpack[OpenOptions]) -> None:
        if unknown := given.keys() - OpenOptions.__annotations__.keys():
            raise TypeError(f"open() has no option {min(unknown)!r}")
        self.sets_default = "default_ttl" in given
        self.default = read_default(given.get("default_ttl"))
        self.clock = given.get("clock")
        self.clock_wait_s = given.get("clock_wait_s", CLOCK_WAIT_S)
        self.max_clock_jump_ms = _fixed_ms(given.get("max_clock_jump", "366 days"), "max_clock_jump")
        self.trust_clock = given.get("trust_clock", False)
        self.merge = given.get("merge")
        self.snapshot_lifetime_ms = _fixed_ms(given.get("snapshot_lifetime", "15 minutes"), "snapshot_lifetime")
        self.read_only = given.get("read_only", False)
        self.create = given.get("create", True)
        self.take_over = given.get("take_over", True)
        self.durable = given.get("durable", False)
        self.timeout_s = _fixed_ms(given.get("timeout", "1 minute"), "timeout") / 1000
        self.registry = given.get("registry", REGISTRY)
        if self.merge is not None and not callable(self.merge):
            raise InvalidValue("merge", self.merge, "must be a function of the existing value and the operand")
        if self.clock_wait_s < 0:
            raise InvalidValue("clock_wait_s", self.clock_wait_s, "must not be negative")
        if self.read_only and (self.sets_default or self.trust_clock):
            name = "default_ttl" if self.sets_default else "trust_clock"
            raise InvalidValue(name, given.get(name), "cannot be set on a store opened read-only")


def _fixed_ms(value: DurationLike, name: str) -> int:
    """Months have no fixed length."""
    millis = read_duration(value, name=name).millis
    if millis is None:
        raise InvalidValue(name, value, "must not have months or years")
    return millis
