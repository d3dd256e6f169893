"""Snapshots and transactions of SlateDB, in which the time stands still.

SlateDB's own compaction removes rows under an open snapshot once they have expired. It is therefore told an
expiry that lies `snapshot_lifetime` later than the real one: up to that age a snapshot finds everything it
may see, and after it reads are refused rather than answered wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import finalize

from lapse.errors import SnapshotTooOld, StoreClosed
from lapse.kv import row
from lapse.kv.aio.abc import AsyncSnapshot, AsyncTransaction
from lapse.kv.clock import StoppedClock
from lapse.kv.keys import KeyRange, check_value
from lapse.kv.slatedb.engine import engine_errors
from lapse.kv.slatedb.keyspace import check_user_key, without_reserved
from lapse.kv.slatedb.reads import SlateReader
from lapse.kv.slatedb.scans import Chained, Chunks, Source
from lapse.kv.state import Written
from lapse.kv.ttl import Ttl, TtlLike

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import SlateStore


class FrozenReader(SlateReader):
    def __init__(self, store: SlateStore, handle: Any, read_ms: int) -> None:
        self.shared = store
        self.store = store
        self.handle = handle
        self.clock = StoppedClock(read_ms)
        self._read_ms = read_ms
        reader = store.state.reader_opened(read_ms)
        # A snapshot that is forgotten rather than closed must not hold up every purge from then on.
        self._forget = finalize(self, store.state.reader_closed, reader)

    def read_ms(self) -> int:
        if not self._forget.alive or self.store.state.closed:
            raise StoreClosed("the snapshot or transaction has ended")
        format = self.store.state.format
        if format.engine_expiry:
            age_ms = self.store.state.clock.now_ms() - self._read_ms
            if age_ms >= format.snapshot_lifetime_ms:
                raise SnapshotTooOld(
                    f"opened {age_ms} ms ago, but expired rows may be purged after {format.snapshot_lifetime_ms} ms",
                    hint="read faster, or create the store with a longer snapshot_lifetime",
                )
        return self._read_ms

    def end(self) -> Any:
        handle, self.handle = self.handle, None
        self._forget()
        return handle


class SlateSnapshot(FrozenReader, AsyncSnapshot):
    async def close(self) -> None:
        self.end()


class SlateTransaction(FrozenReader, AsyncTransaction):
    def __init__(self, store: SlateStore, handle: Any, read_ms: int) -> None:
        super().__init__(store, handle, read_ms)
        self._written = Written()

    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        now_ms = self.read_ms()
        check_user_key(key)
        check_value(value)
        expires_ms = self.store.state.expiry_ms(ttl, now_ms)
        raw = row.header(created_ms=now_ms, expires_ms=expires_ms) + value
        with engine_errors(self.store.state.url):
            self._written.add(expires_ms)
            await self.store.put_into(self.handle, key, raw, expires_ms)

    async def delete(self, key: bytes) -> None:
        self.read_ms()
        with engine_errors(self.store.state.url):
            self._written.rows += 1
            await self.handle.delete(check_user_key(key))

    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        function = self.store.state.merge_function()
        check_value(operand)
        existing = await self.get(key)
        value = check_value(function(existing, operand))
        await self.put(key, value, ttl)
        return value

    def chunks(self, keys: KeyRange) -> Chunks:
        """Around Lapse's own keys: to have read the heartbeat would be a conflict with every purge."""
        return Chained([Source(self.handle, part) for part in without_reserved(keys)])

    async def commit(self) -> None:
        self.read_ms()
        state = self.store.state
        await self.store.gate.enter()
        try:
            state.written.absorb(self._written)
            with engine_errors(state.url):
                done = await self.end().commit()
                if done is not None and state.options.durable:
                    await done.await_durable()
        finally:
            self.store.gate.leave()

    async def rollback(self) -> None:
        if self._forget.alive:
            with engine_errors(self.store.state.url):
                await self.end().rollback()
