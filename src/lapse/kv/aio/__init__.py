"""Key-value stores with per-row TTL, for asyncio."""

from lapse.kv.aio.abc import AsyncBatch, AsyncReader, AsyncSnapshot, AsyncStore, AsyncTransaction
from lapse.kv.aio.opening import open

__all__ = ["AsyncBatch", "AsyncReader", "AsyncSnapshot", "AsyncStore", "AsyncTransaction", "open"]
