"""From a URL to an open RocksDB store."""

from __future__ import annotations

from typing import Any

from lapse.errors import StoreError
from lapse.kv import format as stored
from lapse.kv.buckets import read_buckets
from lapse.kv.clock import StoreClock
from lapse.kv.format import StoreFormat, check_bucket
from lapse.kv.options import Options, Unset
from lapse.kv.rocksdb.engine import META_FAMILY, engine_errors, load, open_database, write_options
from lapse.kv.rocksdb.foreign import ForeignRocksStore
from lapse.kv.rocksdb.purge import restore_bounds
from lapse.kv.rocksdb.store import RocksStore
from lapse.kv.rocksdb.tables import open_table
from lapse.kv.state import State
from lapse.kv.units import EMPTY, pack_units
from lapse.kv.url import StoreUrl


def open_store(url: StoreUrl, options: Options) -> RocksStore | ForeignRocksStore:
    clock = StoreClock(options.clock)
    with engine_errors(url):
        database, ours = open_database(url, options)
        try:
            if not ours:
                return ForeignRocksStore(url=url, database=database, options=options)
            return _open_ours(url, options, database, clock)
        except BaseException:
            database.close()
            raise


def _open_ours(url: StoreUrl, options: Options, database: Any, clock: StoreClock) -> RocksStore:
    meta = database.get_column_family(META_FAMILY)
    try:
        raw = meta.get(stored.FORMAT_KEY)
        is_new = raw is None and next(iter(database.keys()), None) is None and not options.read_only
        if raw is None and not is_new:
            raise StoreError(f"{url} has rows but no description: it is not whole")
        if is_new:
            format = StoreFormat(engine=url.engine, created_ms=clock.now_ms(), bucket_ms=options.bucket_ms)
        else:
            format = stored.read_format(raw)
            check_bucket(format, options)
        mark_ms = stored.read_mark(meta.get(stored.MARK_KEY))
        if not options.read_only:
            clock.resume(mark_ms, wait_s=options.clock_wait_s)
        state = State(url=url, options=options, format=format, clock=clock)
        state.mark_ms = mark_ms
        state.default = stored.read_default(meta.get(stored.DEFAULT_TTL_KEY))
        buckets = read_buckets(meta.get(stored.BUCKETS_KEY), width_ms=format.bucket_ms) if format.bucket_ms else None
        path = str(url.path)
        table = open_table(database, write_options(options.durable), buckets, load().Rdict.list_cf(path))
        if not options.read_only:
            _prepare(state, meta, is_new)
        return RocksStore(state=state, database=database, table=table, meta_family=meta)
    except BaseException:
        meta.close()
        raise


def _prepare(state: State, meta: Any, is_new: bool) -> None:
    if is_new:
        # Last of all comes the format: a store that has it has everything else.
        meta.put(stored.UNITS_KEY, pack_units([EMPTY]))
        meta.put(stored.MARK_KEY, stored.pack_mark(state.clock.now_ms()))
        meta.put(stored.FORMAT_KEY, state.format.to_bytes())
    state.written = restore_bounds(meta, is_new=is_new)
    if not isinstance(state.options.default_ttl, Unset):
        state.default = state.options.default_ttl
        meta.put(stored.DEFAULT_TTL_KEY, stored.pack_default(state.default))
