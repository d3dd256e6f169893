"""The front door: one URL, one store, whatever the engine."""

from __future__ import annotations

import asyncio
from typing import Unpack

from lapse.kv.abc import Store
from lapse.kv.base import AsyncStore
from lapse.kv.options import OpenOptions, Options
from lapse.kv.url import ROCKSDB, StoreUrl, parse


def open(url: str, **options: Unpack[OpenOptions]) -> Store:
    """Open the store at `url`, creating it if need be.

    `default_ttl` is stored with the database; left out, the stored one stays. `snapshot_lifetime` is fixed when the
    store is created. With `durable` every write waits until it would survive a crash of the machine.
    """
    parsed, read = parse(url), Options(**options)
    from lapse.kv.adapt import blocking
    from lapse.kv.runner import Direct, Runner

    if parsed.engine == ROCKSDB:
        from lapse.kv.rocksdb.opening import open_store

        return blocking(lambda: open_store(parsed, read), Direct())
    from lapse.kv.slatedb.opening import open_store as open_slatedb

    return blocking(lambda: open_slatedb(parsed, read), Runner())


async def open_async(url: str, **options: Unpack[OpenOptions]) -> AsyncStore:
    """Like `lapse.kv.open`. SlateDB is asynchronous itself; RocksDB's calls run in a thread."""
    parsed, read = parse(url), Options(**options)
    if parsed.engine == ROCKSDB:
        from lapse.kv.adapt import threaded
        from lapse.kv.rocksdb.opening import open_store as open_rocksdb
        from lapse.kv.runner import Direct

        return threaded(await asyncio.to_thread(Direct().run, open_rocksdb(parsed, read)))
    from lapse.kv.slatedb.opening import open_store

    return await open_store(parsed, read)


def require_engine(url: StoreUrl) -> None:
    """Raises MissingExtra where the engine of this store is not installed."""
    if url.engine == ROCKSDB:
        from lapse.kv.rocksdb.engine import load
    else:
        from lapse.kv.slatedb.engine import load
    load()
