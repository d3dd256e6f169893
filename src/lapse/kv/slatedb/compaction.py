"""Driving SlateDB's compactor and garbage collector, which on their own leave an idle store as it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.kv.slatedb.engine import COMPACTOR_CHECKPOINT_S, is_clock_error, load

_POLL_S = 0.02
_ATTEMPTS = 5
"""The engine's own scheduler may take the same files at the same moment; then ours is tried again."""

_CLOCK_PATIENCE_S = 1.0
_ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

IsOver = Callable[[], bool]
"""Whether there is no time left. A compaction that the engine has begun goes on without being waited for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """One LSM tree of the database: the whole of it, or one segment. Sources are newest first."""

    segment: bytes
    views: tuple[str, ...]
    runs: tuple[int, ...]
    next_run: int
    """A number no run of the database has: runs are numbered across segments."""
    sizes: dict[str | int, int]
    created_ms: dict[str | int, int]

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def is_empty(self) -> bool:
        return not self.views and not self.runs


def trees(manifest: Any) -> list[Tree]:
    runs = [run.id for part in (manifest, *manifest.segments) for run in part.compacted]
    next_run = max(runs, default=-1) + 1
    found = [_tree(b"", manifest.l0, manifest.compacted, next_run)]
    found += [_tree(part.prefix, part.l0, part.compacted, next_run) for part in manifest.segments]
    return [tree for tree in found if not tree.is_empty]


async def tick(handle: Any, now_ms: int, *, key: bytes) -> None:
    """Move the engine's idea of now: compaction compares with the newest flushed write, not with a clock."""
    slatedb = load()
    await handle.put(key, b"%d" % now_ms)
    await handle.flush_with_options(slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE))


async def compact(admin: Any, segment: bytes, *, is_over: IsOver) -> int:
    """Rewrite a whole tree into one run; returns the bytes it had, 0 if it was over before the engine was done."""
    slatedb = load()
    for _ in range(_ATTEMPTS):
        found = trees(await admin.read_manifest(None))
        tree = next((tree for tree in found if tree.segment == segment), None)
        if tree is None or is_over():
            break
        if await _run(admin, _tiered(slatedb, tree, tree.views, tree.runs), is_over):
            return tree.bytes
    return 0


async def compact_aged(
    admin: Any, *, interval_s: float, jitter: float, budget_bytes: int, now_ms: int, is_over: IsOver
) -> int:
    """Rewrite what has not been rewritten for `interval_s`, up to a budget; returns the bytes.

    The oldest sources of a tree are taken, as many as the budget allows: only neighbours may be compacted
    together. Each tree's interval is shortened by a random part, so that trees of one age are not all due at
    once.
    """
    slatedb, compacted = load(), 0
    for tree in trees(await admin.read_manifest(None)):
        due_ms = now_ms - interval_s * 1000 * (1 - random.random() * jitter)
        if is_over() or min(tree.created_ms.values()) > due_ms:
            continue
        views, runs, size = _oldest_within(tree, budget_bytes - compacted, allow_first=not compacted)
        if (views or runs) and await _run(admin, _tiered(slatedb, tree, views, runs), is_over):
            compacted += size
    return compacted


async def is_quiet(admin: Any) -> bool:
    """Whether no compaction is under way, whose output a garbage collection could take for garbage."""
    found = await admin.read_compactions(None)
    if found is None:
        return True
    status = load().CompactionStatus
    return all(entry.status in (status.COMPLETED, status.FAILED) for entry in found.recent_compactions)


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

    def at_once() -> Any:
        return slatedb.GarbageCollectorDirectoryOptions(interval_ms=None, min_age_ms=0, dry_run=False)

    await admin.run_gc_once(
        slatedb.GarbageCollectorOptions(
            manifest_options=at_once(),
            wal_options=at_once(),
            wal_fence_options=None,
            compacted_options=at_once(),
            compactions_options=at_once(),
            detach_options=None,
        )
    )


async def _run(admin: Any, spec: Any, is_over: IsOver) -> bool:
    status = load().CompactionStatus
    submitted = await _submit(admin, spec)
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
    slatedb, patience_s = load(), time.monotonic() + _CLOCK_PATIENCE_S
    while True:
        try:
            return await admin.submit_compaction(spec)
        except slatedb.Error.Invalid as error:
            if not is_clock_error(error) or time.monotonic() >= patience_s:
                raise
        await asyncio.sleep(_POLL_S)


def _tiered(slatedb: Any, tree: Tree, views: tuple[str, ...], runs: tuple[int, ...]) -> Any:
    sources = [slatedb.SourceId.SST_VIEW(id) for id in views] + [slatedb.SourceId.SORTED_RUN(id) for id in runs]
    destination = min(runs) if runs else tree.next_run
    return slatedb.CompactionSpec.TIERED(segment=tree.segment, sources=sources, destination=destination)


def _oldest_within(tree: Tree, budget: int, *, allow_first: bool) -> tuple[tuple[str, ...], tuple[int, ...], int]:
    taken: list[str | int] = []
    size = 0
    newest_first: list[str | int] = [*tree.views, *tree.runs]
    for source in reversed(newest_first):
        if size + tree.sizes[source] > budget and not (allow_first and not taken):
            break
        taken.append(source)
        size += tree.sizes[source]
    views = tuple(id for id in tree.views if id in taken)
    runs = tuple(id for id in tree.runs if id in taken)
    return views, runs, size


def _tree(segment: bytes, views: list[Any], runs: list[Any], next_run: int) -> Tree:
    sizes: dict[str | int, int] = {view.id: view.estimated_size_bytes for view in views}
    sizes |= {run.id: run.estimated_size_bytes for run in runs}
    created: dict[str | int, int] = {view.id: _ulid_ms(view.sst.id.value) for view in views}
    created |= {run.id: min((_ulid_ms(v.sst.id.value) for v in run.sst_views), default=0) for run in runs}
    return Tree(
        segment=segment,
        views=tuple(view.id for view in views),
        runs=tuple(run.id for run in runs),
        next_run=next_run,
        sizes=sizes,
        created_ms=created,
    )


def _ulid_ms(ulid: str) -> int:
    """When a table was written: the first ten digits of its name."""
    millis = 0
    for digit in ulid[:10].upper():
        millis = millis * 32 + _ULID_DIGITS.index(digit)
    return millis
