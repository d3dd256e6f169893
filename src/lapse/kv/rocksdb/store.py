"""A RocksDB store."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import chain, islice
from typing import Any
from weakref import WeakSet

from lapse.errors import Unsupported
from lapse.kv import format as stored
from lapse.kv import row
from lapse.kv.abc import Batch, Snapshot, Store, Transaction
from lapse.kv.budget import Budget
from lapse.kv.clock import StoppedClock, StoreClock
from lapse.kv.keys import EVERYTHING, KeyRange, check_key, check_limit, check_value, read_range
from lapse.kv.options import DurationLike
from lapse.kv.rocksdb import purge as purging
from lapse.kv.rocksdb import statistics
from lapse.kv.rocksdb.batch import RocksBatch
from lapse.kv.rocksdb.engine import engine_errors, translate
from lapse.kv.rocksdb.lookup import quick_get
from lapse.kv.rocksdb.marks import Marks
from lapse.kv.rocksdb.snapshot import RocksSnapshot
from lapse.kv.rocksdb.tables import Change, FlatTable, Table, closed_fetch
from lapse.kv.rocksdb.views import Chunks, Cursor, RawRows, newest_chunks
from lapse.kv.row import HEADER_BYTES, LIVE_END, VALUE, Row
from lapse.kv.state import State
from lapse.kv.ttl import Ttl, TtlLike, read_default
from lapse.kv.values import Meta, PurgeResult, Stats, meta_of


class RocksStore(Store):
    """One writer process owns the store (RocksDB's LOCK), so a lock in this process is enough to make
    read-modify-write, and a purge's look-then-delete, atomic."""

    def __init__(self, *, state: State, database: Any, table: Table, meta_family: Any) -> None:
        self.state = state
        self.database = database
        self.table = table
        self.meta_family = meta_family
        self.lock = threading.RLock()
        self.purge_lock = threading.Lock()
        self._flat = table if isinstance(table, FlatTable) else None
        self.marks = Marks(state, meta_family, self.lock)
        self._fetch = table.fetch
        self._now_ms = state.clock.now_ms
        self.get = quick_get(table.fetch, state, self.marks)  # type: ignore[method-assign]
        self._views: WeakSet[Cursor | RocksSnapshot] = WeakSet()

    @property
    def url(self) -> str:
        return str(self.state.url)

    @property
    def default_ttl(self) -> timedelta | str | None:
        default = self.state.default
        if default is None:
            return None
        return str(default) if default.millis is None else default.interval.timedelta

    def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        self.state.check_writable()
        default = read_default(ttl)
        with self.lock, engine_errors(self.state.url):
            self.meta_family.put(stored.DEFAULT_TTL_KEY, stored.pack_default(default))
            self.state.default = default

    # Reading

    def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        raise NotImplementedError("every store has a quick_get of its own")

    def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        now_ms = self._now_ms()
        found = self._live(key, now_ms, include_expired)
        return None if found is None else meta_of(found, now_ms)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        keys, limit = read_range(start, end, prefix), check_limit(limit)
        self.state.check_open()
        self.marks.save(self._now_ms())
        chunks = iter(()) if keys.is_empty or limit == 0 else self.raw_chunks(keys)
        return self.strict(chunks, self.state.clock, limit, include_expired)

    def raw_chunks(self, keys: KeyRange) -> Chunks:
        """Newest versions, expired ones and tombstones included, as they are at this moment."""
        self.state.check_open()
        with self.lock, engine_errors(self.state.url):
            cursors = self.table.cursors(keys)
        self._views.update(cursors)
        return cursors[0].chunks() if len(cursors) == 1 else newest_chunks([cursor.chunks() for cursor in cursors])

    def raw_rows(self, keys: KeyRange = EVERYTHING) -> RawRows:
        return chain.from_iterable(self.raw_chunks(keys))

    def judge(self, rows: RawRows, limit: int | None, include_expired: bool) -> RawRows:
        return self.strict(iter([list(rows)]), self.state.clock, limit, include_expired)

    def strict(
        self, chunks: Chunks, clock: StoreClock | StoppedClock, limit: int | None, include_expired: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._strict(chunks, clock, include_expired)
        return rows if limit is None else _first(rows, limit)

    def _strict(
        self, chunks: Chunks, clock: StoreClock | StoppedClock, include_expired: bool
    ) -> Generator[tuple[bytes, bytes]]:
        """The time is asked for each row, at the moment it is handed out: a scan may pause for hours. A live row
        is told as in `quick_get`."""
        hidden, read_ns = 0, clock.read_ns
        try:
            for chunk in chunks:
                for key, raw in chunk:
                    moment = clock.moment
                    if read_ns() >= moment.ends_ns:
                        moment = clock.advance()
                    if moment.live_from <= raw < LIVE_END and len(raw) >= HEADER_BYTES:
                        yield key, raw[VALUE]
                    elif row.unpack(key, raw)[0] & row.TOMBSTONE:
                        continue
                    elif include_expired:
                        yield key, raw[VALUE]
                    else:
                        hidden += 1
        finally:
            if hidden:
                self.state.metrics.hidden.inc(hidden)

    # Writing

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        state = self.state
        state.check_writable()
        check_key(key)
        check_value(value)
        with self.lock:
            now_ms = self._now_ms()
            expires_ms = state.expiry_ms(ttl, now_ms)
            raw = row.header(created_ms=now_ms, expires_ms=expires_ms) + value
            if self._flat is None or now_ms >= self.marks.due_ms:
                self.write([(key, raw, expires_ms)], now_ms)
                return
            state.written.add(expires_ms)
            try:
                self._flat.put_one(key, raw)
            except Exception as error:
                raise translate(state.url, error) from error

    def put_many(self, rows: Iterable[tuple[bytes, bytes]], ttl: TtlLike = Ttl.DEFAULT) -> int:
        self.state.check_writable()
        with self.lock, engine_errors(self.state.url):
            now_ms = self._now_ms()
            expires_ms = self.state.expiry_ms(ttl, now_ms)
            head = row.header(created_ms=now_ms, expires_ms=expires_ms)
            if self._flat is None:
                changes: list[Change] = [(check_key(key), head + check_value(value), expires_ms) for key, value in rows]
                return self.write(changes, now_ms)
            count = self._flat.put_many(head, rows)
            self.state.written.add(expires_ms, count)
            self.marks.save(now_ms)
            return count

    def delete(self, key: bytes) -> None:
        self.state.check_writable()
        check_key(key)
        with self.lock:
            self.write([(key, None, 0)], self._now_ms())

    def write(self, changes: list[Change], now_ms: int) -> int:
        """The lock is held by the caller."""
        state = self.state
        extra = {}
        if now_ms >= self.marks.due_ms:
            extra[stored.MARK_KEY] = stored.pack_mark(now_ms)
        with engine_errors(state.url):
            for _, raw, expires_ms in changes:
                if raw is None:
                    state.written.rows += 1
                else:
                    state.written.add(expires_ms)
            self.table.write(changes, now_ms, extra)
        if extra:
            self.marks.saved(now_ms)
        return len(changes)

    def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        self.state.check_writable()
        with self.lock:
            now_ms = self._now_ms()
            expires_ms = self.state.expiry_ms(ttl, now_ms)
            found = self._live(key, now_ms)
            if found is None:
                return False
            head = row.header(created_ms=found.created_ms, expires_ms=expires_ms)
            self.write([(key, head + found.value, expires_ms)], now_ms)
            return True

    def persist(self, key: bytes) -> bool:
        return self.touch(key, Ttl.NO_EXPIRY)

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        self.state.check_writable()
        function = self.state.merge_function()
        check_value(operand)
        with self.lock:
            now_ms = self._now_ms()
            expires_ms = self.state.expiry_ms(ttl, now_ms)
            found = self._live(key, now_ms)
            value = check_value(function(None if found is None else found.value, operand))
            self.write([(key, row.header(created_ms=now_ms, expires_ms=expires_ms) + value, expires_ms)], now_ms)
            return value

    def batch(self) -> Batch:
        self.state.check_writable()
        return RocksBatch(self)

    def snapshot(self) -> Snapshot:
        self.state.check_open()
        with self.lock, engine_errors(self.state.url):
            now_ms = self._now_ms()
            self.marks.save(now_ms)
            snapshot = RocksSnapshot(self, self.table.pin(), now_ms)
        self._views.add(snapshot)
        return snapshot

    def transaction(self) -> Transaction:
        raise Unsupported(
            "RocksDB's Python binding has no transactions",
            hint="use batch() for writes that belong together, snapshot() for reads, or a slatedb: store",
        )

    # Keeping house

    def purge(
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
                result = purging.purge(self, budget, stop)
        except Exception:
            self.state.metrics.purge_failed()
            raise
        self.state.metrics.purge_finished(result, self.state.clock.now_ms())
        return result

    def stats(self, *, count: bool = False) -> Stats:
        self.state.check_open()
        with engine_errors(self.state.url):
            return statistics.collect(self, counted=count)

    def flush(self) -> None:
        self.state.check_open()
        with self.lock, engine_errors(self.state.url):
            if not self.state.options.read_only:
                self.database.flush_wal(True)

    def has_views(self) -> bool:
        """Whether an open scan or snapshot keeps files of the engine alive."""
        return any(view.is_open for view in list(self._views))

    def meta_value(self, key: bytes) -> bytes | None:
        value: bytes | None = self.meta_family.get(key)
        return value

    def close(self) -> None:
        with self.lock, engine_errors(self.state.url):
            if self.state.closed:
                return
            self.state.closed = True
            for view in list(self._views):
                view.release()
            if not self.state.options.read_only:
                self.meta_family.put(stored.MARK_KEY, stored.pack_mark(self._now_ms()))
                purging.save_bounds(self)
            self.table.close()
            self._fetch = closed_fetch
            self.get = quick_get(closed_fetch, self.state, self.marks)  # type: ignore[method-assign]
            self.meta_family.close()
            self.database.close()

    def _live(self, key: bytes, now_ms: int, include_expired: bool = False) -> Row | None:
        check_key(key)
        self.state.check_open()
        with engine_errors(self.state.url):
            return self.state.visible(key, self._fetch(key), now_ms, include_expired)


def _first(rows: Generator[tuple[bytes, bytes]], limit: int) -> Iterator[tuple[bytes, bytes]]:
    """Closed at the limit, so that nothing of the engine is kept open by a scan that has ended."""
    with closing(rows):
        yield from islice(rows, limit)
