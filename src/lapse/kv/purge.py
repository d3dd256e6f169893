"""Removing expired rows: where to look, what may go and what is said about it, whatever the engine.

How the rest goes, and how the bytes of what is gone are freed and looked for, is the engine's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from lapse.kv import format as stored
from lapse.kv.base import AsyncStore
from lapse.kv.keys import KeyRange
from lapse.kv.options import Budget
from lapse.kv.row import HEADER_BYTES, LIVE_END, PLAIN, expires_ms_of, is_expired, is_row, live_from
from lapse.kv.ttl import NEVER_MS, from_millis
from lapse.kv.units import EMPTY, Unit, Units, Written, join, pack_units, read_units
from lapse.kv.values import PurgeResult, Verification
from lapse.kv.verify import Sample

_UNSEARCHED = "not all files were searched for purged bytes"
_STILL_THERE = "purged bytes are still in the store's files"
_LOOK_S = 0.1
"""How long a purge may rest without looking whether it is to stop."""


class Purge(ABC):
    """One purge. `physical` is one that goes on until the bytes are gone."""

    poll_s: float
    """How long it waits before it looks again whether the engine has removed files."""

    def __init__(self, store: AsyncStore, budget: Budget) -> None:
        self.store = store
        self.state = store.state
        self.budget = budget
        self.is_over = budget.is_over
        self.physical = budget.within is not None
        self.cutoff_ms, self.now_ms = store.cutoff_ms()
        """Rows that expired between the two are kept for an open snapshot."""
        self.sample = Sample()
        self.purged = self.held = self.skipped = self.units_read = self.keys_read = self.unreadable = self.compacted = 0
        self.held_since_ms = NEVER_MS
        self.unfinished = False
        """Whether it was cut short: then it is not known how many expired rows are left."""
        self.owed: list[KeyRange] = []
        """Ranges whose files are to be rewritten: units, and single keys."""
        self.kept: list[Unit] = []
        """What the store is cut into once all units that can hold an expired row were read."""
        self.fresh: list[Unit] = []
        """The same once the files are rewritten: units begin with rows that live, and owe only what these will."""
        self.reasons: list[str] = []

    async def run(self) -> PurgeResult:
        store = self.store
        before = await store.size()
        if (why := await store.paused()) is not None:
            self.leave_rest(f"purging is paused: {why}; `lapse kv resume` ends that")
            return self._result(before, before, None)
        async with store.gate.alone():
            written = self.state.take_written()
        try:
            units = await self._fold(written)
            await self._look_up(written)
            await self._sweep(units)
            verification = await self.free_bytes() if self.physical else None
        finally:
            with store.lock:  # without waiting, after an error as well
                self.state.written.absorb(written)
        await store.put_meta({stored.PURGE_KEY: stored.pack_mark(self.now_ms)})
        await store.save_mark(self.state.clock.now_ms())
        result = self._result(before, await store.size(), verification)
        past, now = await store.meta_value(stored.HISTORY_KEY), from_millis(self.state.clock.now_ms())
        await store.put_meta({stored.HISTORY_KEY: stored.with_purge(past, result, now=now)})
        if self.purged:
            await store.sync()  # on a full disk the engine may have taken the deletes and be unable to keep them
        return result

    # What an engine does

    @abstractmethod
    async def rewrite(self) -> None:
        """Drive the engine until the files have no purged row any more, or a step towards it; called again until they
        do. The first time it takes the sample of what is in them before."""

    @abstractmethod
    def why_kept(self) -> str | None:
        """What keeps the files of before, so that waiting longer does not help."""

    @abstractmethod
    async def file_names(self) -> list[str]:
        """Of the files that can hold a purged row."""

    @abstractmethod
    async def search(self) -> Verification:
        """Look for the sample in the files."""

    # Where to look

    async def _fold(self, written: Written) -> Units:
        """What was written is noted in the units before anything else: no later error makes it forgotten. The keys that
        are about to be looked up owe their bytes; a purge that frees bytes keeps no key of a row that expires later."""
        units = read_units(await self.store.meta_value(stored.UNITS_KEY))
        before = dict(written.groups), written.is_unknown
        units.fold(written, keys_after_ms=self.now_ms if self.physical else NEVER_MS)
        noted = Units(list(units.all))
        for group in written.due(self.now_ms):
            noted.owe(group, rows=False)
        self._owed_ms = [unit.owed_ms for unit in noted.all]
        try:
            await self.save(noted.all)
        except BaseException:
            written.groups, written.is_unknown = before
            raise
        return units

    async def _look_up(self, written: Written) -> None:
        """Rows whose keys are known: nothing else is read."""
        store = self.store
        for number, group in list(written.groups.items()):
            if group.keys is None or group.min_ms > self.now_ms:
                continue
            if self.is_over():
                self.leave_rest(self.budget.why_over)
                return
            keys = sorted(set(group.keys))
            async with store.gate.alone():
                rows = await store.fetch_rows(keys)
                expired = self.expired_of(rows)
                await store.delete_rows(expired)
                gone = set(expired)
                for key, raw in rows:
                    if key not in gone and is_row(raw):
                        self.state.written.note(key, expires_ms_of(raw))
                del written.groups[number]
            if self.physical:
                self.owed += [KeyRange(start=key, end=key + b"\0") for key in keys]
            self.keys_read += len(rows)
            await self._spend(len(gone))

    async def _sweep(self, units: Units) -> None:
        """Read the units that can hold an expired row."""
        swept: list[list[Unit]] = []
        for index, unit in enumerate(units.all):
            if self.owes(unit):
                self.owed.append(KeyRange(start=unit.start or None, end=units.end(index)))
            if unit.min_ms > self.now_ms and not self.owes(unit):
                self.skipped += 1
                swept.append([unit])
            elif self.is_over():
                self.leave_rest(self.budget.why_over)
                swept.append([unit])
            else:
                swept.append(await self._sweep_unit(unit, units.end(index)))
        self._cut(units, swept)
        await self.save(self.kept)

    def _cut(self, units: Units, swept: list[list[Unit]]) -> None:
        """`swept` is what each of the units has become."""
        kept, fresh = list[Unit](), list[Unit]()
        for unit, owed_ms, parts in zip(units.all, self._owed_ms, swept, strict=True):
            owing = [replace(part, owed_ms=min(part.owed_ms, owed_ms)) for part in parts]
            kept += [replace(owing[0], start=unit.start), *owing[1:]]
            if self.owes(unit) and not self.unfinished:
                fresh += [replace(part, owed_ms=part.min_ms, start=part.start if part.rows else b"") for part in parts]
            else:
                fresh += [replace(parts[0], start=unit.start), *parts[1:]]
        self.kept, self.fresh = join(kept), join(fresh)

    def owes(self, unit: Unit) -> bool:
        """Whether bytes of rows that have expired may be in its files, and are to be freed now."""
        return self.physical and unit.owed_ms <= self.cutoff_ms

    async def _sweep_unit(self, unit: Unit, end: bytes | None) -> list[Unit]:
        store, parts, expired = self.store, list[Unit](), list[bytes]()
        self.units_read += 1
        async with store.gate.alone():
            chunks = await store.chunks_now(KeyRange(start=unit.start or None, end=end))
            seen = store.version()  # behind that, which may save a mark
        while rows := await chunks.chunk():
            expired += self.expired_of(rows, parts)
            while len(expired) >= store.purge_batch_rows and not self.is_over():
                seen = await self._remove(expired[: store.purge_batch_rows], seen)
                expired = expired[store.purge_batch_rows :]
            if self.is_over():
                self.leave_rest(self.budget.why_over)
                return [unit]
        if expired:
            await self._remove(expired, seen)
        return [replace(part, owed_ms=unit.owed_ms) for part in parts or [EMPTY]]

    async def _remove(self, keys: list[bytes], seen: int) -> int:
        """Delete what is still expired: a row renewed since it was read stays. `seen` is the store's version if there
        was no other write since; returned is the one after."""
        store = self.store
        async with store.gate.alone():
            if is_changed := store.version() != seen:
                keys = [key for key, raw in await store.fetch_rows(keys) if is_expired(raw, self.cutoff_ms)]
            await store.delete_rows(keys)
            seen = -1 if is_changed else store.version()
        await self._spend(len(keys))
        return seen

    async def save(self, units: list[Unit]) -> None:
        await self.store.put_meta({stored.UNITS_KEY: pack_units(units)})

    async def _spend(self, rows: int) -> None:
        self.purged += rows
        self.budget.rows += rows
        while (pause_s := self.budget.pause_s) > 0:
            await self.store.sleep(min(pause_s, _LOOK_S))

    async def free_bytes(self) -> Verification | None:
        """Until the bytes are gone and the files were searched, or waiting longer does not help."""
        found: Verification | None = None
        while True:
            await self.rewrite()
            why = self.why_kept() or (self.budget.why_over if self.is_over() else None)
            if found is None if why else not self.sample.left_of(await self.file_names()):
                found = await self.search()
                if found.clean and (found.unchecked is None or not self.is_over()):
                    return found
            if why is not None:
                await self.save(self.kept)  # what is owed is owed still
                is_clean = found is None or found.clean
                self.reasons.append(f"{_UNSEARCHED if is_clean else _STILL_THERE}: {why}")
                return found
            await self.store.sleep(self.poll_s)

    # What may go

    def leave_rest(self, why: str) -> None:
        """Rows are left for another purge."""
        self.unfinished = True
        self.reasons.append(why)

    def expired_of(self, rows: Sequence[tuple[bytes, bytes]], parts: list[Unit] | None = None) -> list[bytes]:
        """The keys of the rows that may go, by their headers; those that stay are one unit more in `parts`. It begins
        with a row that lives: the key of one that is gone is not kept.

        A stored row that is expired lies, as a byte string, before all that are live; `low` is the first of those. The
        loop runs for every row that a purge reads.
        """
        edge, low, least, end = live_from(self.cutoff_ms), LIVE_END, HEADER_BYTES, LIVE_END
        expired, unreadable = list[bytes](), 0
        for key, raw in rows:
            if low <= raw < end and len(raw) >= least:
                continue
            if not PLAIN <= raw < end or len(raw) < least:
                unreadable += 1
            elif raw < edge:
                expired.append(key)
            else:
                low = raw
        if parts is not None and len(expired) < len(rows):
            gone = set(expired)
            first = next(key for key, _ in rows if key not in gone)
            min_ms = NEVER_MS if low is LIVE_END else expires_ms_of(low)
            parts.append(Unit(start=first, min_ms=min_ms, owed_ms=NEVER_MS, rows=len(rows) - len(expired)))
        self.unreadable += unreadable
        if self.cutoff_ms < self.now_ms and low is not LIVE_END and low < live_from(self.now_ms):
            self._hold(rows, edge)
        if self.physical and not self.sample.is_full and expired:
            for key, raw in rows:
                if PLAIN <= raw < edge:
                    self.sample.add(key, raw)
        return expired

    def _hold(self, rows: Sequence[tuple[bytes, bytes]], edge: bytes) -> None:
        """Count the rows that are expired for every reader but an open snapshot."""
        until = live_from(self.now_ms)
        for _, raw in rows:
            if edge <= raw < until and len(raw) >= HEADER_BYTES:
                self.held += 1
                self.held_since_ms = min(self.held_since_ms, expires_ms_of(raw))

    def _result(self, before: int, after: int, verification: Verification | None) -> PurgeResult:
        if self.held:
            self.reasons.append(f"{self.held} expired rows are still read by an open snapshot")
        if self.unreadable:
            self.reasons.append(f"{self.unreadable} rows cannot be read and were left alone")
        return PurgeResult(
            cutoff=from_millis(self.cutoff_ms),
            purged=self.purged,
            held=self.held,
            left=None if self.unfinished else self.held,
            oldest_left=from_millis(self.held_since_ms) if self.held and not self.unfinished else None,
            units_skipped=self.skipped,
            units_read=self.units_read,
            keys_read=self.keys_read,
            bytes_before=before,
            bytes_after=after,
            bytes_compacted=self.compacted,
            elapsed_s=self.budget.elapsed_s,
            complete=not self.reasons,
            reasons=tuple(dict.fromkeys(self.reasons)),
            verification=verification,
        )
