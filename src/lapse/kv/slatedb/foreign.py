"""A SlateDB store that Lapse did not write: read-only, with the engine's own expiry honoured strictly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from lapse.kv.aio.foreign import AsyncForeignStoreBase
from lapse.kv.clock import StoreClock
from lapse.kv.keys import check_key, check_limit, read_range
from lapse.kv.row import Row
from lapse.kv.slatedb.engine import engine_errors, load
from lapse.kv.ttl import NEVER_MS
from lapse.kv.url import StoreUrl
from lapse.kv.values import Meta, meta_of

_CHUNK_ROWS = 1_000


class ForeignSlateStore(AsyncForeignStoreBase):
    def __init__(self, *, url: StoreUrl, reader: Any, clock: StoreClock) -> None:
        super().__init__(url)
        self._reader = reader
        self._clock = clock

    async def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        found = await self._row(key, include_expired)
        return None if found is None else found.value

    async def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        found = await self._row(key, include_expired)
        return None if found is None else meta_of(found, self._clock.now_ms())

    async def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        keys, left = read_range(start, end, prefix), check_limit(limit)
        if keys.is_empty or left == 0:
            return
        bounds = load().KeyRange(start=keys.start, start_inclusive=True, end=keys.end, end_inclusive=False)
        with engine_errors(self._url):
            iterator, count = await self._reader.scan(bounds), 0
            while rows := await iterator.next_batch(_CHUNK_ROWS):
                for entry in rows:
                    found = _read(entry)
                    if found.expires_ms <= self._clock.now_ms() and not include_expired:
                        continue
                    yield found.key, found.value
                    count += 1
                    if count == left:
                        return

    async def close(self) -> None:
        with engine_errors(self._url):
            await self._reader.shutdown()

    async def _row(self, key: bytes, include_expired: bool) -> Row | None:
        check_key(key)
        with engine_errors(self._url):
            entry = await self._reader.get_key_value(key)
        if entry is None:
            return None
        found = _read(entry)
        return found if include_expired or found.expires_ms > self._clock.now_ms() else None


def _read(entry: Any) -> Row:
    return Row(
        key=entry.key,
        value=entry.value,
        created_ms=entry.create_ts,
        expires_ms=NEVER_MS if entry.expire_ts is None else entry.expire_ts,
    )
