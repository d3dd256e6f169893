"""The front door: one URL, one store, whatever the engine."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock
from lapse.kv.abc import Store
from lapse.kv.clock import CLOCK_WAIT_S
from lapse.kv.options import (
    DEFAULT_BUDGET_BYTES,
    DEFAULT_JITTER,
    DEFAULT_SNAPSHOT_LIFETIME,
    UNSET,
    DefaultTtlLike,
    DurationLike,
    MergeFunction,
    read_options,
)
from lapse.kv.url import ROCKSDB, StoreUrl, parse


def open(
    url: str,
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
) -> Store:
    """Open the store at `url`, creating it if need be.

    `default_ttl` is stored with the database; left out, the stored one stays. `bucket` and
    `snapshot_lifetime` are fixed when the store is created. With `durable` every write waits until it would
    survive a crash of the machine.
    """
    parsed = parse(url)
    options = read_options(
        default_ttl=default_ttl,
        clock=clock,
        clock_wait_s=clock_wait_s,
        merge=merge,
        bucket=bucket,
        snapshot_lifetime=snapshot_lifetime,
        periodic_compaction_interval=periodic_compaction_interval,
        compaction_jitter=compaction_jitter,
        compaction_budget_bytes=compaction_budget_bytes,
        read_only=read_only,
        create=create,
        durable=durable,
        registry=registry,
    )
    if parsed.engine == ROCKSDB:
        from lapse.kv.rocksdb.opening import open_store

        return open_store(parsed, options)
    from lapse.kv.slatedb.sync import open_sync

    return open_sync(parsed, options)


def require_engine(url: StoreUrl) -> None:
    """Raises MissingExtra where the engine of this store is not installed."""
    if url.engine == ROCKSDB:
        from lapse.kv.rocksdb.engine import load as load_rocksdb

        load_rocksdb()
    else:
        from lapse.kv.slatedb.engine import load as load_slatedb

        load_slatedb()
