"""From a URL to an open RocksDB store.

Stores with time buckets, which earlier versions could make, are converted: their rows move into one family. A bucket
was a column family of its own. The newest bucket that has a key has its newest version, so the buckets are copied
oldest first, each over the ones before. A crash in the middle leaves the buckets and their description as they were.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from lapse.errors import Refused, StoreError
from lapse.kv import format as stored
from lapse.kv.clock import StoreClock
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
    calls = Calls(url, options.timeout_s)
    with lapse_errors(url), ExitStack() as opened:
        database = Handle(open_database(url, options, calls), url, calls)
        opened.callback(database.close)
        meta = Handle(database.get_column_family(META_FAMILY), url, calls)
        opened.callback(meta.close)
        store = await _open(url, options, database, meta, calls)
        opened.pop_all()
        return store


async def _open(url: StoreUrl, options: Options, database: Handle, meta: Handle, calls: Calls) -> RocksStore:
    clock = StoreClock(options.clock, max_jump_ms=None if options.read_only else options.max_clock_jump_ms)
    raw = meta.get(stored.FORMAT_KEY)
    if raw is None and (options.read_only or not is_empty(database)):
        raise StoreError(f"{url} has rows but no format record: it is incomplete", hint="restore it from a backup")
    format = StoreFormat(engine=url.engine, created_ms=clock.now_ms()) if raw is None else stored.read_format(raw)
    mark_ms = stored.read_mark(meta.get(stored.MARK_KEY))
    if options.read_only:
        if format.bucket_ms:
            raise Refused(f"{url} has time buckets", hint="open it for writing once: that converts it")
        clock.start_at(mark_ms)
    else:
        if not options.trust_clock:
            clock.resume(mark_ms, wait_s=options.clock_wait_s)
        format = await _without_buckets(url, database, meta, format)
    state = State(url=url, options=options, format=format, clock=clock)
    store = RocksStore(state=state, database=database, meta_family=meta, calls=calls)
    await store.start(is_new=raw is None, mark_ms=mark_ms)
    return store


async def _without_buckets(url: StoreUrl, database: Handle, meta: Handle, format: StoreFormat) -> StoreFormat:
    """A process may have been killed between the conversion and the end of the buckets."""
    names = [name for name in load().Rdict.list_cf(str(url.path)) if name.startswith(_BUCKET)]
    if format.bucket_ms:
        try:
            for name in sorted(names, key=lambda name: int(name.removeprefix(_BUCKET))):
                await _copy(database, name)
        except ValueError as error:
            raise StoreError(f"{url} has column families that are not time buckets: {', '.join(names)}") from error
        database.flush()
        format = replace(format, bucket_ms=0)
        meta.put(stored.UNITS_KEY, pack_units([UNKNOWN]))
        meta.delete(stored.WRITTEN_KEY)
        meta.put(stored.FORMAT_KEY, format.to_bytes())
        meta.flush()
    for name in names:
        database.drop_column_family(name)
    return format


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
