"""The front door for asyncio."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock
from lapse.kv.aio.abc import AsyncStore
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
from lapse.kv.url import ROCKSDB, parse


async def open(
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
) -> AsyncStore:
    """Like `lapse.kv.open`. SlateDB is asynchronous itself; RocksDB's calls run in a thread."""
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
        from lapse.kv.aio.threads import ThreadedStore
        from lapse.kv.rocksdb.opening import open_store as open_rocksdb

        return ThreadedStore(await asyncio.to_thread(open_rocksdb, parsed, options))
    from lapse.kv.slatedb.opening import open_store

    return await open_store(parsed, options)
