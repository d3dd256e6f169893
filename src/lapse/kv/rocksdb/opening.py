"""From a URL to an open RocksDB store."""

from __future__ import annotations

from typing import Any

from lapse.errors import LapseError, Refused, StoreError
from lapse.kv import format as stored
from lapse.kv.clock import StoreClock
from lapse.kv.format import StoreFormat
from lapse.kv.options import Options
from lapse.kv.rocksdb.engine import META_FAMILY, open_database, translate
from lapse.kv.rocksdb.store import RocksStore
from lapse.kv.rocksdb.upgrade import drop_buckets, without_buckets
from lapse.kv.rocksdb.views import check_status
from lapse.kv.state import State
from lapse.kv.url import StoreUrl


async def open_store(url: StoreUrl, options: Options) -> RocksStore:
    try:
        database = open_database(url, options)
        try:
            meta = database.get_column_family(META_FAMILY)
            try:
                return await _open(url, options, database, meta)
            except BaseException:
                meta.close()
                raise
        except BaseException:
            database.close()
            raise
    except LapseError:
        raise
    except Exception as error:
        raise translate(url, error) from error


async def _open(url: StoreUrl, options: Options, database: Any, meta: Any) -> RocksStore:
    clock = StoreClock(options.clock, max_jump_ms=None if options.read_only else options.max_clock_jump_ms)
    raw = meta.get(stored.FORMAT_KEY)
    if raw is None and (options.read_only or not _is_empty(database)):
        raise StoreError(f"{url} has rows but no description: it is not whole")
    format = StoreFormat(engine=url.engine, created_ms=clock.now_ms()) if raw is None else stored.read_format(raw)
    mark_ms = stored.read_mark(meta.get(stored.MARK_KEY))
    if options.read_only:
        if format.bucket_ms:
            raise Refused(f"{url} has time buckets", hint="open it for writing once: that converts it")
        clock.start_at(mark_ms)
    elif not options.trust_clock:
        clock.resume(mark_ms, wait_s=options.clock_wait_s)
    if format.bucket_ms:
        format = await without_buckets(url, database, meta, format)
    elif not options.read_only:
        drop_buckets(url, database)
    state = State(url=url, options=options, format=format, clock=clock, translate=translate)
    default, written = meta.get(stored.DEFAULT_TTL_KEY), meta.get(stored.WRITTEN_KEY)
    is_new = raw is None
    words = state.birth_words() if is_new else state.first_words(mark_ms=mark_ms, default=default, written=written)
    for name, value in words.items():
        meta.put(name, value)
    return RocksStore(state=state, database=database, meta_family=meta)


def _is_empty(database: Any) -> bool:
    first = database.iter()
    first.seek_to_first()
    if first.valid():
        return False
    check_status(first)
    return True
