"""A SlateDB store for code that is not asynchronous."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from lapse.errors import StoreClosed
from lapse.kv.abc import Batch, Reader, Snapshot, Store, Transaction
from lapse.kv.aio.abc import AsyncBatch, AsyncReader, AsyncSnapshot, AsyncStore, AsyncTransaction
from lapse.kv.options import DurationLike, Options
from lapse.kv.slatedb.opening import open_store
from lapse.kv.slatedb.runner import Runner
from lapse.kv.slatedb.scans import Scan
from lapse.kv.ttl import Ttl, TtlLike
from lapse.kv.url import StoreUrl
from lapse.kv.values import Meta, PurgeResult, Stats

T = TypeVar("T")


def open_sync(url: StoreUrl, options: Options) -> Store:
    runner = Runner()
    try:
        return BlockingStore(runner.run(open_store(url, options)), runner)
    except BaseException:
        runner.close()
        raise


class BlockingReader(Reader):
    def __init__(self, reader: AsyncReader, runner: Runner) -> None:
        self._reader = reader
        self._runner = runner

    def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        return self._run(self._reader.get(key, include_expired=include_expired))

    def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        return self._run(self._reader.meta(key, include_expired=include_expired))

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        scan = self._reader.scan(start, end, prefix=prefix, limit=limit, include_expired=include_expired)
        return self._in_chunks(scan) if isinstance(scan, Scan) else self._one_by_one(scan)

    def _in_chunks(self, scan: Scan) -> Iterator[tuple[bytes, bytes]]:
        """The loop is entered once per chunk, not once per row; expiry is still judged for each row."""
        if not self._run(scan.fill()):  # now, not at the first row: this is when the scan begins
            return iter(())
        return self._rows(scan)

    def _rows(self, scan: Scan) -> Iterator[tuple[bytes, bytes]]:
        while True:
            yield from scan.ready()
            if not self._run(scan.fill()):
                return

    def _one_by_one(self, rows: AsyncIterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        async def step() -> tuple[bytes, bytes] | None:
            return await anext(rows, None)

        while (found := self._run(step())) is not None:
            yield found

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner.is_closed:
            work.close()
            raise StoreClosed("the store is closed")
        return self._runner.run(work)


class BlockingSnapshot(BlockingReader, Snapshot):
    def __init__(self, snapshot: AsyncSnapshot, runner: Runner) -> None:
        super().__init__(snapshot, runner)
        self._snapshot = snapshot

    def close(self) -> None:
        if not self._runner.is_closed:
            self._run(self._snapshot.close())


class BlockingTransaction(BlockingReader, Transaction):
    def __init__(self, transaction: AsyncTransaction, runner: Runner) -> None:
        super().__init__(transaction, runner)
        self._transaction = transaction

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._run(self._transaction.put(key, value, ttl))

    def delete(self, key: bytes) -> None:
        self._run(self._transaction.delete(key))

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        return self._run(self._transaction.merge(key, operand, ttl))

    def commit(self) -> None:
        self._run(self._transaction.commit())

    def rollback(self) -> None:
        if not self._runner.is_closed:
            self._run(self._transaction.rollback())


class BlockingBatch(Batch):
    def __init__(self, batch: AsyncBatch, store: BlockingStore) -> None:
        self._batch = batch
        self._store = store

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._batch.put(key, value, ttl)

    def delete(self, key: bytes) -> None:
        self._batch.delete(key)

    def __len__(self) -> int:
        return len(self._batch)

    def commit(self) -> None:
        self._store._run(self._batch.commit())


class BlockingStore(BlockingReader, Store):
    def __init__(self, store: AsyncStore, runner: Runner) -> None:
        super().__init__(store, runner)
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def default_ttl(self) -> timedelta | str | None:
        return self._store.default_ttl

    def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        self._run(self._store.set_default_ttl(ttl))

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._run(self._store.put(key, value, ttl))

    def put_many(self, rows: Iterable[tuple[bytes, bytes]], ttl: TtlLike = Ttl.DEFAULT) -> int:
        return self._run(self._store.put_many(rows, ttl))

    def delete(self, key: bytes) -> None:
        self._run(self._store.delete(key))

    def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        return self._run(self._store.touch(key, ttl))

    def persist(self, key: bytes) -> bool:
        return self._run(self._store.persist(key))

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        return self._run(self._store.merge(key, operand, ttl))

    def batch(self) -> Batch:
        return BlockingBatch(self._store.batch(), self)

    def snapshot(self) -> Snapshot:
        return BlockingSnapshot(self._run(self._store.snapshot()), self._runner)

    def transaction(self) -> Transaction:
        return BlockingTransaction(self._run(self._store.transaction()), self._runner)

    def purge(
        self,
        *,
        within: DurationLike | None = None,
        max_rows: int | None = None,
        rows_per_second: float | None = None,
        stop: threading.Event | None = None,
    ) -> PurgeResult:
        work = self._store.purge(within=within, max_rows=max_rows, rows_per_second=rows_per_second, stop=stop)
        return self._run(work)

    def stats(self, *, count: bool = False) -> Stats:
        return self._run(self._store.stats(count=count))

    def flush(self) -> None:
        self._run(self._store.flush())

    def close(self) -> None:
        if not self._runner.is_closed:
            try:
                self._run(self._store.close())
            finally:
                self._runner.close()
