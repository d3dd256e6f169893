"""`lapse.kv.open`: from a URL to a store of either engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Unpack

from lapse.kv.base import AsyncStore
from lapse.kv.options import OpenOptions, Options
from lapse.kv.runner import Direct, Runner
from lapse.kv.sync import Store
from lapse.kv.url import ROCKSDB, StoreUrl, parse


def open(url: str, **options: Unpack[OpenOptions]) -> Store:
    """Open the store at `url`, creating it if need be.

    `default_ttl` is stored with the database; left out, the stored one stays. `snapshot_lifetime` is fixed when the
    store is created. With `durable` every write waits until it would survive a crash of the machine.
    """
    parsed, read = parse(url), Options(**options)
    runner = Direct() if parsed.engine == ROCKSDB else Runner()
    return Store(runner.run(_engine(parsed, "opening").open_store(parsed, read)), runner)


async def open_async(url: str, **options: Unpack[OpenOptions]) -> AsyncStore:
    """Like `lapse.kv.open`."""
    parsed, read = parse(url), Options(**options)
    store: AsyncStore = await _engine(parsed, "opening").open_store(parsed, read)
    store.in_loop = True
    return store


def require_engine(url: StoreUrl) -> None:
    """Raises MissingExtra where the engine of this store is not installed."""
    _engine(url, "engine").load()


def _engine(url: StoreUrl, module: str) -> Any:
    """Imported when it is needed: either engine may be missing."""
    return import_module(f"lapse.kv.{url.engine}.{module}")
