"""Reading ranges of SlateDB, in chunks because every call into the engine is expensive; and its transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.kv import row
from lapse.kv.keys import RESERVED, KeyRange, check_key, check_value
from lapse.kv.reads import AsyncSnapshot, Chunks, RawRow
from lapse.kv.slatedb.engine import load
from lapse.kv.ttl import Ttl, TtlLike

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import SlateStore

CHUNK_ROWS = 1_000
_LAST_RESERVED = RESERVED + b"\xff" * 16
_AFTER_RESERVED = RESERVED[:-1] + bytes([RESERVED[-1] + 1])


class Source:
    """The rows of ranges, one after the other, without Lapse's own, with the prefix of their keys taken off."""

    def __init__(self, handle: Any, ranges: list[KeyRange], prefix: bytes = b"") -> None:
        self._handle = handle
        self._ranges = [_behind(prefix, keys) for keys in ranges]
        self._skip = len(prefix)
        self._iterator: Any = None

    async def chunk(self) -> list[RawRow]:
        """Lapse has fewer keys of its own than a chunk has rows, so only the last one of a range can be empty."""
        while self._ranges:
            if self._iterator is None:
                start, end = self._ranges[0].start, self._ranges[0].end
                keys = load().KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
                self._iterator = await self._handle.scan(keys)
            found = await self._iterator.next_batch(CHUNK_ROWS)
            if len(found) < CHUNK_ROWS:
                self._ranges, self._iterator = self._ranges[1:], None
            if rows := self._rows(found):
                return rows
        return []

    def _rows(self, found: list[Any]) -> list[RawRow]:
        skip = self._skip
        if skip:
            return [(kv.key[skip:], kv.value) for kv in found]
        if found and found[0].key <= _LAST_RESERVED:
            return [(kv.key, kv.value) for kv in found if not kv.key.startswith(RESERVED)]
        return [(kv.key, kv.value) for kv in found]


def without_reserved(keys: KeyRange) -> list[KeyRange]:
    """The range as up to two ranges around Lapse's own keys."""
    below = KeyRange(start=keys.start, end=RESERVED if keys.end is None else min(keys.end, RESERVED))
    start = _AFTER_RESERVED if keys.start is None else max(keys.start, _AFTER_RESERVED)
    above = KeyRange(start=start, end=keys.end)
    return [part for part in (below, above) if not part.is_empty]


def _behind(prefix: bytes, keys: KeyRange) -> KeyRange:
    """The range as it lies behind a prefix, if there is one."""
    if not prefix:
        return keys
    end = prefix[:-1] + bytes([prefix[-1] + 1]) if keys.end is None else prefix + keys.end
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
        expires_ms = store.state.expiry_ms(ttl, now_ms)
        raw, options = row.header(created_ms=now_ms, expires_ms=expires_ms) + value, store.put_options(expires_ms)
        self._written.append((key, expires_ms))
        if options is None:
            await self.handle.put(store.prefix + key, raw)
        else:
            await self.handle.put_with_options(store.prefix + key, raw, options)

    async def delete(self, key: bytes) -> None:
        self.read_ms()
        await self.handle.delete(self.store.prefix + check_key(key))

    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        function = self.store.state.merge_function()
        check_value(operand)
        value = check_value(await self.store.call(function, await self.get(key), operand))
        await self.put(key, value, ttl)
        return value

    def chunks(self, keys: KeyRange) -> Chunks:
        """Around Lapse's own keys: to have read the heartbeat would be a conflict with every purge."""
        return super().chunks(keys) if self.store.prefix else Source(self.handle, without_reserved(keys))

    async def commit(self) -> None:
        self.read_ms()
        state = self.store.state
        async with self.store.gate:
            self.store.writes += 1
            for key, expires_ms in self._written:
                state.written.note(key, expires_ms)
            await self.store.settle(await self.release().commit())

    async def close(self) -> None:
        if self.is_open:
            await self.release().rollback()

    async def rollback(self) -> None:
        await self.close()
