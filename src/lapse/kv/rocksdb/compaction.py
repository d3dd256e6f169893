"""Driving RocksDB's compaction, which on its own leaves an idle store as it is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lapse.kv.format import OWN_KEYS
from lapse.kv.keys import KeyRange
from lapse.kv.rocksdb.engine import load

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

_SLICE_BYTES = 128 * 1024 * 1024
"""Rewritten in one step, about a second: what a purge may take to stop."""

Live = dict[str, Any]
"""What the engine says about one table file."""


def tables(store: RocksStore, ranges: Sequence[KeyRange], *, own: bool = True) -> tuple[list[str], int]:
    """The names of the tables that can hold rows of these ranges, Lapse's own family included, and how many cannot."""
    names, others = [], 0
    for live in store.handle.live_files():
        if (own and _is_own(live)) or any(_overlaps(live, keys) for keys in ranges):
            names.append(live["name"].lstrip("/"))
        else:
            others += 1
    return names, others


def rewrite(store: RocksStore, keys: KeyRange, *, is_over: Callable[[], bool]) -> int:
    """Compact the tables of a range, those of the last level included, and return their bytes."""
    found = [live for live in store.handle.live_files() if _overlaps(live, keys)]
    for part in _slices(keys, found):
        if is_over():
            break
        compact(store.handle, part.start, part.end)
    return sum(live["size"] for live in found if not _is_own(live))


def compact_aged(store: RocksStore, *, is_over: Callable[[], bool]) -> int:
    """Rewrite table files older than the store's interval, oldest first, up to its budget; returns their
    bytes.

    Each file's age is compared with the interval less a random part, so that files of one day are not all due
    at once.
    """
    options = store.state.options
    interval_s = options.compact_after_s or 0.0
    now_s, root, aged = time.time(), store.path, []
    for live in store.handle.live_files():
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
        family = store.meta_family if _is_own(live) else store.handle
        compact(family, live["start_key"], live["end_key"] + b"\0")
        compacted += live["size"]
    return compacted


def compact(family: Any, start: bytes | None, end: bytes | None) -> None:
    rocksdict = load()
    options = rocksdict.CompactOptions()
    options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
    family.compact_range(start, end, compact_opt=options)


def _is_own(live: Live) -> bool:
    """Whether it is a table of Lapse's own family, which the engine does not say."""
    return live["start_key"] in OWN_KEYS and live["end_key"] in OWN_KEYS


def _overlaps(live: Live, keys: KeyRange) -> bool:
    starts_before = keys.end is None or live["start_key"] < keys.end
    return bool(starts_before and (keys.start is None or live["end_key"] >= keys.start))


def _slices(keys: KeyRange, found: Sequence[Live]) -> Iterator[KeyRange]:
    """Neighbouring ranges that together cover the range, cut between files. Those of the first level overlap all
    others, and go with the first slice."""
    start, size = keys.start, 0
    for live in sorted((live for live in found if live["level"]), key=lambda live: live["end_key"]):
        size += live["size"]
        end = live["end_key"] + b"\0"
        if size >= _SLICE_BYTES and (keys.end is None or end < keys.end):
            yield KeyRange(start=start, end=end)
            start, size = end, 0
    yield KeyRange(start=start, end=keys.end)
