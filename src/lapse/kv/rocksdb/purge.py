"""Removing expired rows from RocksDB: real deletes, which snapshots respect, then compaction that frees the bytes.

Compaction has to be driven: on its own the engine leaves an idle store as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.kv import format as stored
from lapse.kv.keys import EVERYTHING, KeyRange
from lapse.kv.purge import Purge
from lapse.kv.rocksdb.engine import Handle, load
from lapse.kv.values import Verification
from lapse.kv.verify import check, take_sample

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

_MOST_REWRITES = 5
"""Two are enough; what then is still there is kept by something else, and waited for."""
_SLICE_BYTES = 128 * 1024 * 1024
"""Rewritten in one step, about a second: what a purge may take to stop."""

Table = dict[str, Any]
"""What the engine says about one table file."""


class RocksPurge(Purge):
    store: RocksStore
    poll_s = 0.01
    _rewrites = 0

    async def rewrite(self) -> None:
        """The engine removes files in a thread of its own: where none is left in use, that is waited for."""
        if not self._rewrites:
            self.store.handle.flush_wal(False)
            take_sample(self.sample, self._files()[0], is_over=self.is_over)
        is_waiting = self.sample.left_of(await self.file_names()) and not self.sample.left_of(
            map(_name, self._tables())
        )
        if self._rewrites == _MOST_REWRITES or (self._rewrites and is_waiting):
            return
        self._rewrites += 1
        self._flush()
        self._rewrite_owed()
        if not self.is_over():
            await self._forget_keys()

    def _rewrite_owed(self) -> None:
        """Each table once: many keys may lie in one. The engine leaves a table alone that has no key in the range that
        is asked for, so whole tables are. One that overlaps no other is moved to the last level as it is: then it is
        still there, and rewritten from there the next time."""
        fresh: set[str] = set()
        for keys in self.owed:
            found = [table for table in self._tables() if _overlaps(table, keys)]
            tables = [table for table in found if not _is_own(table)]
            before = set(map(_name, found))
            if before <= fresh:
                continue
            for part in _slices(tables) if tables else [keys]:
                if self.is_over():
                    return
                self._compact(self.store.handle, part)
            self.compacted += sum(table["size"] for table in tables)
            fresh |= {_name(table) for table in self._tables() if _overlaps(table, keys)} - before

    def _compact(self, family: Handle, keys: KeyRange) -> None:
        """One that takes longer than the purge may is left to the engine, which finishes it."""
        rocksdict = load()
        options = rocksdict.CompactOptions()
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        compact = partial(family.compact_range, keys.start, keys.end, compact_opt=options)
        self.store.calls.wait_for(compact, is_over=self.is_over)

    def _flush(self) -> None:
        """A mark is written first, so that there is something to flush and the log is changed."""
        store = self.store
        with store.lock:
            store.meta_family.put(stored.MARK_KEY, stored.pack_mark(max(store.state.mark_ms, self.now_ms)))
            store.handle.flush()
            store.meta_family.flush()

    async def _forget_keys(self) -> None:
        """Keys are in the units, in tables of Lapse's own, and in the engine's log for people, which names the ranges
        that were compacted."""
        await self.save(self.fresh)
        self._flush()
        self._compact(self.store.meta_family, EVERYTHING)
        for file in self.store.path.glob("LOG*"):
            if file.name == "LOG":
                os.truncate(file, 0)
            else:
                file.unlink(missing_ok=True)

    def why_kept(self) -> str | None:
        return "open snapshots or scans keep them" if list(self.store.views) else None

    async def file_names(self) -> list[str]:
        return [file.name for file in self._files()[0]]

    async def search(self) -> Verification:
        files, elsewhere = self._files()
        manifests = [*self.store.path.glob("MANIFEST*"), *files]
        return check(self.sample, files, is_over=self.is_over, manifests=manifests, elsewhere=elsewhere)

    def _files(self) -> tuple[list[Path], int]:
        """Files that can hold purged rows, and how many tables cannot."""
        elsewhere = {
            _name(table)
            for table in self._tables()
            if not _is_own(table) and not any(_overlaps(table, keys) for keys in self.owed)
        }
        return [file for file in self.store.data_files() if file.name not in elsewhere], len(elsewhere)

    def _tables(self) -> list[Table]:
        tables: list[Table] = self.store.handle.live_files()
        return tables


def _name(table: Table) -> str:
    name: str = table["name"]
    return name.lstrip("/")


def _is_own(table: Table) -> bool:
    """Whether it is a table of Lapse's own family, which the engine does not say."""
    return table["start_key"] in stored.OWN_KEYS and table["end_key"] in stored.OWN_KEYS


def _overlaps(table: Table, keys: KeyRange) -> bool:
    starts_before = keys.end is None or table["start_key"] < keys.end
    return bool(starts_before and (keys.start is None or table["end_key"] >= keys.start))


def _slices(tables: Sequence[Table]) -> Iterator[KeyRange]:
    """Neighbouring ranges that together cover the tables, cut between files. Those of the first level overlap all
    others, and go with the first slice."""
    start: bytes = min(table["start_key"] for table in tables)
    last: bytes = max(table["end_key"] for table in tables)
    size = 0
    for table in sorted((table for table in tables if table["level"]), key=lambda table: table["end_key"]):
        size += table["size"]
        if size >= _SLICE_BYTES and table["end_key"] < last:
            yield KeyRange(start=start, end=table["end_key"] + b"\0")
            start, size = table["end_key"] + b"\0", 0
    yield KeyRange(start=start, end=last + b"\0")
