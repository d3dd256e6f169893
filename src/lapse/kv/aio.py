"""Key-value stores with per-row TTL, for asyncio; what each method does is written in `lapse.kv.abc`."""

from lapse.kv.base import AsyncBatch, AsyncStore
from lapse.kv.opening import open_async as open
from lapse.kv.reads import AsyncReader, AsyncSnapshot
from lapse.kv.slatedb.views import AsyncTransaction

__all__ = ["AsyncBatch", "AsyncReader", "AsyncSnapshot", "AsyncStore", "AsyncTransaction", "open"]
