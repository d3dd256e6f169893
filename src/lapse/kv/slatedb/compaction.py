"""Driving SlateDB's compactor and garbage collector, which on their own leave an idle store as it is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from lapse.errors import ClockBehind
from lapse.kv.slatedb.engine import COMPACTOR_CHECKPOINT_S, load
from lapse.kv.verify import IsOver

_POLL_S = 0.02
_ATTEMPTS = 5
"""The engine's own scheduler may take the same files at the same moment; then ours is tried again."""

_CLOCK_PATIENCE_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What the compactor can be asked to rewrite: one table that was flushed, or one run of tables."""

    id: str | int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """One LSM tree of the database: the whole of it, or one segment. Its parts are newest first."""

    segment: bytes
    parts: tuple[Part, ...]
    next_run: int
    """A number no run of the database has: runs are numbered across segments."""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def oldest_within(self, budget_bytes: float) -> tuple[Part, ...]:
        """Only neighbours may be compacted together. The oldest is taken whatever its size."""
        taken: list[Part] = []
        for part in reversed(self.parts):
            if taken and sum(other.bytes for other in taken) + part.bytes > budget_bytes:
                break
            taken.insert(0, part)
        return tuple(taken)


def trees(manifest: Any) -> list[Tree]:
    found = [(b"", manifest), *((segment.prefix, segment) for segment in manifest.segments)]
    next_run = max((run.id for _, tree in found for run in tree.compacted), default=-1) + 1
    cut = [
        (segment, tuple(Part(id=it.id, bytes=it.estimated_size_bytes) for it in (*tree.l0, *tree.compacted)))
        for segment, tree in found
    ]
    return [Tree(segment=segment, parts=parts, next_run=next_run) for segment, parts in cut if parts]


async def tick(handle: Any, now_ms: int, *, key: bytes) -> None:
    """Move the engine's idea of now: compaction compares with the newest flushed write, not with a clock."""
    slatedb = load()
    await handle.put(key, b"%d" % now_ms)
    await handle.flush_with_options(slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE))


async def compact(admin: Any, segment: bytes, *, is_over: IsOver, budget_bytes: float = inf) -> tuple[int, bool]:
    """Rewrite a tree into one run, or its oldest parts if it is larger than the budget. Returns how many bytes that
    were, 0 if the engine was not done in time, and whether it was all of the tree."""
    for _ in range(_ATTEMPTS):
        found = trees(await admin.read_manifest(None))
        tree = next((tree for tree in found if tree.segment == segment), None)
        if tree is None or is_over():
            break
        parts = tree.oldest_within(budget_bytes)
        if await _run(admin, tree, parts, is_over):
            return sum(part.bytes for part in parts), parts == tree.parts
    return 0, False


async def _run(admin: Any, tree: Tree, parts: tuple[Part, ...], is_over: IsOver) -> bool:
    """A compaction that the engine has begun goes on without being waited for once it is over."""
    slatedb = load()
    status, source = slatedb.CompactionStatus, slatedb.SourceId
    runs = [part.id for part in parts if isinstance(part.id, int)]
    submitted = await _submit(
        admin,
        slatedb.CompactionSpec.TIERED(
            segment=tree.segment,
            sources=[(source.SORTED_RUN if part.id in runs else source.SST_VIEW)(part.id) for part in parts],
            destination=min(runs, default=tree.next_run),
        ),
    )
    while True:
        found = await admin.read_compaction(submitted.id, None)
        if found is None or found.status == status.FAILED:
            return False
        if found.status == status.COMPLETED:
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
