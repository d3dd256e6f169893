"""A SlateDB store, for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from lapse.errors import LapseError, StoreClosed, Unsupported
from lapse.kv import format as stored
from lapse.kv import row
from lapse.kv.aio.abc import AsyncBatch, AsyncSnapshot, AsyncStore, AsyncTransaction
from lapse.kv.buckets import BucketMap
from lapse.kv.budget import Budget
from lapse.kv.keys import check_value
from lapse.kv.options import DurationLike
from lapse.kv.row import HEADER_BYTES, LIVE_END, VALUE, live_from
from lapse.kv.slatedb import purge as purging
from lapse.kv.slatedb import statistics
from lapse.kv.slatedb.engine import WriterLock, engine_errors, load, translate
from lapse.kv.slatedb.gate import Gate
from lapse.kv.slatedb.keyspace import bucket_prefix, check_user_key, meta_key
from lapse.kv.slatedb.reads import SlateReader
from lapse.kv.slatedb.scans import Scan
from lapse.kv.slatedb.views import SlateSnapshot, SlateTransaction
from lapse.kv.state import State
from lapse.kv.ttl import NEVER_MS, Ttl, TtlLike, read_default
from lapse.kv.values import PurgeResult, Stats

MARK_STEP_MS = 10_000
"""How far the clock moves before its mark is saved again. Longer than on RocksDB: here every save is an
object."""

_PLAIN = object()
"""A put without options: the engine is opened without a default TTL, so such a row never expires for it."""

Change = tuple[bytes, bytes | None, int]
"""Key, stored bytes (None deletes), expiry."""


class SlateStore(SlateReader, AsyncStore):
    def __init__(
        self,
        *,
        state: State,
        handle: Any,
        admin: Any,
        recorder: Any,
        buckets: BucketMap | None,
        lock: WriterLock | None,
    ) -> None:
        self.state = state
        self.clock = state.clock
        self.shared = self
        self.handle = handle
        self.admin: Any = admin
        self.recorder = recorder
        self.buckets = buckets
        self.gate = Gate()
        self.purge_gate = Gate()
        self.scans: WeakSet[Scan] = WeakSet()
        self._lock = lock
        self._slatedb = load()
        self._write_options = self._slatedb.WriteOptions()

    @property
    def url(self) -> str:
        return str(self.state.url)

    @property
    def default_ttl(self) -> timedelta | str | None:
        default = self.state.default
        if default is None:
            return None
        return str(default) if default.millis is None else default.interval.timedelta

    async def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        self.state.check_writable()
        default = read_default(ttl)
        await self.put_meta(stored.DEFAULT_TTL_KEY, stored.pack_default(default))
        await self.flush()
        self.state.default = default

    def read_ms(self) -> int:
        if self.state.closed:
            raise StoreClosed(f"{self.url} is closed")
        return self.state.clock.now_ms()

    async def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        check_user_key(key)
        if self.read_ms() - self.state.mark_ms >= MARK_STEP_MS:
            await self.save_mark(self.read_ms())
        if self.buckets is None:
            try:
                raw: bytes | None = await self.handle.get(key)
            except Exception as error:
                raise translate(self.state.url, error) from error
        else:
            raw = await self.fetch(key)
        if raw is None:
            return None
        # The time is that of the answer: the row may have expired while the engine looked for it.
        now_ms = self.state.clock.now_ms()
        if live_from(now_ms) <= raw < LIVE_END and len(raw) >= HEADER_BYTES:
            return raw[VALUE]
        found = self.state.visible(key, raw, now_ms, include_expired)
        return None if found is None else found.value

    # Writing

    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self.state.check_writable()
        check_user_key(key)
        check_value(value)
        if not self.gate.try_enter():
            await self.gate.enter()
        try:
            now_ms = self.state.clock.now_ms()
            expires_ms = self.state.expiry_ms(ttl, now_ms)
            raw = row.header(created_ms=now_ms, expires_ms=expires_ms) + value
            if self.buckets is None and now_ms - self.state.mark_ms < MARK_STEP_MS:
                self.state.written.add(expires_ms)
                await self._put_one(key, raw, expires_ms)
            else:
                await self.write([(key, raw, expires_ms)], now_ms)
        finally:
            self.gate.leave()

    async def put_many(self, rows: Iterable[tuple[bytes, bytes]], ttl: TtlLike = Ttl.DEFAULT) -> int:
        self.state.check_writable()
        checked = [(check_user_key(key), check_value(value)) for key, value in rows]
        await self.gate.enter()
        try:
            now_ms = self.state.clock.now_ms()
            expires_ms = self.state.expiry_ms(ttl, now_ms)
            head = row.header(created_ms=now_ms, expires_ms=expires_ms)
            return await self.write([(key, head + value, expires_ms) for key, value in checked], now_ms)
        finally:
            self.gate.leave()

    async def delete(self, key: bytes) -> None:
        self.state.check_writable()
        check_user_key(key)
        await self.gate.enter()
        try:
            await self.write([(key, None, 0)], self.state.clock.now_ms())
        finally:
            self.gate.leave()

    async def write(self, changes: list[Change], now_ms: int) -> int:
        """All together; the caller is inside the gate."""
        if not changes:
            return 0
        state, batch = self.state, self._slatedb.WriteBatch()
        prefix, deletes_uncover = self._bucket_for(changes, now_ms, batch)
        options, options_for = None, None
        for key, raw, expires_ms in changes:
            if raw is not None:
                state.written.add(expires_ms)
                if options is None or options_for != expires_ms:
                    options, options_for = self.put_options(expires_ms), expires_ms
                if options is _PLAIN:
                    batch.put(prefix + key, raw)
                else:
                    batch.put_with_options(prefix + key, raw, options)
                continue
            state.written.rows += 1
            if deletes_uncover:
                batch.put(prefix + key, row.tombstone(created_ms=now_ms))
            else:
                batch.delete(prefix + key)
        if now_ms - state.mark_ms >= MARK_STEP_MS:
            batch.put(meta_key(stored.MARK_KEY), stored.pack_mark(now_ms))
            state.mark_ms = now_ms
        with engine_errors(state.url):
            await self._settle(await self.handle.write(batch))
        return len(changes)

    async def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        self.state.check_writable()
        async with self.gate.alone():
            now_ms = self.state.clock.now_ms()
            expires_ms = self.state.expiry_ms(ttl, now_ms)
            found = await self.row(key, now_ms)
            if found is None:
                return False
            head = row.header(created_ms=found.created_ms, expires_ms=expires_ms)
            await self.write([(key, head + found.value, expires_ms)], now_ms)
            return True

    async def persist(self, key: bytes) -> bool:
        return await self.touch(key, Ttl.NO_EXPIRY)

    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        self.state.check_writable()
        function = self.state.merge_function()
        check_value(operand)
        async with self.gate.alone():
            now_ms = self.state.clock.now_ms()
            expires_ms = self.state.expiry_ms(ttl, now_ms)
            found = await self.row(key, now_ms)
            value = check_value(function(None if found is None else found.value, operand))
            raw = row.header(created_ms=now_ms, expires_ms=expires_ms) + value
            await self.write([(key, raw, expires_ms)], now_ms)
            return value

    def batch(self) -> AsyncBatch:
        self.state.check_writable()
        return SlateBatch(self)

    async def snapshot(self) -> AsyncSnapshot:
        self._check_views()
        with engine_errors(self.state.url):
            now_ms = self.read_ms()
            await self.save_mark(now_ms)
            return SlateSnapshot(self, await self.handle.snapshot(), now_ms)

    async def transaction(self) -> AsyncTransaction:
        self.state.check_writable()
        self._check_views()
        if self.buckets is not None:
            raise Unsupported(
                "a store with time buckets has no transactions: two versions of a key may lie in two buckets",
                hint="use batch() and snapshot()",
            )
        with engine_errors(self.state.url):
            now_ms = self.read_ms()
            level = self._slatedb.IsolationLevel.SERIALIZABLE_SNAPSHOT
            return SlateTransaction(self, await self.handle.begin(level), now_ms)

    # Keeping house

    async def purge(
        self,
        *,
        within: DurationLike | None = None,
        max_rows: int | None = None,
        rows_per_second: float | None = None,
        stop: threading.Event | None = None,
    ) -> PurgeResult:
        self.state.check_writable()
        budget = Budget.read(within=within, max_rows=max_rows, rows_per_second=rows_per_second)
        try:
            with engine_errors(self.state.url):
                async with self.purge_gate.alone():
                    result = await purging.Purge(self, budget, stop).run()
        except Exception:
            self.state.metrics.purge_failed()
            raise
        self.state.metrics.purge_finished(result, self.state.clock.now_ms())
        return result

    async def stats(self, *, count: bool = False) -> Stats:
        self.state.check_open()
        with engine_errors(self.state.url):
            return await statistics.collect(self, counted=count)

    async def flush(self) -> None:
        self.state.check_open()
        if not self.state.options.read_only:
            with engine_errors(self.state.url):
                await self.handle.flush()

    async def close(self) -> None:
        if self.state.closed:
            return
        self.state.closed = True
        for scan in list(self.scans):
            scan.close()
        try:
            with engine_errors(self.state.url):
                if not self.state.options.read_only:
                    await self.put_meta(stored.MARK_KEY, stored.pack_mark(self.state.clock.now_ms()))
                    await purging.save_bounds(self)
                await self.handle.shutdown()
        finally:
            if self._lock is not None:
                self._lock.release()

    async def put_meta(self, name: bytes, value: bytes) -> None:
        with engine_errors(self.state.url):
            await self.handle.put(meta_key(name), value)

    async def meta_value(self, name: bytes) -> bytes | None:
        value: bytes | None = await self.handle.get(meta_key(name))
        return value

    async def save_mark(self, now_ms: int) -> None:
        state = self.state
        if now_ms - state.mark_ms >= MARK_STEP_MS and not state.options.read_only:
            state.mark_ms = now_ms
            await self.put_meta(stored.MARK_KEY, stored.pack_mark(now_ms))

    def put_options(self, expires_ms: int) -> Any:
        """What the engine is told: the row may be purged once no snapshot can see it alive any more."""
        slatedb, format = self._slatedb, self.state.format
        if expires_ms == NEVER_MS or not format.engine_expiry:
            return _PLAIN
        return slatedb.PutOptions(ttl=slatedb.Ttl.EXPIRE_AT_MILLIS(expires_ms + format.snapshot_lifetime_ms))

    async def put_into(self, transaction: Any, key: bytes, raw: bytes, expires_ms: int) -> None:
        options = self.put_options(expires_ms)
        if options is _PLAIN:
            await transaction.put(key, raw)
        else:
            await transaction.put_with_options(key, raw, options)

    async def _put_one(self, key: bytes, raw: bytes, expires_ms: int) -> None:
        try:
            options = self.put_options(expires_ms)
            if options is _PLAIN:
                done = await self.handle.put(key, raw)
            else:
                done = await self.handle.put_with_options(key, raw, options, self._write_options)
            if self.state.options.durable:
                await done.await_durable()
        except LapseError:
            raise
        except Exception as error:
            raise translate(self.state.url, error) from error

    def _bucket_for(self, changes: list[Change], now_ms: int, batch: Any) -> tuple[bytes, bool]:
        """The prefix of the bucket being written, and whether a plain delete would uncover an older
        bucket."""
        buckets = self.buckets
        if buckets is None:
            return b"", False
        id = buckets.id_for(now_ms)
        buckets.add(id)
        expiries = [expires_ms for _, raw, expires_ms in changes if raw is not None]
        low_ms, high_ms = min(expiries, default=NEVER_MS), max(expiries, default=now_ms)
        if buckets.note(id, min_ms=low_ms, max_ms=high_ms, rows=len(changes)):
            batch.put(meta_key(stored.BUCKETS_KEY), buckets.to_bytes())
        return bucket_prefix(id), id != buckets.ids()[0]

    async def _settle(self, handle: Any) -> None:
        if self.state.options.durable:
            await handle.await_durable()

    def _check_views(self) -> None:
        if self.state.options.read_only:
            raise Unsupported(
                "a SlateDB store opened read-only has no snapshots or transactions",
                hint="open it for writing, or read it directly",
            )


class SlateBatch(AsyncBatch):
    def __init__(self, store: SlateStore) -> None:
        self._store = store
        self._writes: dict[bytes, tuple[bytes, TtlLike] | None] = {}

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        state = self._store.state
        state.expiry_ms(ttl, state.clock.now_ms())  # a TTL that cannot be is refused at its own line
        self._writes[check_user_key(key)] = (check_value(value), ttl)

    def delete(self, key: bytes) -> None:
        self._writes[check_user_key(key)] = None

    def __len__(self) -> int:
        return len(self._writes)

    async def commit(self) -> None:
        writes, self._writes = self._writes, {}
        store = self._store
        store.state.check_writable()
        await store.gate.enter()
        try:
            now_ms = store.state.clock.now_ms()
            await store.write([self._change(key, write, now_ms) for key, write in writes.items()], now_ms)
        finally:
            store.gate.leave()

    def _change(self, key: bytes, write: tuple[bytes, TtlLike] | None, now_ms: int) -> Change:
        if write is None:
            return key, None, 0
        value, ttl = write
        expires_ms = self._store.state.expiry_ms(ttl, now_ms)
        return key, row.header(created_ms=now_ms, expires_ms=expires_ms) + value, expires_ms
