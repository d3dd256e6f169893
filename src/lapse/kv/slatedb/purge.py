"""Removing expired rows from SlateDB, on an idle store as well: there its compactor and garbage collector have to be
driven."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.errors import ClockBehind
from lapse.kv import format as stored
from lapse.kv.options import Budget
from lapse.kv.purge import Purge
from lapse.kv.reads import Scan
from lapse.kv.slatedb.engine import COMPACTOR_CHECKPOINT_S, data_files, load, meta_key, remove_half_written
from lapse.kv.values import Verification
from lapse.kv.verify import IsOver, check, take_sample

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import SlateStore

_POLL_S = 0.02
_REMOTE_POLL_S = 1.0
_ATTEMPTS = 5
"""The engine's own scheduler may take the same files at the same moment; then ours is tried again."""

_CLOCK_PATIENCE_S = 1.0


class SlatePurge(Purge):
    """By real deletes, which snapshots respect. The engine knows the expiries, too (system clock), and drops expired
    rows when it happens to compact them."""

    store: SlateStore

    def __init__(self, store: SlateStore, budget: Budget) -> None:
        super().__init__(store, budget)
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
                found = trees(await store.admin.read_manifest(None))
                done = [await compact(store.admin, segment, is_over=self.is_over) for segment in found]
                self.compacted = sum(done)
                if all(done):
                    await self.save(self.fresh)
        if self.is_over():
            return
        # The first lets the engine see the compacted state and move its log, the second takes the log's last file.
        await self._collect()
        self._others = await self._collect()

    def why_kept(self) -> str | None:
        if self.store.open_snapshots():
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
            await tick(store.handle, store.state.clock.now_ms(), key=meta_key(stored.HEARTBEAT_KEY))
            if self._has_scans() or not await is_quiet(store.admin):
                return 0  # they still read, or write, files that look like garbage
            others = await drop_compactor_checkpoints(store.admin)
            await collect_garbage(store.admin, path)
            if path is not None:
                remove_half_written(path)
        return others

    def _has_scans(self) -> bool:
        return any(isinstance(view, Scan) for view in self.store.views)


def trees(manifest: Any) -> dict[bytes, Any]:
    """The LSM trees of the database that have tables, by segment: `l0` are tables that were flushed, `compacted` are
    sorted runs of tables; newest first."""
    found = {b"": manifest} | {segment.prefix: segment for segment in manifest.segments}
    return {segment: tree for segment, tree in found.items() if tree.l0 or tree.compacted}


def tree_bytes(tree: Any) -> int:
    return sum(part.estimated_size_bytes for part in (*tree.l0, *tree.compacted))


async def tick(handle: Any, now_ms: int, *, key: bytes) -> None:
    """Move the engine's idea of now: compaction compares with the newest flushed write, not with a clock."""
    slatedb = load()
    await handle.put(key, b"%d" % now_ms)
    await handle.flush_with_options(slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE))


async def compact(admin: Any, segment: bytes, *, is_over: IsOver) -> int:
    """Rewrite a whole tree into one run; returns the bytes it had, 0 if it was over before the engine was done."""
    for _ in range(_ATTEMPTS):
        found = trees(await admin.read_manifest(None))
        if segment not in found or is_over():
            break
        if await _run(admin, found, segment, is_over):
            return tree_bytes(found[segment])
    return 0


async def _run(admin: Any, found: dict[bytes, Any], segment: bytes, is_over: IsOver) -> bool:
    """Once `is_over`, a running compaction is left to the engine, which finishes it. The new run has the number of the
    oldest, or one that no run of the database has: they are numbered across segments."""
    slatedb = load()
    status, source, tree = slatedb.CompactionStatus, slatedb.SourceId, found[segment]
    views, runs = [view.id for view in tree.l0], [run.id for run in tree.compacted]
    unused = max((run.id for tree in found.values() for run in tree.compacted), default=-1) + 1
    spec = slatedb.CompactionSpec.TIERED(
        segment=segment,
        sources=[*map(source.SST_VIEW, views), *map(source.SORTED_RUN, runs)],
        destination=min(runs, default=unused),
    )
    submitted = await _submit(admin, spec)
    while True:
        job = await admin.read_compaction(submitted.id, None)
        if job is None or job.status == status.FAILED:
            return False
        if job.status == status.COMPLETED:
            return True
        if is_over():
            return False
        await asyncio.sleep(_POLL_S)


async def _submit(admin: Any, spec: Any) -> Any:
    """The engine's background work may tick its clock between reading the time here and using it: asked again,
    it has a later time. A clock that is really behind stays behind, and is an error."""
    patience_s = time.monotonic() + _CLOCK_PATIENCE_S
    while True:
        try:
            return await admin.submit_compaction(spec)
        except ClockBehind:
            if time.monotonic() >= patience_s:
                raise
        await asyncio.sleep(_POLL_S)


async def is_quiet(admin: Any) -> bool:
    """Whether no compaction is under way, whose output a garbage collection could take for garbage."""
    found, status = await admin.read_compactions(None), load().CompactionStatus
    entries = [] if found is None else found.recent_compactions
    return all(entry.status in (status.COMPLETED, status.FAILED) for entry in entries)


async def drop_compactor_checkpoints(admin: Any) -> int:
    """Delete the checkpoints that the compactor made; returns how many of other readers remain."""
    others = 0
    for checkpoint in await admin.list_checkpoints(None):
        lifetime_s = (checkpoint.expire_time_secs or 0) - checkpoint.create_time_secs
        if checkpoint.name is None and abs(lifetime_s - COMPACTOR_CHECKPOINT_S) <= 1:
            await admin.delete_checkpoint(checkpoint.id)
        else:
            others += 1
    return others


async def collect_garbage(admin: Any, path: Path | None) -> None:
    """The engine marks how far it has deleted manifests in a file that it can create in a directory (`path`) but not
    change: with the mark of an earlier time left there, it would delete none any more."""
    slatedb = load()
    if path is not None:
        for mark in (path / "gc").glob("*.boundary"):
            mark.unlink(missing_ok=True)
    folders = ("manifest_options", "wal_options", "compacted_options", "compactions_options")
    at_once: dict[str, Any] = {
        name: slatedb.GarbageCollectorDirectoryOptions(interval_ms=None, min_age_ms=0, dry_run=False)
        for name in folders
    }
    await admin.run_gc_once(slatedb.GarbageCollectorOptions(**at_once, wal_fence_options=None, detach_options=None))
