"""Removing expired rows from RocksDB: real deletes, which snapshots respect, then compaction that frees the bytes."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.kv import format as stored
from lapse.kv.budget import Budget
from lapse.kv.keys import KeyRange
from lapse.kv.purge import Purge
from lapse.kv.rocksdb import compaction
from lapse.kv.units import Unit, Units, join
from lapse.kv.values import Verification
from lapse.kv.verify import check, take_sample
from lapse.kv.written import Written

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore

_POLL_S = 0.01
_UNLINK_S = 0.2


class RocksPurge(Purge):
    def __init__(self, store: RocksStore, budget: Budget, stop: threading.Event | None) -> None:
        super().__init__(store, budget, stop)
        self.store = store
        self.keys_after_ms = self.now_ms
        self._owed: list[KeyRange] = []
        """Ranges whose files are to be rewritten: units, and single keys."""
        self._owed_ms: list[int] = []
        """What each unit owes until then, the keys in it included."""

    def note_due(self, units: Units, written: Written) -> Units:
        if self.physical:
            self._owed = [
                KeyRange(start=unit.start or None, end=units.end(index))
                for index, unit in enumerate(units.all)
                if self.owes(unit)
            ]
        noted = Units(list(units.all))
        for group in written.due(self.now_ms):
            noted.owe(group, rows=False)
        self._owed_ms = [unit.owed_ms for unit in noted.all]
        return noted

    def looked_up(self, keys: list[bytes]) -> None:
        if self.physical:
            self._owed += [KeyRange(start=key, end=key + b"\0") for key in keys]

    async def remove_rest(self, units: Units) -> Verification | None:
        swept = await self.sweep(units)
        if self.physical:
            return await self._free_bytes(units, swept)
        if self.state.options.compact_after_s is not None:
            self.compacted = compaction.compact_aged(self.store, is_over=self.is_over)
        return None

    def after_sweep(self, units: Units, swept: list[list[Unit]]) -> list[Unit]:
        kept: list[Unit] = []
        for unit, owed_ms, parts in zip(units.all, self._owed_ms, swept, strict=True):
            parts = [replace(part, owed_ms=min(part.owed_ms, owed_ms)) for part in parts]
            kept += [replace(parts[0], start=unit.start), *parts[1:]]
        return kept

    # Freeing and proving

    async def _free_bytes(self, units: Units, swept: list[list[Unit]]) -> Verification:
        store = self.store
        store.handle.flush_wal(False)
        take_sample(self.sample, self._files()[0], is_over=self.is_over)
        # A file that overlaps no other is moved to the last level as it is; only from there is it rewritten.
        for attempt in range(3):
            self._flush()
            self._rewrite_owed()
            if not self.is_over():
                await self._forget_keys(units, swept)
            found = self._wait_for_unlinking(_UNLINK_S if attempt < 2 else self.spending.left_s)
            if found.clean or self._has_views() or self.is_over():
                break
        if not found.clean or found.unchecked is not None:
            await self.save(self.kept)  # what is owed is owed still
        if not found.clean:
            why = "open snapshots or scans keep them" if self._has_views() else self.spending.why_over
            self.leave_rest(f"purged bytes are still in the store's files: {why}")
        elif found.unchecked is not None:
            self.leave_rest(f"not all files were searched for purged bytes: {self.spending.why_over}")
        return found

    def _rewrite_owed(self) -> None:
        """Each table once: many keys may lie in one."""
        fresh: set[str] = set()
        for keys in self._owed:
            before = set(compaction.tables(self.store, [keys], own=False)[0])
            if before - fresh and not self.is_over():
                self.compacted += compaction.rewrite(self.store, keys, is_over=self.is_over)
                fresh |= set(compaction.tables(self.store, [keys], own=False)[0]) - before

    def _flush(self) -> None:
        """A mark is written first, so that there is something to flush and the log is changed."""
        store = self.store
        with store.lock:
            store.meta_family.put(stored.MARK_KEY, stored.pack_mark(max(store.state.mark_ms, self.now_ms)))
            store.handle.flush()
            store.meta_family.flush()

    async def _forget_keys(self, units: Units, swept: list[list[Unit]]) -> None:
        """Units whose files were rewritten begin with rows that live, and owe only what these will."""
        owed = {keys.start for keys in self._owed}
        fresh: list[Unit] = []
        for unit, parts in zip(units.all, swept, strict=True):
            if (unit.start or None) in owed and not self.unfinished:
                fresh += [replace(part, owed_ms=part.min_ms, start=part.start if part.rows else b"") for part in parts]
            else:
                fresh += [replace(parts[0], start=unit.start), *parts[1:]]
        await self.save(join(fresh))
        self._flush()
        compaction.compact(self.store.meta_family, None, None)
        self._clear_diagnostics()

    def _clear_diagnostics(self) -> None:
        """The engine's log for people names the ranges that were compacted."""
        for file in self.store.path.glob("LOG*"):
            if file.name == "LOG":
                os.truncate(file, 0)
            else:
                file.unlink(missing_ok=True)

    def _files(self) -> tuple[list[Path], list[Path], int]:
        """Files that can hold purged rows, files that can hold keys, and how many tables can hold neither."""
        names, others = compaction.tables(self.store, self._owed)
        live = {live["name"].lstrip("/") for live in self.store.handle.live_files()}
        files = [file for file in self.store.data_files() if file.name in names or file.name not in live]
        return files, [file for file in self.store.path.iterdir() if file.name.startswith("MANIFEST")] + files, others

    def _wait_for_unlinking(self, at_most_s: float) -> Verification:
        """RocksDB removes files in a thread of its own."""
        until_s = time.monotonic() + min(at_most_s, self.spending.left_s)
        while True:
            files, manifests, others = self._files()
            left = self.sample.left_of(file.name for file in files)
            is_last = self.is_over() or self._has_views() or time.monotonic() >= until_s
            if not left or is_last:
                found = check(self.sample, files, is_over=self.is_over, manifests=manifests, elsewhere=others)
                if found.clean or is_last:
                    return found
            time.sleep(_POLL_S)

    def _has_views(self) -> bool:
        """Whether an open scan or snapshot keeps files of the engine alive."""
        return any(view.is_open for view in list(self.store.views))
