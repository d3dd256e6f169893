"""From a URL to an open RocksDB store.

Stores with time buckets, which earlier versions could make, are converted: their rows move into one family. A bucket
was a column family of its own. The newest bucket that has a key has its newest version, so the buckets are copied
oldest first, each over the ones before. A crash in the middle leaves the buckets and their description as they were.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from lapse.errors import StoreError
from lapse.kv import format as stored
from lapse.kv.format import StoreFormat
from lapse.kv.keys import EVERYTHING
from lapse.kv.options import Options
from lapse.kv.rocksdb.calls import Calls, Handle, lapse_errors
from lapse.kv.rocksdb.engine import META_FAMILY, Pin, PinnedRows, is_empty, load, open_database
from lapse.kv.rocksdb.store import RocksStore
from lapse.kv.row import TOMBSTONE, unpack
from lapse.kv.state import State
from lapse.kv.units import UNKNOWN, pack_units
from lapse.kv.url import StoreUrl

_BUCKET = "bucket-"


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
        elif options.read_only or not is_empty(database):
            raise StoreError(f"{url} has rows but no format record: it is incomplete", hint="restore it from a backup")
        else:
            state.format = StoreFormat(engine=url.engine, created_ms=state.clock.now_ms())
        if not options.read_only:
            await _convert_buckets(state, database, meta)
        store = RocksStore(state=state, database=database, meta_family=meta, calls=calls)
        await store.start(is_new=raw is None)
        opened.pop_all()
        return store


async def _convert_buckets(state: State, database: Handle, meta: Handle) -> None:
    """A process may have been killed between the conversion and the end of the buckets."""
    names = [name for name in load().Rdict.list_cf(str(state.url.path)) if name.startswith(_BUCKET)]
    if state.format.bucket_ms:
        try:
            for name in sorted(names, key=lambda name: int(name.removeprefix(_BUCKET))):
                await _copy(database, name)
        except ValueError as error:
            message = f"{state.url} has column families that are not time buckets: {', '.join(names)}"
            raise StoreError(message) from error
        database.flush()
        state.format = replace(state.format, bucket_ms=0)
        meta.put(stored.UNITS_KEY, pack_units([UNKNOWN]))
        meta.delete(stored.WRITTEN_KEY)
        meta.put(stored.FORMAT_KEY, state.format.to_bytes())
        meta.flush()
    for name in names:
        database.drop_column_family(name)


async def _copy(database: Handle, name: str) -> None:
    rocksdict, family = load(), database.get_column_family(name)
    pin = Pin(family)
    try:
        rows = PinnedRows(pin, EVERYTHING)
        while chunk := await rows.chunk():
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, raw in chunk:
                if unpack(key, raw)[0] & TOMBSTONE:
                    batch.delete(key)
                else:
                    batch.put(key, raw)
            database.write(batch)
    finally:
        pin.release()  # its iterator would keep the family open
        family.close()
