"""Removing expired rows from RocksDB: real deletes, which snapshots respect, then compaction that frees the
bytes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lapse.errors import CorruptRow, StoreFromTheFuture
from lapse.kv import format as stored
from lapse.kv import row
from lapse.kv.budget import Budget, Spending
from lapse.kv.keys import EVERYTHING, KeyRange
from lapse.kv.rocksdb.compaction import compact_aged, rewrite
from lapse.kv.rocksdb.engine import load
from lapse.kv.rocksdb.statistics import count, data_files, total_bytes
from lapse.kv.rocksdb.tables import BucketTable
from lapse.kv.rocksdb.views import Cursor
from lapse.kv.state import Written
from lapse.kv.ttl import NEVER_MS, from_millis
from lapse.kv.units import Unit, UnitBuilder, coalesce, pack_units, read_units
from lapse.kv.values import PurgeResult, Verification
from lapse.kv.verify import LocalFile, Sample, check, take_sample

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

WRITTEN_KEY = b"written"
_POLL_S = 0.01
_UNLINK_S = 0.2
_BATCH_ROWS = 1_000
"""Rows removed in one step, some milliseconds: what a writer may have to wait for."""


def purge(store: RocksStore, budget: Budget, stop: threading.Event | None = None) -> PurgeResult:
    with store.purge_lock:
        return _Purge(store, budget, stop).run()


class _Purge:
    def __init__(self, store: RocksStore, budget: Budget, stop: threading.Event | None) -> None:
        self.store = store
        self.spending = Spending(budget, stop)
        self.cutoff_ms, self.now_ms = store.state.cutoff_ms()
        self.sample = Sample()
        self.purged = self.held = self.skipped = self.dropped = self.unreadable = 0
        self.held_since_ms = NEVER_MS
        self.unfinished = False

    def run(self) -> PurgeResult:
        store, physical = self.store, self.spending.budget.within_s is not None
        before = total_bytes(data_files(store))
        if physical:
            self._sample()
        if isinstance(store.table, BucketTable):
            self._sweep_buckets(store.table)
        else:
            self._sweep_units()
        with store.lock:
            store.meta_family.put(stored.PURGE_KEY, stored.pack_mark(self.now_ms))
            store.marks.save(store.state.clock.now_ms())
        compacted, verification = 0, None
        if physical:
            compacted, verification = self._free_bytes()
        elif store.state.options.periodic_compaction_interval is not None:
            compacted = compact_aged(store, is_over=self._is_over)
        return self._result(before, compacted, verification)

    def _is_over(self) -> bool:
        return self.spending.is_over

    def _sweep_units(self) -> None:
        store = self.store
        with store.lock:
            written = store.state.take_written()
        try:
            self._sweep_units_since(written)
        except BaseException:
            store.state.written.absorb(written)
            raise

    def _sweep_units_since(self, written: Written) -> None:
        store, units = self.store, list[Unit]()
        for unit in read_units(store.meta_family.get(stored.UNITS_KEY)):
            bounded = unit.widened(written)
            if bounded.min_ms > self.now_ms:
                self.skipped += 1
                units.append(bounded)
            elif self.spending.exhausted:
                self.unfinished = True
                units.append(bounded)
            elif unit.rows and unit.max_ms <= self.cutoff_ms and not written.rows and self._drop_unit(unit):
                units.append(Unit(start=unit.start, end=unit.end, min_ms=NEVER_MS, max_ms=0, rows=0))
            else:
                units.extend(self._sweep_unit(bounded))
        store.meta_family.put(stored.UNITS_KEY, pack_units(coalesce(units)))

    def _drop_unit(self, unit: Unit) -> bool:
        """One range deletion for the whole unit, allowed only if nothing was written since its bounds were
        taken."""
        store = self.store
        with store.lock:
            if store.state.written.rows:
                return False
            end = unit.end
            if end is None:
                last = store.database.iter()
                last.seek_to_last()
                end = last.key() + b"\0" if last.valid() else b"\0"
            store.database.delete_range(unit.start or b"\0", end)
        self.purged += unit.rows
        self.dropped += 1
        self._rest(unit.rows)
        return True

    def _sweep_unit(self, unit: Unit) -> list[Unit]:
        store, builder, expired = self.store, UnitBuilder(unit.start, unit.end), list[bytes]()
        with store.lock:
            seen = store.state.written.rows
            chunks = store.raw_chunks(KeyRange(start=unit.start or None, end=unit.end))
        batch_rows = self.spending.next_batch(_BATCH_ROWS)
        for chunk in chunks:
            if self.spending.is_over:
                batch_rows = 0  # so that it ends at the next row
            for key, raw in chunk:
                if len(expired) >= batch_rows:
                    self._remove(expired, seen)
                    expired, batch_rows = [], self.spending.next_batch(_BATCH_ROWS)
                    if self.spending.exhausted:
                        self.unfinished = True
                        return builder.stop_at(key, unit)
                expires_ms = self._expiry(key, raw)
                if expires_ms <= self.cutoff_ms:
                    expired.append(key)
                else:
                    builder.add(key, expires_ms)
        self._remove(expired, seen)
        return builder.finish()

    def _remove(self, keys: Sequence[bytes], seen: int) -> None:
        """Delete what is still expired: a row renewed since it was read stays."""
        store = self.store
        if not keys:
            return
        with store.lock:
            if store.state.written.rows != seen:
                current = zip(keys, store.database.get(list(keys)), strict=True)
                keys = [key for key, raw in current if raw is not None and self._is_expired(key, raw)]
            batch = load().WriteBatch(raw_mode=True)
            for key in keys:
                batch.delete(key)
            store.database.write(batch)
        self.purged += len(keys)
        self._rest(len(keys))

    def _sweep_buckets(self, table: BucketTable) -> None:
        store = self.store
        with store.lock:
            store.state.take_written()
            for id in table.buckets.droppable(self.cutoff_ms, store.state.clock.now_ms()):
                self.purged += table.buckets[id].rows
                table.drop(id)
                self.dropped += 1
            ids = table.buckets.ids()
        for id in ids:
            if table.buckets[id].min_ms > self.now_ms:
                self.skipped += 1
            elif self.spending.exhausted:
                self.unfinished = True
            else:
                self._sweep_bucket(table, id)

    def _sweep_bucket(self, table: BucketTable, id: int) -> None:
        store, family, bucket = self.store, table.family(id), table.buckets[id]
        with store.lock:
            cursor = Cursor(load(), family, EVERYTHING)
            bucket.min_ms, least_ms = NEVER_MS, NEVER_MS
        try:
            for chunk in cursor.chunks():
                expired: list[bytes] = []
                for key, raw in chunk:
                    expires_ms = self._expiry(key, raw)
                    if expires_ms > self.cutoff_ms:
                        least_ms = min(least_ms, expires_ms)
                    elif not row.unpack(key, raw)[0] & row.TOMBSTONE:
                        expired.append(key)
                while expired and not self.spending.exhausted:
                    rows = self.spending.next_batch(_BATCH_ROWS)
                    self._remove_from_bucket(table, id, expired[:rows])
                    expired = expired[rows:]
                if self.spending.exhausted:
                    self.unfinished, least_ms = True, 0
                    break
        except BaseException:
            least_ms = 0
            raise
        finally:
            cursor.release()
            with store.lock:
                bucket.min_ms = min(bucket.min_ms, least_ms)

    def _remove_from_bucket(self, table: BucketTable, id: int, keys: list[bytes]) -> None:
        if not keys:
            return
        with self.store.lock:
            current = zip(keys, table.family(id).get(keys), strict=True)
            keys = [key for key, raw in current if raw is not None and self._is_expired(key, raw)]
            table.replace_in(id, keys, self.store.state.clock.now_ms())
            table.buckets[id].rows = max(0, table.buckets[id].rows - len(keys))
        self.purged += len(keys)
        self._rest(len(keys))

    def _expiry(self, key: bytes, raw: bytes) -> int:
        try:
            expires_ms = row.unpack(key, raw)[2]
        except (CorruptRow, StoreFromTheFuture):
            self.unreadable += 1
            return NEVER_MS
        if self.cutoff_ms < expires_ms <= self.now_ms:
            self.held += 1
            self.held_since_ms = min(self.held_since_ms, expires_ms)
        return expires_ms

    def _is_expired(self, key: bytes, raw: bytes) -> bool:
        return row.unpack(key, raw)[2] <= self.cutoff_ms

    def _rest(self, rows: int) -> None:
        self.spending.spend(rows)
        self.spending.rest()

    def _sample(self) -> None:
        """Payloads of rows about to go, looked up in the files while they are still there."""
        for chunk in self.store.raw_chunks(EVERYTHING):
            if self.spending.is_over:
                break
            for key, raw in chunk:
                if self._expiry(key, raw) <= self.cutoff_ms:
                    self.sample.add(raw)
        self.held, self.held_since_ms, self.unreadable = 0, NEVER_MS, 0
        self.store.database.flush_wal(False)
        take_sample(self.sample, map(LocalFile, data_files(self.store)), is_over=self._is_over)

    def _free_bytes(self) -> tuple[int, Verification]:
        store = self.store
        families = [*store.table.families(), store.meta_family]
        with store.lock:
            for family in families:
                family.flush()
        compacted = total_bytes(data_files(store))
        # A file that overlaps no other is moved to the last level as it is; only from there is it rewritten.
        for _ in range(2):
            for family in families:
                rewrite(store.database, family, is_over=self._is_over)
            found = self._wait_for_unlinking(_UNLINK_S)
            if found.clean or store.has_views():
                return compacted, found
        return compacted, self._wait_for_unlinking(self.spending.left_s)

    def _wait_for_unlinking(self, at_most_s: float) -> Verification:
        """RocksDB removes files in a thread of its own."""
        until_s = time.monotonic() + min(at_most_s, self.spending.left_s)
        while True:
            found = check(self.sample, map(LocalFile, data_files(self.store)), is_over=self._is_over)
            if found.clean or self.spending.is_over or self.store.has_views() or time.monotonic() >= until_s:
                return found
            time.sleep(_POLL_S)

    def _left(self) -> tuple[int | None, int]:
        """How many expired rows are left, and since when the oldest is expired; not counted where time was short."""
        if not self.unfinished:
            return self.held, self.held_since_ms
        if self.spending.is_over:
            return None, NEVER_MS
        _, expired, oldest_ms = count(self.store, self.now_ms)
        return expired, oldest_ms

    def _result(self, before: int, compacted: int, verification: Verification | None) -> PurgeResult:
        reasons = []
        if self.unfinished:
            reasons.append(self.spending.why_over)
        if self.held:
            reasons.append(f"{self.held} expired rows are still read by an open snapshot")
        if self.unreadable:
            reasons.append(f"{self.unreadable} rows cannot be read and were left alone")
        if verification is not None and not verification.clean:
            why = "open snapshots or scans keep them" if self.store.has_views() else self.spending.why_over
            reasons.append(f"purged bytes are still in the store's files: {why}")
        elif verification is not None and verification.unchecked is not None:
            reasons.append(f"not all files were searched for purged bytes: {self.spending.why_over}")
        left, oldest_ms = self._left()
        return PurgeResult(
            cutoff=from_millis(self.cutoff_ms),
            purged=self.purged,
            held=self.held,
            left=left,
            oldest_left=from_millis(oldest_ms) if left else None,
            units_skipped=self.skipped,
            units_dropped=self.dropped,
            bytes_before=before,
            bytes_after=total_bytes(data_files(self.store)),
            bytes_compacted=compacted,
            elapsed_s=self.spending.elapsed_s,
            complete=not reasons,
            reasons=tuple(reasons),
            verification=verification,
        )


def save_bounds(store: RocksStore) -> None:
    """At a clean close: what was written since the last purge. Without it the next purge reads everything
    once."""
    written = store.state.written
    value = json.dumps([written.min_ms, written.max_ms, written.rows]).encode()
    store.meta_family.put(WRITTEN_KEY, value)
    if isinstance(store.table, BucketTable):
        store.meta_family.put(stored.BUCKETS_KEY, store.table.buckets.to_bytes())


def restore_bounds(meta_family: Any, *, is_new: bool) -> Written:
    raw = None if is_new else meta_family.get(WRITTEN_KEY)
    if is_new:
        return Written()
    meta_family.delete(WRITTEN_KEY)
    if raw is None:  # the last process did not close the store
        return Written(min_ms=0, max_ms=NEVER_MS, rows=1)
    min_ms, max_ms, rows = json.loads(raw)
    return Written(min_ms=min_ms, max_ms=max_ms, rows=rows)
