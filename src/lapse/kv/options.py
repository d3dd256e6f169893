"""How a store is opened, and how much a purge may do: read and checked before anything is touched."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import TypedDict, Unpack

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock
from lapse.errors import ForeignStore, InvalidValue, NotFound
from lapse.kv.ttl import Ttl, millis_of, read_default, read_duration
from lapse.kv.url import StoreUrl
from lapse.model.interval import Interval

MergeFunction = Callable[[bytes | None, bytes], bytes]
"""`merge(existing, operand)`: the new value; `existing` is None where no live row exists."""

DurationLike = Interval | timedelta | str


class OpenOptions(TypedDict, total=False):
    """What `lapse.kv.open` takes; `docs/kv.md` says what each means."""

    default_ttl: Ttl | DurationLike | None
    clock: Clock | None
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
        if self.read_only and (self.sets_default or self.trust_clock):
            name = "default_ttl" if self.sets_default else "trust_clock"
            raise InvalidValue(name, given.get(name), "cannot be set on a store opened read-only")


def _fixed_ms(value: DurationLike, name: str) -> int:
    """Months have no fixed length."""
    length = read_duration(value, name=name)
    if length.is_calendar:
        raise InvalidValue(name, value, "must not have months or years")
    return millis_of(length)


def check_may_create(url: StoreUrl, options: Options, left_by_creation: re.Pattern[str]) -> None:
    """In a directory there may be the files of a process that was killed while it created a store, and no others."""
    path = url.path
    if path is not None and path.is_file():
        raise ForeignStore(f"{url} is a file, not a store", hint="give the path of a new directory")
    if options.read_only or not options.create:
        hint = "check the URL; open() creates a store without read_only=True and create=False"
        raise NotFound(f"there is no store at {url}", hint=hint)
    if path is not None and path.is_dir() and not all(left_by_creation.fullmatch(file.name) for file in path.iterdir()):
        raise ForeignStore(f"{url} is not empty and is not a store", hint="give a new directory")


class PurgeLimits(TypedDict, total=False):
    """What `purge` takes; None means no limit."""

    within: DurationLike | None
    rows_per_second: float | None
    stop: threading.Event | None


@dataclass(kw_only=True)
class Budget:
    """What one purge may do, and what it has used. With `within` the purge goes on until the bytes are gone, but no
    longer; once `stop` is set it is over."""

    within: DurationLike | None = None
    rows_per_second: float | None = None
    stop: threading.Event | None = None
    rows: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.rows_per_second is not None and not self.rows_per_second > 0:
            raise InvalidValue("rows_per_second", self.rows_per_second, "must be more than 0")
        self._within_s = inf if self.within is None else read_duration(self.within, name="within").approximate_seconds
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        return self._within_s - self.elapsed_s

    @property
    def _is_stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    def is_over(self) -> bool:
        return self.left_s <= 0 or self._is_stopped

    @property
    def why_over(self) -> str:
        return "the purge was asked to stop" if self._is_stopped else "the time was up"

    @property
    def pause_s(self) -> float:
        """How long the rate demands to rest now."""
        if self.rows_per_second is None or self._is_stopped:
            return 0.0
        return min(self.left_s, self.rows / self.rows_per_second - self.elapsed_s)
