"""Reaching RocksDB: its options and its iterators."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.errors import DatabaseError, ForeignStore, MissingExtra, StoreClosed
from lapse.kv.keys import KeyRange
from lapse.kv.options import Options, check_may_create
from lapse.kv.reads import RawRow
from lapse.kv.rocksdb.calls import Calls, lapse_errors
from lapse.kv.url import StoreUrl

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

META_FAMILY = "lapse"
ROWS_FAMILY = "default"

_COMPACT_AFTER_DELETES = (10_000, 5_000, 0.5)
"""A file with this many deletions among this many entries is compacted soon: it is what a purge leaves
behind."""

CHUNK_ROWS = 256
PURGE_READAHEAD_BYTES = 1024 * 1024

_FILTER_BITS = 10
"""Per row, in memory: a table without the key is read for one get in a hundred."""
_BLOCK_BYTES = 16 * 1024
_RESTART_ROWS = 4

_LEFT_BY_CREATION = re.compile(r"LOCK|LOG(\.old\..*)?|IDENTITY|MANIFEST-.*|OPTIONS-.*|.*\.dbtmp|\d+\.log")
"""What the engine has made before the file that makes a directory a database."""


def load() -> Any:
    """rocksdict has no types worth the name, so what comes from it is Any, here and only here."""
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtra("RocksDB (rocksdict)", "kv") from error
    return rocksdict


def options(rocksdict: Any, *, create: bool = False) -> Any:
    result = rocksdict.Options(raw_mode=True)
    result.create_if_missing(create)
    result.create_missing_column_families(create)
    result.set_delete_obsolete_files_period_micros(0)
    # The small family of Lapse's own is flushed with the rows: else it would keep every log since the store was opened.
    result.set_atomic_flush(True)
    # The manifest names the first and last key of every table that ever was; a new one names those of today.
    result.set_max_manifest_file_size(1)
    result.add_compact_on_deletion_collector_factory(*_COMPACT_AFTER_DELETES)
    # How rows lie in table files. It pays for the header that Lapse adds to every row: together these make a get and a
    # scan a tenth faster than with the engine's defaults and a miss twice as fast, for three bytes per row.
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_bloom_filter(_FILTER_BITS, False)
    blocks.set_block_size(_BLOCK_BYTES)
    # Inside a block a get finds its row by hash, then in a run of rows this long.
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    blocks.set_block_restart_interval(_RESTART_ROWS)
    result.set_block_based_table_factory(blocks)
    return result


def open_database(url: StoreUrl, opened: Options, calls: Calls) -> Any:
    """The database with all its column families. One that Lapse did not write is refused before it is opened for
    writing: opening alone would already change it."""
    rocksdict, path = load(), url.path
    assert path is not None
    families = [ROWS_FAMILY, META_FAMILY]
    if calls.wait_for(partial(_is_database, path)):
        found = rocksdict.Rdict.list_cf(str(path))
        if META_FAMILY not in found and (opened.read_only or not _is_unfinished(rocksdict, path, found)):
            raise ForeignStore(f"{url} was not written by Lapse", hint="copy its rows to a new store")
        families = list(dict.fromkeys([*found, META_FAMILY]))
    else:
        check_may_create(url, opened, _LEFT_BY_CREATION)
    if not opened.read_only:
        calls.wait_for(partial(_touch, path))
    access = rocksdict.AccessType
    return rocksdict.Rdict(
        str(path),
        options(rocksdict, create=not opened.read_only),
        column_families={name: options(rocksdict) for name in families},
        access_type=access.read_only(False) if opened.read_only else access.read_write(),
    )


def _is_database(path: Path) -> bool:
    try:
        (path / "CURRENT").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _touch(path: Path) -> None:
    """Waits for a disk that takes no writes, as the engine would."""
    path.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # the engine says more about it
        os.utime(path)


def is_empty(database: Any) -> bool:
    first = database.iter()
    first.seek_to_first()
    if first.valid():
        return False
    check_status(first)
    return True


def check_status(iterator: Any) -> None:
    """An iterator that is at no row is at its end only if the engine has no error to report."""
    try:
        iterator.status()
    except Exception as error:
        raise DatabaseError(f"reading failed, and what was read so far is not used: {error}") from error


def _is_unfinished(rocksdict: Any, path: Path, families: list[str]) -> bool:
    """A database without a row and with no family but the engine's own: a process was killed while it created it."""
    if families != [ROWS_FAMILY]:
        return False
    plain = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(path), plain, access_type=rocksdict.AccessType.read_only(False))
    try:
        return is_empty(database)
    finally:
        database.close()


class RangeCursor:
    """One pass over a range of a store, as the rows are when it is made.

    The binding's quick iterator ends at a read error as it does behind the last row, and cannot be asked which it was.
    A second one, of the same moment, is asked where the first has ended.
    """

    def __init__(self, store: RocksStore, keys: KeyRange, rows: int = CHUNK_ROWS, *, is_purge: bool = False) -> None:
        self._store = store
        self._keys = keys
        self._rows = rows
        self._last: bytes | None = None
        self._is_done = False
        with store.lock:
            store.state.check_open()
            store.save_mark_now(store.state.clock.now_ms())
            bounds = load().ReadOptions()
            if keys.end is not None:
                bounds.set_iterate_upper_bound(keys.end)
            if is_purge:  # reads much once: the blocks that the application reads stay in the cache
                bounds.fill_cache(False)
                bounds.set_readahead_size(PURGE_READAHEAD_BYTES)
            items = store.handle.items(from_key=keys.start, read_opt=bounds)
            self._engine: tuple[Any, Any, Any] | None = bounds, items, store.handle.iter(bounds)
            """A bound and two iterators. The engine reads the bound where it is for as long as one of them lives, so it
            is freed last; and a thread that reads while another one closes the store holds all three."""
            store.views.add(self)

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def release(self) -> None:
        self._engine = None

    async def chunk(self) -> list[RawRow]:
        if self._is_done:
            return []
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
