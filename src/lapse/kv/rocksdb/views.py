"""Views of a column family: iterators that the store can release, because RocksDB cannot close while one exists."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

from lapse.errors import DatabaseError, StoreClosed
from lapse.kv.keys import KeyRange
from lapse.kv.reads import RawRow
from lapse.kv.rocksdb.engine import check_status, lapse_errors, load

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

CHUNK_ROWS = 256
PURGE_READAHEAD_BYTES = 1024 * 1024


class Cursor:
    """One pass over a range of a store, as the rows are when it is opened: by `open`, or with its first chunk.

    The binding's quick iterator ends at a read error as it does behind the last row, and cannot be asked which it was.
    A second one, of the same moment, is asked where the first has ended.
    """

    def __init__(self, store: RocksStore, keys: KeyRange, rows: int = CHUNK_ROWS, *, is_purge: bool = False) -> None:
        self._store = store
        self._keys = keys
        self._rows = rows
        self._is_purge = is_purge
        self._last: bytes | None = None
        self._is_new, self._is_done = True, False
        self._engine: tuple[Any, Any, Any] | None = None
        """A bound and two iterators. The engine reads the bound where it is for as long as one of them lives, so it is
        freed last; and a thread that reads while another one closes the store holds all three."""

    def open(self) -> None:
        store, self._is_new = self._store, False
        with store.lock:
            store.state.check_open()
            store.save_mark_now(store.state.clock.now_ms())
            bounds = load().ReadOptions()
            if self._keys.end is not None:
                bounds.set_iterate_upper_bound(self._keys.end)
            if self._is_purge:  # reads much once: the blocks that the application reads stay in the cache
                bounds.fill_cache(False)
                bounds.set_readahead_size(PURGE_READAHEAD_BYTES)
            items = store.handle.items(from_key=self._keys.start, read_opt=bounds)
            self._engine = bounds, items, store.handle.iter(bounds)
            store.views.add(self)

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def release(self) -> None:
        self._engine = None

    async def chunk(self) -> list[RawRow]:
        if self._is_done:
            return []
        if self._is_new:
            self.open()
        engine = self._engine
        if engine is None:
            raise StoreClosed("the store was closed during this scan")
        with lapse_errors(self._store.state.url):
            rows: list[RawRow] = list(islice(engine[1], self._rows))
        if rows:
            self._last = rows[-1][0]
        if len(rows) < self._rows:
            self._check_end(engine[2])
            self._is_done = True
            self.release()
        return rows

    def _check_end(self, witness: Any) -> None:
        if self._last is not None:
            witness.seek(self._last)
            if witness.valid():
                witness.next()
        elif self._keys.start is not None:
            witness.seek(self._keys.start)
        else:
            witness.seek_to_first()
        if witness.valid():
            raise DatabaseError("a scan ended before its last row, and what it read is not used", hint="run it again")
        check_status(witness)


class Pin:
    """A family as it was when the pin was made, for any number of reads.

    rocksdict's Snapshot pins point reads only: its iterators show later writes. A plain iterator is what
    really stands still, so one is kept and moved about.
    """

    def __init__(self, family: Any) -> None:
        self._iterator: Any = family.iter()
        self._lock = threading.Lock()

    def release(self) -> None:
        with self._lock:
            self._iterator = None

    def get(self, key: bytes) -> bytes | None:
        rows = self.rows(key, key + b"\0", 1)
        return rows[0][1] if rows else None

    def rows(self, start: bytes, end: bytes | None, most: int) -> list[RawRow]:
        with self._lock:
            iterator, rows = self._iterator, list[RawRow]()
            if iterator is None:
                raise StoreClosed("the snapshot is closed")
            iterator.seek(start)
            while len(rows) < most and iterator.valid():
                key = iterator.key()
                if end is not None and key >= end:
                    break
                rows.append((key, iterator.value()))
                iterator.next()
            if not iterator.valid():
                check_status(iterator)
            return rows


class PinnedRows:
    """One pass over a range of a pin."""

    def __init__(self, pin: Pin, keys: KeyRange) -> None:
        self._pin = pin
        self._position = keys.start or b"\0"
        self._end = keys.end

    async def chunk(self) -> list[RawRow]:
        rows = self._pin.rows(self._position, self._end, CHUNK_ROWS)
        if rows:
            self._position = rows[-1][0] + b"\0"
        return rows
