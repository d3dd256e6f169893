"""Key-value stores with per-row TTL, for asyncio; what each method does is written in `lapse.kv.sync`."""

from lapse.kv.base import AsyncStore
from lapse.kv.batch import AsyncBatch
from lapse.kv.opening import open_async as open
from lapse.kv.reads import AsyncReader, AsyncSnapshot
from lapse.kv.slatedb.store import AsyncTransaction

__all__ = ["AsyncBatch", "AsyncReader", "AsyncSnapshot", "AsyncStore", "AsyncTransaction", "open"]
