"""Removing expired rows from SlateDB, on an idle store as well."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from lapse.kv import format as stored
from lapse.kv.budget import Budget
from lapse.kv.purge import Purge
from lapse.kv.reads import Scan
from lapse.kv.slatedb import compaction
from lapse.kv.slatedb.engine import data_files, meta_key, remove_half_written
from lapse.kv.values import Verification
from lapse.kv.verify import check, take_sample

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import SlateStore

_POLL_S = 0.02
_REMOTE_POLL_S = 1.0


class SlatePurge(Purge):
    """By real deletes, which snapshots respect. The engine knows the expiries, too (system clock), and drops expired
    rows when it happens to compact them."""

    def __init__(self, store: SlateStore, budget: Budget) -> None:
        super().__init__(store, budget)
        self.store = store
        self.poll_s = _POLL_S if store.state.url.remote is None else _REMOTE_POLL_S
        self._has_begun = False
        self._others = 0
        """Checkpoints of other readers."""

    async def rewrite(self) -> None:
        store = self.store
        if not self._has_begun:
            self._has_begun = True
            await store.handle.flush()
            if (path := store.state.url.path) is not None:
                await asyncio.to_thread(take_sample, self.sample, data_files(path), is_over=self.is_over)
            self.sample.files = frozenset(await self.file_names() if self.owed else ())
            if self.owed and not self.is_over():
                # The rewrite takes the keys of purged rows out of the units' older versions, too.
                await self.save([replace(unit, owed_ms=0) for unit in self.fresh])
                await self._collect()  # the log, before as much space is needed once more
                trees = compaction.trees(await store.admin.read_manifest(None))
                done = [await compaction.compact(store.admin, tree.segment, is_over=self.is_over) for tree in trees]
                self.compacted = sum(done)
                if all(done):
                    await self.save(self.fresh)
        if self.is_over():
            return
        # The first lets the engine see the compacted state and move its log, the second takes the log's last file.
        await self._collect()
        self._others = await self._collect()

    def why_kept(self) -> str | None:
        if self.store.state.open_readers:
            return "open snapshots or transactions keep them"
        if self._has_scans():
            return "an open scan keeps them"
        return f"{self._others} checkpoints of other readers keep them" if self._others else None

    async def file_names(self) -> list[str]:
        """Of the first and last key of a table, too. In an object store, of the tables: by asking what a deletion of
        the whole database would remove, without one, which is the only listing there is. The log is left out there,
        because its empty objects, which stay, cannot be told from others by their names."""
        if (path := self.store.state.url.path) is not None:
            return [file.name for file in data_files(path, ("wal", "compacted", "manifest"))]
        return [name for name in await self.store.admin.delete_db(False) if "/compacted/" in name]

    async def search(self) -> Verification:
        url = self.store.state.url
        if url.path is not None:
            files, manifests = data_files(url.path), data_files(url.path, ("manifest", "compactions"))
            return await asyncio.to_thread(check, self.sample, files, is_over=self.is_over, manifests=manifests)
        names = await self.file_names()
        why = "a store in memory has no files" if url.in_memory else "Lapse does not read objects"
        return Verification(
            files=len(names),
            files_left=self.sample.left_of(names),
            unchecked=f"the bytes of the objects, and which of the log's objects remain: {why}",
        )

    async def _collect(self) -> int:
        """Remove files that nothing needs; returns how many checkpoints of other readers keep some."""
        store, path = self.store, self.store.state.url.path
        async with store.gate.alone():
            await self._tick()
            if self._has_scans() or not await compaction.is_quiet(store.admin):
                return 0  # they still read, or write, files that look like garbage
            others = await compaction.drop_compactor_checkpoints(store.admin)
            await compaction.collect_garbage(store.admin, path)
            if path is not None:
                remove_half_written(path)
        return others

    def _has_scans(self) -> bool:
        return any(isinstance(view, Scan) and view.is_open for view in list(self.store.views))

    async def _tick(self) -> None:
        now_ms = self.store.state.clock.now_ms()
        await compaction.tick(self.store.handle, now_ms, key=meta_key(stored.HEARTBEAT_KEY))
