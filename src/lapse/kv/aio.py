"""Key-value stores with per-row TTL, for asyncio: `lapse.kv.base` as it is. Methods are awaited, but a scan's rows are
taken with `async for`, and of a batch only `commit` waits."""

from typing import Unpack

from lapse.kv.base import AsyncBatch, AsyncStore
from lapse.kv.options import OpenOptions, Options
from lapse.kv.reads import AsyncReader, AsyncSnapshot
from lapse.kv.slatedb.store import AsyncTransaction
from lapse.kv.sync import engine_of
from lapse.kv.url import parse

__all__ = ["AsyncBatch", "AsyncReader", "AsyncSnapshot", "AsyncStore", "AsyncTransaction", "open"]


async def open(url: str, **options: Unpack[OpenOptions]) -> AsyncStore:
    """Like `lapse.kv.open`."""
    parsed, read = parse(url), Options(**options)
    store: AsyncStore = await engine_of(parsed).open_store(parsed, read)
    store.in_loop = True
    return store
