"""A synchronous store for asyncio: each call runs in a thread, a scan in chunks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import Protocol, runtime_checkable

from lapse.kv.abc import Batch, Reader, Snapshot, Store
from lapse.kv.aio.abc import AsyncBatch, AsyncReader, AsyncSnapshot, AsyncStore, AsyncTransaction
from lapse.kv.keys import KeyRange, check_limit, read_range
from lapse.kv.options import DurationLike
from lapse.kv.ttl import Ttl, TtlLike
from lapse.kv.values import Meta, PurgeResult, Stats

CHUNK_ROWS = 256

Rows = Iterator[tuple[bytes, bytes]]


@runtime_checkable
class Judging(Protocol):
    """A reader whose rows can be read in a thread and judged, row by row, when they are handed out."""

    def raw_rows(self, keys: KeyRange) -> Rows: ...
    def judge(self, rows: Rows, limit: int | None, include_expired: bool) -> Rows: ...


class ThreadedScan(AsyncIterator[tuple[bytes, bytes]]):
    """`judge` turns stored rows into live ones, lazily: a consumer may pause for hours between two rows."""

    def __init__(self, rows: Rows, judge: Callable[[Rows, int | None], Rows], limit: int | None) -> None:
        self._rows = rows
        self._judge = judge
        self._judged: Rows = iter(())
        self._left = limit
        self._is_done = limit == 0

    async def __anext__(self) -> tuple[bytes, bytes]:
        while True:
            found = next(self._judged, None)
            if found is not None:
                if self._left is not None:
                    self._left -= 1
                    self._is_done = self._is_done or not self._left
                return found
            if self._is_done:
                raise StopAsyncIteration
            chunk = await asyncio.to_thread(lambda: list(islice(self._rows, CHUNK_ROWS)))
            self._is_done = len(chunk) < CHUNK_ROWS
            self._judged = self._judge(iter(chunk), self._left)


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
        reader = self._reader
        if not isinstance(reader, Judging):
            rows = reader.scan(start, end, prefix=prefix, limit=limit, include_expired=include_expired)
            return ThreadedScan(rows, lambda chunk, left: chunk, limit)
        keys, limit = read_range(start, end, prefix), check_limit(limit)
        return ThreadedScan(
            iter(()) if keys.is_empty else reader.raw_rows(keys),
            lambda chunk, left: reader.judge(chunk, left, include_expired),
            limit,
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
        stop: threading.Event | None = None,
    ) -> PurgeResult:
        return await asyncio.to_thread(
            self._store.purge, within=within, max_rows=max_rows, rows_per_second=rows_per_second, stop=stop
        )

    async def stats(self, *, count: bool = False) -> Stats:
        return await asyncio.to_thread(self._store.stats, count=count)

    async def flush(self) -> None:
        await asyncio.to_thread(self._store.flush)

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)
