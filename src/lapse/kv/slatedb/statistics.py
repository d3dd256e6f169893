"""What a SlateDB store can say about itself."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.kv import format as stored
from lapse.kv import row
from lapse.kv.keys import EVERYTHING
from lapse.kv.slatedb.compaction import trees
from lapse.kv.slatedb.engine import data_files
from lapse.kv.ttl import NEVER_MS, from_millis
from lapse.kv.values import Stats

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import SlateStore


async def collect(store: SlateStore, *, counted: bool) -> Stats:
    state = store.state
    rows, expired, oldest_ms = await count(store) if counted else (None, None, NEVER_MS)
    if expired is not None:
        state.metrics.looked_at(expired=expired, oldest_ms=oldest_ms if expired else None)
    purged_ms = stored.read_mark(await store.meta_value(stored.PURGE_KEY))
    return Stats(
        url=store.url,
        engine=state.url.engine,
        format_version=state.format.version,
        default_ttl=None if state.default is None else str(state.default),
        bucket=timedelta(milliseconds=state.format.bucket_ms) if state.format.bucket_ms else None,
        buckets=0 if store.buckets is None else len(store.buckets),
        rows=rows,
        expired=expired,
        oldest_expired=from_millis(oldest_ms) if expired else None,
        counted=counted,
        bytes=await size(store),
        open_snapshots=state.open_readers,
        clock_mark=from_millis(state.mark_ms),
        last_purge=from_millis(purged_ms) if purged_ms else None,
    )


async def count(store: SlateStore) -> tuple[int, int, int]:
    """Rows, those of them that are expired, and the earliest expiry."""
    now_ms, rows, expired, oldest_ms = store.state.clock.now_ms(), 0, 0, NEVER_MS
    chunks = store.chunks(EVERYTHING)
    while found := await chunks.chunk():
        for key, raw in found:
            flags, _, expires_ms = row.unpack(key, raw)
            if flags & row.TOMBSTONE:
                continue
            rows += 1
            if expires_ms <= now_ms:
                expired += 1
                oldest_ms = min(oldest_ms, expires_ms)
    return rows, expired, oldest_ms


async def size(store: SlateStore) -> int:
    """Bytes of the store: of its files where it has files, else of the tables it refers to."""
    path = store.state.url.path
    if path is None:
        manifest = await store.admin.read_manifest(None)
        return sum(tree.bytes for tree in trees(manifest)) if manifest else 0
    return sum(_file_bytes(file) for file in data_files(path))


def _file_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
