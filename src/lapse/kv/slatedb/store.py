"""A SlateDB store, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lapse.errors import Unsupported
from lapse.kv import format as stored
from lapse.kv.base import AsyncStore
from lapse.kv.budget import Budget
from lapse.kv.keys import KeyRange, check_key, check_value
from lapse.kv.options import MergeFunction
from lapse.kv.reads import Chunks
from lapse.kv.slatedb.compaction import trees
from lapse.kv.slatedb.deadline import Deadline
from lapse.kv.slatedb.engine import SEGMENT, WriterLock, data_files, load, meta_key
from lapse.kv.slatedb.purge import SlatePurge
from lapse.kv.slatedb.views import AsyncTransaction, Source
from lapse.kv.state import Stamp, State
from lapse.kv.ttl import NEVER_MS, TtlLike
from lapse.kv.verify import total_bytes


class Gate:
    """Plain writes pass together; a read-modify-write, or a purge's look-then-delete, waits for them and keeps later
    ones out. Cheaper for the plain write than a lock: no task switch unless another task is alone inside."""

    def __init__(self) -> None:
        self._passing = 0
        self._alone = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_taken(self) -> bool:
        return self._alone.locked()

    async def __aenter__(self) -> None:
        while self._alone.locked():
            async with self._alone:
                pass
        self._passing += 1
        self._empty.clear()

    async def __aexit__(self, *error: object) -> None:
        self._passing -= 1
        if not self._passing:
            self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._alone:
            await self._empty.wait()
            yield


class SlateStore(AsyncStore):
    mark_step_ms = 10_000  # longer than on RocksDB: here every save is an object
    purge_batch_rows = 100

    def __init__(self, *, state: State, handle: Any, admin: Any, deadline: Deadline, lock: WriterLock | None) -> None:
        super().__init__(state=state, handle=handle, gate=Gate(), purge_gate=Gate())
        self.admin = admin
        self.prefix = SEGMENT if state.format.segmented else b""
        self.writes = 0
        self._lock = lock
        self._deadline = deadline
        self._slatedb = load()
        self._write_options = self._slatedb.WriteOptions()
        self._put_options: tuple[int, Any] = (NEVER_MS, None)

    def quick(self, run: Callable[[Any], Any]) -> dict[str, Callable[..., Any]]:
        prefix, fetch = self.prefix, self.handle.raw.get

        def get(key: bytes, *, include_expired: bool = False) -> bytes | None:
            check_key(key)
            if self.is_mark_due(self.read_ms()):
                found: bytes | None = run(self.get(key, include_expired=include_expired))
                return found
            return self.value_of(key, self._deadline.wait_for(fetch(prefix + key)), include_expired)

        return {"get": get}

    # Reading

    def fetch_from(self, handle: Any, key: bytes) -> Awaitable[bytes | None]:
        fetching: Awaitable[bytes | None] = handle.get(self.prefix + key)
        return fetching

    async def fetch_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [await self.fetch_from(self.handle, key) for key in keys]

    def chunks_from(self, handle: Any, keys: KeyRange) -> Chunks:
        return Source(handle, [keys], self.prefix)

    async def chunks_now(self, keys: KeyRange) -> Chunks:
        return self.chunks_from(await self.handle.snapshot(), keys)

    async def pin(self) -> Any:
        if self.state.options.read_only:
            hint = "open it for writing, or read it directly"
            raise Unsupported("a SlateDB store opened read-only has no snapshots", hint=hint)
        return await self.handle.snapshot()

    async def transaction(self) -> AsyncTransaction:
        self.state.check_writable()
        now_ms = self.read_ms()
        level = self._slatedb.IsolationLevel.SERIALIZABLE_SNAPSHOT
        return AsyncTransaction(self, await self.handle.begin(level), now_ms)

    async def meta_value(self, name: bytes) -> bytes | None:
        value: bytes | None = await self.handle.get(meta_key(name))
        return value

    async def size(self) -> int:
        path = self.state.url.path
        if path is None:
            manifest = await self.admin.read_manifest(None)
            return sum(tree.bytes for tree in trees(manifest)) if manifest else 0
        return total_bytes(data_files(path))

    # Writing

    async def put_row(self, key: bytes, raw: bytes, stamp: Stamp) -> None:
        stamp.group.note(key)
        self.writes += 1
        options = self.put_options(stamp.expires_ms)
        if options is None:
            done = await self.handle.put(self.prefix + key, raw)
        else:
            done = await self.handle.put_with_options(self.prefix + key, raw, options, self._write_options)
        if self.state.options.durable:
            await self.settle(done)

    async def write(self, rows: Sequence[Any], ttl: TtlLike, deletes: Sequence[bytes] = ()) -> int:
        state, batch, prefix = self.state, self._slatedb.WriteBatch(), self.prefix
        for found in rows:
            check_key(found[0])
            check_value(found[1])
        now_ms = state.clock.now_ms()
        for key, value, *own in rows:
            stamp = state.stamp(own[0] if own else ttl, now_ms)
            stamp.group.note(key)
            options = self.put_options(stamp.expires_ms)
            if options is None:
                batch.put(prefix + key, stamp.head + value)
            else:
                batch.put_with_options(prefix + key, stamp.head + value, options)
        for key in deletes:
            batch.delete(prefix + key)
        if now_ms - state.mark_ms >= self.mark_step_ms:
            batch.put(meta_key(stored.MARK_KEY), stored.pack_mark(now_ms))
            state.mark_ms = now_ms
        state.written.shrink()
        self.writes += 1
        await self.settle(await self.handle.write(batch))
        return len(rows)

    async def delete_rows(self, keys: Sequence[bytes]) -> None:
        batch = self._slatedb.WriteBatch()
        for key in keys:
            batch.delete(self.prefix + key)
        if keys:
            await self.handle.write(batch)

    def version(self) -> int:
        return self.writes

    def put_options(self, expires_ms: int) -> Any:
        """What the engine is told: the row may be purged once no snapshot can see it alive any more. None where it
        never expires for the engine, which is opened without a default TTL."""
        known_ms, options = self._put_options
        if expires_ms == known_ms:
            return options
        slatedb, format = self._slatedb, self.state.format
        if expires_ms == NEVER_MS or not format.engine_expiry:
            return None
        options = slatedb.PutOptions(ttl=slatedb.Ttl.EXPIRE_AT_MILLIS(expires_ms + format.snapshot_lifetime_ms))
        self._put_options = expires_ms, options
        return options

    async def settle(self, done: Any) -> None:
        """Wait until a write would survive a crash, where that was asked for."""
        if self.state.options.durable and done is not None:
            with self._deadline:
                await done.await_durable()

    async def call(self, function: MergeFunction, existing: bytes | None, operand: bytes) -> bytes:
        return await asyncio.to_thread(function, existing, operand)

    # Maintenance

    def new_purge(self, budget: Budget) -> SlatePurge:
        return SlatePurge(self, budget)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def put_meta(self, values: dict[bytes, bytes]) -> None:
        batch = self._slatedb.WriteBatch()
        for name, value in values.items():
            batch.put(meta_key(name), value)
        await self.handle.write(batch)

    async def sync(self) -> None:
        await self.handle.flush()

    async def close_engine(self) -> None:
        try:
            await self.handle.shutdown()
        finally:
            if self._lock is not None:
                self._lock.release()
