"""Removing expired rows from SlateDB, on an idle store as well."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from lapse.errors import CorruptRow, StoreFromTheFuture
from lapse.kv import format as stored
from lapse.kv import row
from lapse.kv.budget import Budget, Spending
from lapse.kv.keys import EVERYTHING
from lapse.kv.slatedb import compaction
from lapse.kv.slatedb.engine import load, remove_half_written
from lapse.kv.slatedb.keyspace import bucket_prefix, meta_key
from lapse.kv.slatedb.proof import Proof
from lapse.kv.slatedb.scans import Source
from lapse.kv.slatedb.statistics import count, size
from lapse.kv.state import Written
from lapse.kv.ttl import NEVER_MS, from_millis
from lapse.kv.units import Unit, pack_units, read_units
from lapse.kv.values import PurgeResult, Verification

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import SlateStore

WRITTEN_KEY = b"written"
_UNHURRIED_S = 3600.0
"""How long an ordinary purge waits for one compaction of a large store."""
_POLL_S = 0.02
_REMOTE_POLL_S = 1.0
_BATCH_ROWS = 100
"""Rows removed in one step, some milliseconds: what a writer may have to wait for."""
_COUNTER = "slatedb.compactor.expired_entries_purged"


class Purge:
    """Three ways, by what the store is.

    Where the engine knows the expiries (system clock, no buckets) its compaction removes the rows, as fast as
    it can write. Where it does not, rows are looked at and deleted here. Buckets whose rows are all expired
    are drained.
    """

    def __init__(self, store: SlateStore, budget: Budget, stop: threading.Event | None = None) -> None:
        self.store = store
        self.spending = Spending(budget, stop)
        self.cutoff_ms, self.now_ms = store.state.cutoff_ms()
        self.proof = Proof(store.state.url, store.admin, is_over=lambda: self.spending.is_over)
        self.purged = self.held = self.skipped = self.dropped = self.unreadable = self.compacted = 0
        self.held_since_ms = NEVER_MS
        self.unfinished = False
        self.reasons: list[str] = []

    async def run(self) -> PurgeResult:
        store = self.store
        before = await size(store)
        verification = None
        if self.spending.budget.within_s is not None:
            await self._sample()
            await self._sweep()
            verification = await self._free_bytes()
        elif store.state.format.engine_expiry:
            await self._compact_expired()
        else:
            await self._sweep()
            await self._compact_aged()
        await store.put_meta(stored.PURGE_KEY, stored.pack_mark(self.now_ms))
        await store.save_mark(store.state.clock.now_ms())
        return await self._result(before, verification)

    def _patience(self) -> compaction.IsOver:
        until_s = time.monotonic() + _UNHURRIED_S
        return lambda: self.spending.is_over or time.monotonic() >= until_s

    def _leave_rest(self, why: str) -> None:
        self.unfinished = True
        self.reasons.append(why)

    # By the engine's compaction

    async def _compact_expired(self) -> None:
        """What may go is what expired before the oldest snapshot that can still be read."""
        store, state = self.store, self.store.state
        self.cutoff_ms = min(self.cutoff_ms, self.now_ms - state.format.snapshot_lifetime_ms)
        async with store.gate.alone():
            unit = (await self._unit()).widened(state.written)
            if unit.min_ms > self.cutoff_ms:
                self.skipped = 1
                return
            written = state.take_written()
            await self._tick()
        counted = _purged_by_engine(store.recorder)
        if await self._exceeds_budget():
            state.written.absorb(written)
            await self._compact_aged()
            self.purged = _purged_by_engine(store.recorder) - counted
            self._leave_rest("the store is larger than compaction_budget_bytes; its oldest parts were compacted")
            return
        self.compacted = await compaction.compact(store.admin, b"", is_over=self._patience())
        self.purged = _purged_by_engine(store.recorder) - counted
        if not self.compacted:
            state.written.absorb(written)
            self._leave_rest(self.spending.why_over if self.spending.is_over else "the engine did not compact in time")
            return
        async with store.gate.alone():
            await self._tick()  # until its next flush the writer would go on reading the tables of before
        manifest = await store.admin.read_manifest(None)
        reached_ms = manifest.last_l0_clock_tick - state.format.snapshot_lifetime_ms
        self.cutoff_ms = min(self.cutoff_ms, reached_ms)
        await self._save_unit(Unit(start=b"", end=None, min_ms=reached_ms + 1, max_ms=unit.max_ms, rows=0))

    async def _exceeds_budget(self) -> bool:
        """Only where compaction is to be by age is there a budget for it."""
        options = self.store.state.options
        if options.periodic_compaction_interval is None:
            return False
        trees = compaction.trees(await self.store.admin.read_manifest(None))
        return sum(tree.bytes for tree in trees) > options.compaction_budget_bytes

    async def _compact_aged(self) -> None:
        options = self.store.state.options
        if options.periodic_compaction_interval is None:
            return
        self.compacted += await compaction.compact_aged(
            self.store.admin,
            interval_s=options.periodic_compaction_interval.interval.approximate_seconds,
            jitter=options.compaction_jitter,
            budget_bytes=options.compaction_budget_bytes,
            now_ms=time.time_ns() // 1_000_000,
            is_over=self._patience(),
        )

    # By looking at every row

    async def _sweep(self) -> None:
        store = self.store
        if store.buckets is not None:
            await self._drop_buckets()
            for id in store.buckets.ids():
                await self._sweep_bucket(id)
            return
        async with store.gate.alone():
            written = store.state.take_written()
            unit = (await self._unit()).widened(written)
            view = await store.handle.snapshot()
        if unit.min_ms > self.now_ms:
            store.state.written.absorb(written)
            self.skipped += 1
            return
        try:
            low_ms, high_ms = await self._sweep_source(Source(view, EVERYTHING), b"", is_oldest=True)
        except BaseException:
            store.state.written.absorb(written)
            raise
        await self._save_unit(Unit(start=b"", end=None, min_ms=low_ms, max_ms=high_ms, rows=0))

    async def _sweep_source(self, source: Source, prefix: bytes, *, is_oldest: bool) -> tuple[int, int]:
        """Remove what is expired; returns the earliest and latest expiry that stays."""
        store, expired, low_ms, high_ms = self.store, list[bytes](), NEVER_MS, 0
        seen = store.state.written.rows
        while rows := await source.chunk():
            for key, raw in rows:
                expires_ms, is_tombstone = self._look(key, raw)
                if expires_ms > self.cutoff_ms:
                    low_ms, high_ms = min(low_ms, expires_ms), max(high_ms, expires_ms)
                elif not is_tombstone:
                    expired.append(key)
            while expired and not self.spending.exhausted:
                count = self.spending.next_batch(_BATCH_ROWS)
                batch, expired = expired[:count], expired[count:]
                await self._remove(batch, prefix, seen, is_oldest=is_oldest)
            if self.spending.exhausted:
                self._leave_rest(self.spending.why_over)
                return 0, NEVER_MS
        return low_ms, high_ms

    async def _remove(self, keys: list[bytes], prefix: bytes, seen: int, *, is_oldest: bool) -> None:
        """Delete what is still expired: a row renewed since it was read stays."""
        store = self.store
        async with store.gate.alone():
            if store.state.written.rows != seen:
                keys = [key for key in keys if await self._is_expired(prefix + key)]
            batch, now_ms = load().WriteBatch(), store.state.clock.now_ms()
            for key in keys:
                if is_oldest:
                    batch.delete(prefix + key)
                else:
                    batch.put(prefix + key, row.tombstone(created_ms=now_ms))
            if keys:
                await store.handle.write(batch)
        self.purged += len(keys)
        self.spending.spend(len(keys))
        await self.spending.rest_async()

    async def _is_expired(self, key: bytes) -> bool:
        raw = await self.store.handle.get(key)
        return raw is not None and row.unpack(key, raw)[2] <= self.cutoff_ms

    def _look(self, key: bytes, raw: bytes) -> tuple[int, bool]:
        try:
            flags, _, expires_ms = row.unpack(key, raw)
        except (CorruptRow, StoreFromTheFuture):
            self.unreadable += 1
            return NEVER_MS, False
        if self.cutoff_ms < expires_ms <= self.now_ms:
            self.held += 1
            self.held_since_ms = min(self.held_since_ms, expires_ms)
        return expires_ms, bool(flags & row.TOMBSTONE)

    # Buckets

    async def _drop_buckets(self) -> None:
        store, buckets = self.store, self.store.buckets
        assert buckets is not None
        ids = buckets.droppable(self.cutoff_ms, self.now_ms)
        if ids:
            async with store.gate.alone():
                await self._tick()
        for id in ids:
            if not await compaction.drain(store.admin, bucket_prefix(id), is_over=self._patience()):
                self._leave_rest("the engine did not drain a bucket in time")
                return
            self.purged += buckets[id].rows
            self.dropped += 1
            buckets.forget(id)
            await store.put_meta(stored.BUCKETS_KEY, buckets.to_bytes())

    async def _sweep_bucket(self, id: int) -> None:
        store, buckets = self.store, self.store.buckets
        assert buckets is not None
        bucket = buckets[id]
        if bucket.min_ms > self.now_ms:
            self.skipped += 1
            return
        if self.spending.exhausted:
            self._leave_rest(self.spending.why_over)
            return
        async with store.gate.alone():
            bucket.min_ms = NEVER_MS
            source = store.bucket_source(id, EVERYTHING)
            source.handle = await store.handle.snapshot()
        low_ms = 0
        try:
            is_oldest, before = id == buckets.ids()[0], self.purged
            low_ms, _ = await self._sweep_source(source, bucket_prefix(id), is_oldest=is_oldest)
            bucket.rows = max(0, bucket.rows - (self.purged - before))
        finally:
            bucket.min_ms = min(bucket.min_ms, low_ms)

    # Freeing and proving

    async def _sample(self) -> None:
        source = self.store.chunks(EVERYTHING)
        while not self.spending.is_over and (rows := await source.chunk()):
            for key, raw in rows:
                expires_ms, is_tombstone = self._look(key, raw)
                if expires_ms <= self.cutoff_ms and not is_tombstone:
                    self.proof.sample.add(raw)
        self.held, self.held_since_ms, self.unreadable = 0, NEVER_MS, 0
        await self.store.handle.flush()
        await self.proof.begin()

    async def _free_bytes(self) -> Verification | None:
        store = self.store
        if self.spending.is_over:
            self._leave_rest(self.spending.why_over)
            return None
        async with store.gate.alone():
            await self._tick()
        for tree in compaction.trees(await store.admin.read_manifest(None)):
            self.compacted += await compaction.compact(store.admin, tree.segment, is_over=self._patience())
        poll_s = _POLL_S if store.state.url.remote is None else _REMOTE_POLL_S
        found: Verification | None = None
        while True:
            why = self._why_not(await self._collect())
            is_time_to_look = found is None if why is not None else not await self.proof.files_left()
            if is_time_to_look:
                found = await self.proof.check()
                if found.clean and (found.unchecked is None or not self.spending.is_over):
                    return found
            if why is not None:
                self.reasons.append(_unproven(found, why))
                return found
            await asyncio.sleep(poll_s)

    def _why_not(self, others: int) -> str | None:
        """Why waiting longer would not help; None if it may."""
        if self.store.state.open_readers:
            return "open snapshots or transactions keep them"
        if others:
            return f"{others} checkpoints of other readers keep them"
        return self.spending.why_over if self.spending.is_over else None

    async def _collect(self) -> int:
        """Twice, each after a flush: the first lets the engine see the compacted state and move its log, the
        second takes the log file that was at the border."""
        store, others = self.store, 0
        for _ in range(2):
            async with store.gate.alone():
                await self._tick()
                if any(scan.is_open for scan in list(store.scans)) or not await compaction.is_quiet(store.admin):
                    return others  # they still read, or write, files that look like garbage
                others = await compaction.drop_compactor_checkpoints(store.admin)
                await compaction.collect_garbage(store.admin)
                if store.state.url.path is not None:
                    remove_half_written(store.state.url.path)
        return others

    async def _tick(self) -> None:
        now_ms = self.store.state.clock.now_ms()
        await compaction.tick(self.store.handle, now_ms, key=meta_key(stored.HEARTBEAT_KEY))

    async def _unit(self) -> Unit:
        return read_units(await self.store.meta_value(stored.UNITS_KEY))[0]

    async def _save_unit(self, unit: Unit) -> None:
        await self.store.put_meta(stored.UNITS_KEY, pack_units([unit]))

    async def _left(self) -> tuple[int | None, int]:
        """How many expired rows are left, and since when the oldest is expired. They are not counted where time was
        short, or the store is too large to be compacted at once."""
        if not self.unfinished:
            return self.held, self.held_since_ms
        if self.spending.is_over or not self.spending.exhausted:
            return None, NEVER_MS
        _, expired, oldest_ms = await count(self.store)
        return expired, oldest_ms

    async def _result(self, before: int, verification: Verification | None) -> PurgeResult:
        left, oldest_ms = await self._left()
        if self.held:
            self.reasons.append(f"{self.held} expired rows are still read by an open snapshot")
        if self.unreadable:
            self.reasons.append(f"{self.unreadable} rows cannot be read and were left alone")
        return PurgeResult(
            cutoff=from_millis(self.cutoff_ms),
            purged=self.purged,
            held=self.held,
            left=left,
            oldest_left=from_millis(oldest_ms) if left else None,
            units_skipped=self.skipped,
            units_dropped=self.dropped,
            bytes_before=before,
            bytes_after=await size(self.store),
            bytes_compacted=self.compacted,
            elapsed_s=self.spending.elapsed_s,
            complete=not self.reasons,
            reasons=tuple(dict.fromkeys(self.reasons)),
            verification=verification,
        )


async def save_bounds(store: SlateStore) -> None:
    """At a clean close: what was written since the last purge. Without it the next purge reads everything
    once."""
    written = store.state.written
    await store.put_meta(WRITTEN_KEY, json.dumps([written.min_ms, written.max_ms, written.rows]).encode())
    if store.buckets is not None:
        await store.put_meta(stored.BUCKETS_KEY, store.buckets.to_bytes())


async def restore_bounds(handle: Any, *, is_new: bool) -> Written:
    if is_new:
        return Written()
    raw = await handle.get(meta_key(WRITTEN_KEY))
    if not raw:  # the last process did not close the store
        return Written(min_ms=0, max_ms=NEVER_MS, rows=1)
    await handle.put(meta_key(WRITTEN_KEY), b"")
    await handle.flush()
    min_ms, max_ms, rows = json.loads(raw)
    return Written(min_ms=min_ms, max_ms=max_ms, rows=rows)


def _unproven(found: Verification | None, why: str) -> str:
    if found is None or found.clean:
        return f"not all files were searched for purged bytes: {why}"
    return f"purged bytes are still in the store's files: {why}"


def _purged_by_engine(recorder: Any) -> int:
    if recorder is None:
        return 0
    return sum(int(metric.value[0]) for metric in recorder.snapshot() if metric.name == _COUNTER)
