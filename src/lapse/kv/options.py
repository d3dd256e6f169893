"""How a store is opened: read and checked once, before anything is touched."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock
from lapse.errors import InvalidValue
from lapse.kv.clock import CLOCK_WAIT_S
from lapse.kv.ttl import Duration, Ttl, read_default, read_duration
from lapse.model.interval import Interval

MergeFunction = Callable[[bytes | None, bytes], bytes]
"""`merge(existing, operand)`: the new value; `existing` is None where no live row exists."""

DurationLike = Interval | timedelta | str

DEFAULT_SNAPSHOT_LIFETIME = "15 minutes"
MIN_BUCKET_MS = 1_000
DEFAULT_JITTER = 0.1
DEFAULT_BUDGET_BYTES = 1 << 30


class Unset(enum.Enum):
    UNSET = enum.auto()


UNSET = Unset.UNSET
DefaultTtlLike = Ttl | Interval | timedelta | str | None | Unset


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """`default_ttl` is UNSET to keep the store's own."""

    default_ttl: Duration | Unset | None
    clock: Clock | None
    clock_wait_s: float
    merge: MergeFunction | None
    bucket_ms: int
    snapshot_lifetime_ms: int
    periodic_compaction_interval: Duration | None
    compaction_jitter: float
    compaction_budget_bytes: int
    read_only: bool
    create: bool
    durable: bool
    registry: CollectorRegistry


def read_options(
    *,
    default_ttl: DefaultTtlLike = UNSET,
    clock: Clock | None = None,
    clock_wait_s: float = CLOCK_WAIT_S,
    merge: MergeFunction | None = None,
    bucket: DurationLike | None = None,
    snapshot_lifetime: DurationLike = DEFAULT_SNAPSHOT_LIFETIME,
    periodic_compaction_interval: DurationLike | None = None,
    compaction_jitter: float = DEFAULT_JITTER,
    compaction_budget_bytes: int = DEFAULT_BUDGET_BYTES,
    read_only: bool = False,
    create: bool = True,
    durable: bool = False,
    registry: CollectorRegistry = REGISTRY,
) -> Options:
    if merge is not None and not callable(merge):
        raise InvalidValue("merge", merge, "must be a function of the existing value and the operand")
    if not 0 <= compaction_jitter < 1:
        raise InvalidValue("compaction_jitter", compaction_jitter, "must be at least 0 and less than 1")
    if compaction_budget_bytes <= 0:
        raise InvalidValue("compaction_budget_bytes", compaction_budget_bytes, "must be more than 0")
    if clock_wait_s < 0:
        raise InvalidValue("clock_wait_s", clock_wait_s, "must not be negative")
    if read_only and default_ttl is not UNSET:
        raise InvalidValue("default_ttl", default_ttl, "cannot be set on a store opened read-only")
    return Options(
        default_ttl=UNSET if isinstance(default_ttl, Unset) else read_default(default_ttl),
        clock=clock,
        clock_wait_s=clock_wait_s,
        merge=merge,
        bucket_ms=0 if bucket is None else _fixed_ms(bucket, "bucket", at_least=MIN_BUCKET_MS),
        snapshot_lifetime_ms=_fixed_ms(snapshot_lifetime, "snapshot_lifetime", at_least=1),
        periodic_compaction_interval=None
        if periodic_compaction_interval is None
        else read_duration(periodic_compaction_interval, name="periodic_compaction_interval"),
        compaction_jitter=compaction_jitter,
        compaction_budget_bytes=compaction_budget_bytes,
        read_only=read_only,
        create=create,
        durable=durable,
        registry=registry,
    )


def _fixed_ms(value: DurationLike, name: str, *, at_least: int) -> int:
    """Months have no fixed length, so they cannot be the width of a bucket or the life of a snapshot."""
    millis = read_duration(value, name=name).millis
    if millis is None:
        raise InvalidValue(name, value, "must not have months or years")
    if millis < at_least:
        raise InvalidValue(name, value, f"must be at least {at_least} ms")
    return millis
