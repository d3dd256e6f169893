"""What a RocksDB store can say about itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.kv import format as stored
from lapse.kv import row
from lapse.kv.rocksdb.tables import BucketTable
from lapse.kv.ttl import NEVER_MS, from_millis
from lapse.kv.values import Stats

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore


def collect(store: RocksStore, *, counted: bool) -> Stats:
    state, table = store.state, store.table
    now_ms = state.clock.now_ms()
    rows, expired, oldest_ms = count(store, now_ms) if counted else (_estimate(store), None, NEVER_MS)
    if expired is not None:
        state.metrics.looked_at(expired=expired, oldest_ms=oldest_ms if expired else None)
    purged_ms = stored.read_mark(store.meta_value(stored.PURGE_KEY))
    return Stats(
        url=store.url,
        engine=state.url.engine,
        format_version=state.format.version,
        default_ttl=None if state.default is None else str(state.default),
        bucket=timedelta(milliseconds=state.format.bucket_ms) if state.format.bucket_ms else None,
        buckets=len(table.buckets) if isinstance(table, BucketTable) else 0,
        rows=rows,
        expired=expired,
        oldest_expired=from_millis(oldest_ms) if expired else None,
        counted=counted,
        bytes=total_bytes(data_files(store)),
        open_snapshots=state.open_readers,
        clock_mark=from_millis(max(state.mark_ms, 0)),
        last_purge=from_millis(purged_ms) if purged_ms else None,
    )


def count(store: RocksStore, now_ms: int) -> tuple[int, int, int]:
    """Rows, those of them that are expired, and the earliest expiry."""
    rows = expired = 0
    oldest_ms = NEVER_MS
    for key, raw in store.raw_rows():
        flags, _, expires_ms = row.unpack(key, raw)
        if flags & row.TOMBSTONE:
            continue
        rows += 1
        if expires_ms <= now_ms:
            expired += 1
            oldest_ms = min(oldest_ms, expires_ms)
    return rows, expired, oldest_ms


def data_files(store: RocksStore) -> list[Path]:
    path = store.state.url.path
    assert path is not None
    return [file for file in path.iterdir() if file.suffix in (".sst", ".log", ".blob")]


def total_bytes(files: Sequence[Path]) -> int:
    total = 0
    for file in files:
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _estimate(store: RocksStore) -> int:
    return sum(int(family.property_int_value("rocksdb.estimate-num-keys") or 0) for family in store.table.families())
