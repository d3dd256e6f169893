"""A synchronous store for asyncio: each call runs in a thread, a scan in chunks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import timedelta
from itertools import islice

from lapse.kv.abc import Batch, Reader, Snapshot, Store
from lapse.kv.aio.abc import AsyncBatch, AsyncReader, AsyncSnapshot, AsyncStore, AsyncTransaction
from lapse.kv.options import DurationLike
from lapse.kv.ttl import Ttl, TtlLike
from lapse.kv.values import Meta, PurgeResult, Stats

CHUNK_ROWS = 64
"""Rows read ahead in a thread. Each is judged when it is read, so a short stretch: a consumer that stops in
the middle is handed at most this many rows that expired while it paused."""


class ThreadedScan(AsyncIterator[tuple[bytes, bytes]]):
    def __init__(self, rows: Iterator[tuple[bytes, bytes]]) -> None:
        self._rows = rows
        self._read: deque[tuple[bytes, bytes]] = deque()

    async def __anext__(self) -> tuple[bytes, bytes]:
        if not self._read:
            self._read.extend(await asyncio.to_thread(lambda: list(islice(self._rows, CHUNK_ROWS))))
            if not self._read:
                raise StopAsyncIteration
        return self._read.popleft()


class ThreadedReader(AsyncReader):
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        return await asyncio.to_thread(self._reader.get, key, include_expired=include_expired)

    async def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        return await asyncio.to_thread(self._reader.meta, key, include_expired=include_expired)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        return ThreadedScan(
            self._reader.scan(start, end, prefix=prefix, limit=limit, include_expired=include_expired)
        )


class ThreadedSnapshot(ThreadedReader, AsyncSnapshot):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._snapshot = snapshot

    async def close(self) -> None:
        await asyncio.to_thread(self._snapshot.close)


class ThreadedBatch(AsyncBatch):
    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._batch.put(key, value, ttl)

    def delete(self, key: bytes) -> None:
        self._batch.delete(key)

    def __len__(self) -> int:
        return len(self._batch)

    async def commit(self) -> None:
        await asyncio.to_thread(self._batch.commit)


class ThreadedStore(ThreadedReader, AsyncStore):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def default_ttl(self) -> timedelta | str | None:
        return self._store.default_ttl

    async def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        await asyncio.to_thread(self._store.set_default_ttl, ttl)

    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        await asyncio.to_thread(self._store.put, key, value, ttl)

    async def put_many(self, rows: Iterable[tuple[bytes, bytes]], ttl: TtlLike = Ttl.DEFAULT) -> int:
        return await asyncio.to_thread(self._store.put_many, rows, ttl)

    async def delete(self, key: bytes) -> None:
        await asyncio.to_thread(self._store.delete, key)

    async def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        return await asyncio.to_thread(self._store.touch, key, ttl)

    async def persist(self, key: bytes) -> bool:
        return await asyncio.to_thread(self._store.persist, key)

    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        return await asyncio.to_thread(self._store.merge, key, operand, ttl)

    def batch(self) -> AsyncBatch:
        return ThreadedBatch(self._store.batch())

    async def snapshot(self) -> AsyncSnapshot:
        return ThreadedSnapshot(await asyncio.to_thread(self._store.snapshot))

    async def transaction(self) -> AsyncTransaction:
        self._store.transaction()
        raise AssertionError("no engine behind threads has transactions")

    async def purge(
        self,
        *,
        within: DurationLike | None = None,
        max_rows: int | None = None,
        rows_per_second: float | None = None,
    ) -> PurgeResult:
        return await asyncio.to_thread(
            self._store.purge, within=within, max_rows=max_rows, rows_per_second=rows_per_second
        )

    async def stats(self, *, count: bool = False) -> Stats:
        return await asyncio.to_thread(self._store.stats, count=count)

    async def flush(self) -> None:
        await asyncio.to_thread(self._store.flush)

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)
