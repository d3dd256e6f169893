"""Transactions of SlateDB, in which the time stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from lapse.kv import row
from lapse.kv.keys import KeyRange, check_key, check_value
from lapse.kv.reads import Chunks, FrozenReader
from lapse.kv.slatedb.keyspace import without_reserved
from lapse.kv.slatedb.scans import Chained, Source
from lapse.kv.ttl import Ttl, TtlLike

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import SlateStore


class AsyncTransaction(FrozenReader):
    store: SlateStore

    def __init__(self, store: SlateStore, handle: Any, read_ms: int) -> None:
        super().__init__(store, handle, read_ms)
        self._written: list[tuple[bytes, int]] = []

    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        now_ms, store = self.read_ms(), self.store
        check_key(key)
        check_value(value)
        expires_ms = store.state.expiry_ms(ttl, now_ms)
        raw, options = row.header(created_ms=now_ms, expires_ms=expires_ms) + value, store.put_options(expires_ms)
        with store.state.engine_errors():
            self._written.append((key, expires_ms))
            if options is None:
                await self.handle.put(store.prefix + key, raw)
            else:
                await self.handle.put_with_options(store.prefix + key, raw, options)

    async def delete(self, key: bytes) -> None:
        self.read_ms()
        with self.store.state.engine_errors():
            await self.handle.delete(self.store.prefix + check_key(key))

    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        function = self.store.state.merge_function()
        check_value(operand)
        value = check_value(await self.store.call(function, await self.get(key), operand))
        await self.put(key, value, ttl)
        return value

    def chunks(self, keys: KeyRange) -> Chunks:
        """Around Lapse's own keys: to have read the heartbeat would be a conflict with every purge."""
        if self.store.prefix:
            return super().chunks(keys)
        return Chained([Source(self.handle, part) for part in without_reserved(keys)])

    async def commit(self) -> None:
        self.read_ms()
        state = self.store.state
        async with self.store.gate:
            self.store.writes += 1
            for key, expires_ms in self._written:
                state.written.note(key, expires_ms)
            with state.engine_errors():
                await self.store.settle(await self.end().commit())

    async def rollback(self) -> None:
        if self.is_open:
            with self.store.state.engine_errors():
                await self.end().rollback()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        await (self.commit() if kind is None else self.rollback())
