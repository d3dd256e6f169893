"""Stores with time buckets, which earlier versions could make: their rows move into one family, once.

A bucket was a column family of its own. The newest bucket that has a key has its newest version, so the buckets are
copied oldest first, each over the ones before. A crash in the middle leaves the buckets and their description as they
were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lapse.errors import StoreError
from lapse.kv import format as stored
from lapse.kv.format import StoreFormat
from lapse.kv.keys import EVERYTHING
from lapse.kv.rocksdb.engine import load
from lapse.kv.rocksdb.views import Pin, PinnedRows
from lapse.kv.row import TOMBSTONE, unpack
from lapse.kv.units import UNKNOWN, pack_units
from lapse.kv.url import StoreUrl

_PREFIX = "bucket-"


async def without_buckets(url: StoreUrl, database: Any, meta: Any, format: StoreFormat) -> StoreFormat:
    names = [name for name in load().Rdict.list_cf(str(url.path)) if name.startswith(_PREFIX)]
    try:
        for name in sorted(names, key=lambda name: int(name.removeprefix(_PREFIX))):
            await _copy(database, name)
    except ValueError as error:
        raise StoreError(f"{url} has families that are no time buckets: {', '.join(names)}") from error
    database.flush()
    flat = replace(format, bucket_ms=0)
    meta.put(stored.UNITS_KEY, pack_units([UNKNOWN]))
    meta.delete(stored.WRITTEN_KEY)
    meta.put(stored.FORMAT_KEY, flat.to_bytes())
    meta.flush()
    drop_buckets(url, database)
    return flat


def drop_buckets(url: StoreUrl, database: Any) -> None:
    """Those of a store that was converted; a process may have been killed before it came to that."""
    for name in load().Rdict.list_cf(str(url.path)):
        if name.startswith(_PREFIX):
            database.drop_column_family(name)


async def _copy(database: Any, name: str) -> None:
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
