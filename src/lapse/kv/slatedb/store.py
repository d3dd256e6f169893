"""A SlateDB store, its transactions, and its scans: in chunks, because every call into the engine is expensive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from itertools import repeat
from typing import Any

from lapse.errors import Unsupported
from lapse.kv import row
from lapse.kv.base import AsyncStore
from lapse.kv.keys import RESERVED, CheckedRows, KeyRange, check_key, check_value, successor
from lapse.kv.options import Budget, MergeFunction
from lapse.kv.reads import AsyncSnapshot, Chunks, RawRow
from lapse.kv.slatedb.engine import SEGMENT, TimeLimit, data_files, load, meta_key, new_batch
from lapse.kv.slatedb.purge import SlatePurge, tree_bytes, trees
from lapse.kv.state import Stamp, State
from lapse.kv.ttl import NEVER_MS, Ttl, TtlLike, plain_ttl
from lapse.kv.verify import total_bytes

CHUNK_ROWS = 1_000


class Gate:
    """Plain writes pass together; a read-modify-write, or a purge's look-then-delete, waits for them and keeps later
    ones out. Cheaper for the plain write than a lock: no task switch unless another task is alone inside."""

    def __init__(self) -> None:
        self.passing: set[int] = set()
        self.alone_inside: int | None = None
        self.waiting: list[Any] = []

    @property
    def is_taken(self) -> bool:
        return self.alone_inside is not None

    def beside(self) -> Passage:
        return Passage(self)

    def alone(self) -> Passage:
        return Passage(self, is_alone=True)


class Passage:
    """Through a gate, once. It is over at the latest when the coroutine is gone that made it: an interrupt of the user
    may end that between any two steps."""

    def __init__(self, gate: Gate, *, is_alone: bool = False) -> None:
        self._gate = gate
        self._is_alone = is_alone

    async def __aenter__(self) -> None:
        gate = self._gate
        while gate.alone_inside is not None:
            await self._change()
        if not self._is_alone:
            gate.passing.add(id(self))
            return
        gate.alone_inside = id(self)
        try:
            while gate.passing:
                await self._change()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def __del__(self) -> None:
        if self._gate.alone_inside == id(self) or id(self) in self._gate.passing:
            self._leave()

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._gate.waiting.append(future)
        await future

    def _leave(self) -> None:
        gate = self._gate
        if gate.alone_inside == id(self):
            gate.alone_inside = None
        gate.passing.discard(id(self))
        while gate.waiting:
            if not gate.waiting[-1].done():
                gate.waiting[-1].set_result(None)
            gate.waiting.pop()


class SlateStore(AsyncStore):
    mark_step_ms = 10_000  # longer than on RocksDB: here every save is an object
    purge_batch_rows = 100

    def __init__(self, *, state: State, handle: Any, admin: Any, limit: TimeLimit, lock: ExitStack) -> None:
        super().__init__(state=state, handle=handle, gate=Gate(), purge_gate=Gate())
        self.admin = admin
        self.prefix = SEGMENT if state.format.segmented else b""
        self.writes = 0
        self._lock = lock
        self._limit = limit
        self._slatedb = load()
        self._write_options = self._slatedb.WriteOptions()
        self._put_options: tuple[int, Any] = (NEVER_MS, None)

    # Reading

    def fetch_from(self, handle: Any, key: bytes) -> Awaitable[bytes | None]:
        fetching: Awaitable[bytes | None] = handle.get(self.prefix + key)
        return fetching

    async def fetch_rows(self, keys: Sequence[bytes]) -> list[RawRow]:
        return [(key, raw) for key in keys if (raw := await self.fetch_from(self.handle, key)) is not None]

    def chunks_from(self, handle: Any, keys: KeyRange) -> Chunks:
        return Source(handle, keys, self.prefix)

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
            return sum(map(tree_bytes, trees(manifest).values())) if manifest else 0
        return total_bytes(data_files(path))

    # Writing

    async def put_row(self, key: bytes, raw: bytes, stamp: Stamp) -> None:
        stamp.group.note(key)
        self.writes += 1
        await self.settle(await self.put_into(self.handle, key, raw, stamp.expires_ms, self._write_options))

    async def write(self, rows: CheckedRows, ttl: TtlLike, deletes: Sequence[bytes] = ()) -> None:
        state, batch = self.state, new_batch()
        now_ms = state.clock.now_ms()
        for key, value, own in zip(rows.keys, rows.values, rows.ttls or repeat(ttl), strict=False):
            stamp = state.stamp(own, now_ms)
            stamp.group.note(key)
            self.put_into(batch, key, stamp.head + value, stamp.expires_ms)
        for key in deletes:
            batch.delete(self.prefix + key)
        state.written.shrink()
        self.writes += 1
        await self.settle(await self.handle.write(batch))

    async def delete_rows(self, keys: Sequence[bytes]) -> None:
        batch = new_batch()
        for key in keys:
            batch.delete(self.prefix + key)
        if keys:
            await self.handle.write(batch)

    def version(self) -> int:
        return self.writes

    def put_into(self, target: Any, key: bytes, raw: bytes, expires_ms: int, *more: Any) -> Any:
        """By a method of the database, a batch or a transaction. The engine is told that the row may be purged once no
        snapshot can see it alive any more; nothing where it never expires, as it is opened without a default TTL."""
        format = self.state.format
        if expires_ms == NEVER_MS or not format.engine_expiry:
            return target.put(self.prefix + key, raw)
        known_ms, options = self._put_options
        if expires_ms != known_ms:
            slatedb = self._slatedb
            options = slatedb.PutOptions(ttl=slatedb.Ttl.EXPIRE_AT_MILLIS(expires_ms + format.snapshot_lifetime_ms))
            self._put_options = expires_ms, options
        return target.put_with_options(self.prefix + key, raw, options, *more)

    async def settle(self, done: Any) -> None:
        """Wait until a write would survive a crash, where that was asked for."""
        if self.state.options.durable and done is not None:
            await self._limit.wait_for(done.await_durable())

    async def call(self, function: MergeFunction, existing: bytes | None, operand: bytes) -> bytes:
        return await asyncio.to_thread(function, existing, operand)

    # Maintenance

    def new_purge(self, budget: Budget) -> SlatePurge:
        return SlatePurge(self, budget)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def put_meta(self, values: dict[bytes, bytes]) -> None:
        batch = new_batch()
        for name, value in values.items():
            batch.put(meta_key(name), value)
        await self.handle.write(batch)

    async def sync(self) -> None:
        await self.handle.flush()

    async def close_engine(self) -> None:
        with self._lock:
            await self.handle.shutdown()


class Source:
    """The rows of a range without Lapse's own keys, with the prefix of their keys taken off."""

    def __init__(self, handle: Any, keys: KeyRange, prefix: bytes) -> None:
        self._handle = handle
        self._ranges = [_behind(prefix, keys)] if prefix else without_reserved(keys)
        self._skip = len(prefix)
        self._iterator: Any = None

    async def chunk(self) -> list[RawRow]:
        while self._ranges:
            if self._iterator is None:
                start, end = self._ranges[0].start, self._ranges[0].end
                keys = load().KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
                self._iterator = await self._handle.scan(keys)
            found = await self._iterator.next_batch(CHUNK_ROWS)
            if len(found) < CHUNK_ROWS:
                self._ranges, self._iterator = self._ranges[1:], None
            if found:
                skip = self._skip
                return [(kv.key[skip:] if skip else kv.key, kv.value) for kv in found]
        return []


def without_reserved(keys: KeyRange) -> list[KeyRange]:
    """The range as up to two ranges around Lapse's own keys. For a transaction, to have read the heartbeat would be a
    conflict with every purge."""
    below = KeyRange(start=keys.start, end=RESERVED if keys.end is None else min(keys.end, RESERVED))
    above = KeyRange(start=max(keys.start or b"", successor(RESERVED) or b""), end=keys.end)
    return [part for part in (below, above) if not part.is_empty]


def _behind(prefix: bytes, keys: KeyRange) -> KeyRange:
    """The range as it lies behind a prefix."""
    end = successor(prefix) if keys.end is None else prefix + keys.end
    return KeyRange(start=prefix + (keys.start or b""), end=end)


class AsyncTransaction(AsyncSnapshot):
    store: SlateStore

    def __init__(self, store: SlateStore, handle: Any, read_ms: int) -> None:
        super().__init__(store, handle, read_ms)
        self._written: list[tuple[bytes, int]] = []

    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        now_ms, store = self.read_ms(), self.store
        check_key(key)
        check_value(value)
        expires_ms = store.state.expiry_ms(plain_ttl(ttl), now_ms)
        self._written.append((key, expires_ms))
        raw = row.header(created_ms=now_ms, expires_ms=expires_ms) + value
        await store.put_into(self.handle, key, raw, expires_ms)

    async def delete(self, key: bytes) -> None:
        self.read_ms()
        await self.handle.delete(self.store.prefix + check_key(key))

    async def commit(self) -> None:
        self.read_ms()
        state = self.store.state
        async with self.store.gate.beside():
            self.store.writes += 1
            for key, expires_ms in self._written:
                state.written.note(key, expires_ms)
            await self.store.settle(await self.release().commit())

    async def close(self) -> None:
        if self.is_open:
            await self.release().rollback()

    async def rollback(self) -> None:
        await self.close()
