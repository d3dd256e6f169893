"""Stores with time buckets, which earlier versions could make: their rows move into one segment, once.

The newest bucket that has a key has its newest version, so the buckets are emptied oldest first, each over the ones
before. A row leaves its bucket in the batch that writes it elsewhere: a crash in the middle loses nothing, and it
goes on from there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from lapse.kv import format as stored
from lapse.kv.format import StoreFormat
from lapse.kv.keys import EVERYTHING
from lapse.kv.row import TOMBSTONE, unpack
from lapse.kv.slatedb.engine import load
from lapse.kv.slatedb.keyspace import BUCKET_MARK, SEGMENT, bucket_prefix, meta_key
from lapse.kv.slatedb.scans import Source
from lapse.kv.units import UNKNOWN, pack_units


async def without_buckets(handle: Any, admin: Any, format: StoreFormat) -> StoreFormat:
    known = json.loads(await handle.get(meta_key(stored.BUCKETS_KEY)) or b"{}")
    manifest = await admin.read_manifest(None)
    segments = {part.prefix for part in manifest.segments if part.prefix[:1] == BUCKET_MARK}
    for prefix in sorted((segments | {bucket_prefix(int(id)) for id in known}) - {SEGMENT}):
        await _move(handle, prefix)
    flat = replace(format, bucket_ms=0, segmented=True)
    batch = load().WriteBatch()
    batch.put(meta_key(stored.UNITS_KEY), pack_units([UNKNOWN]))
    batch.put(meta_key(stored.WRITTEN_KEY), b"")
    batch.put(meta_key(stored.FORMAT_KEY), flat.to_bytes())
    await handle.write(batch)
    await handle.flush()
    return flat


async def _move(handle: Any, prefix: bytes) -> None:
    source = Source(await handle.snapshot(), EVERYTHING, prefix)
    while rows := await source.chunk():
        batch = load().WriteBatch()
        for key, raw in rows:
            if unpack(key, raw)[0] & TOMBSTONE:
                batch.delete(SEGMENT + key)
            else:
                batch.put(SEGMENT + key, raw)
            batch.delete(prefix + key)
        await handle.write(batch)
