"""From a URL to an open RocksDB store.

Stores with time buckets, which earlier versions could make, are converted: their rows move into one family. A bucket
was a column family of its own. The newest bucket that has a key has its newest version, so the buckets are copied
oldest first, each over the ones before. A crash in the middle leaves the buckets and their description as they were.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lapse.errors import ForeignStore, StoreError
from lapse.kv import format as stored
from lapse.kv.format import StoreFormat
from lapse.kv.options import Options, check_may_create
from lapse.kv.rocksdb.engine import Calls, Handle, Pin, PinnedRows, lapse_errors, load
from lapse.kv.rocksdb.store import RocksStore
from lapse.kv.row import TOMBSTONE
from lapse.kv.state import State
from lapse.kv.url import StoreUrl

META_FAMILY = "lapse"
_ROWS_FAMILY = "default"
_BUCKET = "bucket-"
_COMPACT_AFTER_DELETES = (10_000, 5_000, 0.5)
"""A file with this many deletions among this many entries is compacted soon: it is what a purge leaves behind."""
_FILTER_BITS = 10
"""Per row, in memory: a table without the key is read for one get in a hundred."""
_BLOCK_BYTES = 16 * 1024
_RESTART_ROWS = 4
_LEFT_BY_CREATION = re.compile(r"LOCK|LOG(\.old\..*)?|IDENTITY|MANIFEST-.*|OPTIONS-.*|.*\.dbtmp|\d+\.log")
"""What the engine has made before the file that makes a directory a database."""


async def open_store(url: StoreUrl, options: Options) -> RocksStore:
    state, calls = State(url, options), Calls(url, options.timeout_s)
    with lapse_errors(url), ExitStack() as opened:
        database = Handle(open_database(url, options, calls), url, calls)
        opened.callback(database.close)
        meta = Handle(database.get_column_family(META_FAMILY), url, calls)
        opened.callback(meta.close)
        raw = meta.get(stored.FORMAT_KEY)
        if raw is not None:
            state.resume(stored.read_format(raw), stored.read_mark(meta.get(stored.MARK_KEY)))
        elif options.read_only or Pin(database).rows(most=1):
            raise StoreError(f"{url} has rows but no format record: it is incomplete", hint="restore it from a backup")
        else:
            state.format = StoreFormat(engine=url.engine, created_ms=state.clock.now_ms())
        buckets = [] if options.read_only else _buckets(url)
        if state.format.bucket_ms:
            for name in buckets:
                await _copy(database, name)
            database.flush()
            state.format = replace(state.format, bucket_ms=0)
        store = RocksStore(state=state, database=database, meta_family=meta, calls=calls)
        await store.start(is_new=raw is None)
        if buckets:
            await store.sync()  # what they held is elsewhere, and the store has noted it
        for name in buckets:
            database.drop_column_family(name)
        opened.pop_all()
        return store


def _options(rocksdict: Any, *, create: bool = False) -> Any:
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
    families = [_ROWS_FAMILY, META_FAMILY]
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
        _options(rocksdict, create=not opened.read_only),
        column_families={name: _options(rocksdict) for name in families},
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


def _is_unfinished(rocksdict: Any, path: Path, families: list[str]) -> bool:
    """A database without a row and with no family but the engine's own: a process was killed while it created it."""
    if families != [_ROWS_FAMILY]:
        return False
    plain = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(path), plain, access_type=rocksdict.AccessType.read_only(False))
    try:
        return not Pin(database).rows(most=1)
    finally:
        database.close()


def _buckets(url: StoreUrl) -> list[str]:
    """Oldest first. A process may have been killed between their conversion and their end."""
    names = [name for name in load().Rdict.list_cf(str(url.path)) if name.startswith(_BUCKET)]
    try:
        return sorted(names, key=lambda name: int(name.removeprefix(_BUCKET)))
    except ValueError as error:
        raise StoreError(f"{url} has column families that are not time buckets: {', '.join(names)}") from error


async def _copy(database: Handle, name: str) -> None:
    family = database.get_column_family(name)
    try:
        rows = PinnedRows(Pin(family))
        while chunk := await rows.chunk():
            batch = load().WriteBatch(raw_mode=True)
            for key, raw in chunk:
                if raw.startswith(TOMBSTONE):
                    batch.delete(key)
                else:
                    batch.put(key, raw)
            database.write(batch)
    finally:
        del rows  # its iterator would keep the family open
        family.close()
