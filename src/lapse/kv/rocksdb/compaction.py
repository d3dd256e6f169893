"""Driving RocksDB's compaction, which on its own leaves an idle store as it is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lapse.kv.rocksdb.engine import load

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

_SLICE_BYTES = 128 * 1024 * 1024
"""Rewritten in one step, about a second: what a purge may take to stop."""


def rewrite(database: Any, family: Any, *, is_over: Callable[[], bool]) -> None:
    """Compact a whole family, files of the last level included."""
    for start, end in _slices(database.live_files()):
        if is_over():
            return
        _rewrite(family, start, end)


def compact_aged(store: RocksStore, *, is_over: Callable[[], bool]) -> int:
    """Rewrite table files older than the store's interval, oldest first, up to its budget; returns their
    bytes.

    Each file's age is compared with the interval less a random part, so that files of one day are not all due
    at once.
    """
    options = store.state.options
    assert options.periodic_compaction_interval is not None and store.state.url.path is not None
    interval_s = options.periodic_compaction_interval.interval.approximate_seconds
    now_s, root, aged = time.time(), store.state.url.path, []
    for live in store.database.live_files():
        try:
            age_s = now_s - (root / live["name"].lstrip("/")).stat().st_mtime
        except FileNotFoundError:
            continue
        if age_s >= interval_s * (1 - random.random() * options.compaction_jitter):
            aged.append((age_s, live))
    compacted = 0
    for _, live in sorted(aged, key=lambda item: -item[0]):
        if is_over() or (compacted + live["size"] > options.compaction_budget_bytes and compacted):
            break
        for family in (*store.table.families(), store.meta_family):
            _rewrite(family, live["start_key"], live["end_key"] + b"\0")
        compacted += live["size"]
    return compacted


def _slices(live_files: Sequence[dict[str, Any]]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Neighbouring ranges that together cover every key, cut between files. Those of the first level overlap all
    others, and go with the first slice."""
    start, size = None, 0
    for live in sorted((live for live in live_files if live["level"]), key=lambda live: live["end_key"]):
        size += live["size"]
        if size >= _SLICE_BYTES:
            end = live["end_key"] + b"\0"
            yield start, end
            start, size = end, 0
    yield start, None


def _rewrite(family: Any, start: bytes | None, end: bytes | None) -> None:
    rocksdict = load()
    options = rocksdict.CompactOptions()
    options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
    family.compact_range(start, end, compact_opt=options)
