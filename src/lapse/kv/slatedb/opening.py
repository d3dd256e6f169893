"""From a URL to an open SlateDB store.

Stores with time buckets, which earlier versions could make, are converted: their rows move into one segment. The newest
bucket that has a key has its newest version, so the buckets are emptied oldest first, each over the ones before. A row
leaves its bucket in the batch that writes it elsewhere: a crash in the middle loses nothing, and it goes on from there.
"""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from typing import Any

from lapse.errors import ClockBehind, ForeignStore, InvalidValue, LapseError
from lapse.kv import format as stored
from lapse.kv.clock import StoreClock
from lapse.kv.format import StoreFormat
from lapse.kv.keys import EVERYTHING
from lapse.kv.options import Options, check_may_create
from lapse.kv.row import TOMBSTONE
from lapse.kv.slatedb import engine
from lapse.kv.slatedb.engine import SEGMENT, Guarded, TimeLimit, load, lock_for_writing, meta_key, translate
from lapse.kv.slatedb.store import SlateStore, Source
from lapse.kv.state import State
from lapse.kv.ttl import from_millis
from lapse.kv.url import StoreUrl, store_locked

_LEFT_BY_CREATION = re.compile(rf"{re.escape(engine.LOCK_FILE)}|manifest|wal|compacted|compactions|gc")
"""What is in a directory after a process was killed while it created a store there."""


async def open_store(url: StoreUrl, options: Options) -> SlateStore:
    load()
    if url.path is not None and not url.path.is_dir():  # the engine would retry forever where it is a file
        check_may_create(url, options, _LEFT_BY_CREATION)
        url.path.parent.mkdir(parents=True, exist_ok=True)
    try:
        opening = _Opening(State(url, options))
    except load().Error as error:
        raise translate(url, error) from error
    return await opening.run()


class _Opening:
    def __init__(self, state: State) -> None:
        self.state = state
        self.place, self.name = engine.object_store(state.url)
        self.limit = TimeLimit(state.url, state.options.timeout_s)
        self.admin: Any = Guarded(load().AdminBuilder(self.name, self.place).build(), self.limit)

    async def run(self) -> SlateStore:
        """First with a reader, which changes nothing: only a store that may be opened is opened for writing."""
        state, options = self.state, self.state.options
        manifest = await self.admin.read_manifest(None)
        if manifest is None:
            return await self._create(segmented=False)
        found, segmented = await self.limit.wait_for(_open_reader(self.place, self.name))
        reader: Any = Guarded(found, self.limit)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(reader.shutdown)
            raw = await reader.get(meta_key(stored.FORMAT_KEY))
            if raw is None:  # without a row it is one whose creation was killed
                if options.read_only or await Source(reader, EVERYTHING, b"").chunk():
                    raise ForeignStore(f"{state.url} was not written by Lapse", hint="copy its rows to a new store")
            else:
                mark_ms = stored.read_mark(await reader.get(meta_key(stored.MARK_KEY)))
                state.resume(stored.read_format(raw), mark_ms)
                if options.read_only:
                    store = self._store(reader, ExitStack())
                    await store.start(is_new=False)
                    opened.pop_all()
                    return store
                self._check_engine_clock(manifest.last_l0_clock_tick)
                owner = await reader.get(meta_key(stored.OWNER_KEY))
                if owner and not options.take_over:  # nothing else keeps a second writer out of an object store
                    raise store_locked(state.url, owner.decode(errors="replace"))
        if raw is None:
            return await self._create(segmented=segmented)
        return await self._open_writer(segmented=segmented, is_new=False)

    async def _create(self, *, segmented: bool) -> SlateStore:
        state = self.state
        check_may_create(state.url, state.options, _LEFT_BY_CREATION)
        engine_expiry = state.clock.is_system and not segmented
        state.format = StoreFormat(
            engine=state.url.engine,
            created_ms=state.clock.now_ms(),
            engine_expiry=engine_expiry,
            segmented=segmented,
            snapshot_lifetime_ms=state.options.snapshot_lifetime_ms if engine_expiry else 0,
        )
        return await self._open_writer(segmented=segmented, is_new=True)

    async def _open_writer(self, *, segmented: bool, is_new: bool) -> SlateStore:
        lock, handle = lock_for_writing(self.state.url), None
        try:
            builder = load().DbBuilder(self.name, self.place)
            builder.with_settings(engine.settings(self.state.url))
            if segmented:
                builder.with_segment_extractor(engine.extractor())
            handle = Guarded(await self.limit.wait_for(builder.build()), self.limit)
            if self.state.format.bucket_ms:
                await self._convert_buckets(handle)
            store = self._store(handle, lock)
            await store.start(is_new=is_new)
            await store.sync()
            return store
        except BaseException:
            if handle is not None:
                with suppress(LapseError):  # the first error is the one to be told
                    await handle.shutdown()
            lock.close()
            raise

    def _store(self, handle: Any, lock: ExitStack) -> SlateStore:
        return SlateStore(state=self.state, handle=handle, admin=self.admin, limit=self.limit, lock=lock)

    def _check_engine_clock(self, tick_ms: int) -> None:
        """The engine keeps a mark of its own and would stall for ten seconds at the first write before it says so."""
        state = self.state
        if state.format.engine_expiry and not state.clock.is_system:
            raise InvalidValue(
                "clock",
                type(state.options.clock).__name__,
                "cannot be used: this store was created with the system's clock, and its engine purges by that",
                hint="create the store with the clock it is to be used with",
            )
        try:
            StoreClock().resume(tick_ms)
        except ClockBehind:
            raise ClockBehind(
                f"the system's clock is behind {from_millis(tick_ms).isoformat()}, when SlateDB last wrote this store",
                hint="set the system's clock right, or open the store with read_only=True and copy its rows",
            ) from None

    async def _convert_buckets(self, handle: Any) -> None:
        known = json.loads(await handle.get(meta_key(stored.BUCKETS_KEY)) or b"{}")
        manifest = await self.admin.read_manifest(None)
        segments = {part.prefix for part in manifest.segments if part.prefix[:1] == engine.BUCKET_MARK}
        for prefix in sorted((segments | {engine.bucket_prefix(int(id)) for id in known}) - {SEGMENT}):
            await _move(handle, prefix)
        self.state.format = replace(self.state.format, bucket_ms=0, segmented=True)  # noted when the store starts


async def _open_reader(place: Any, name: str, *, segmented: bool = False) -> tuple[Any, bool]:
    """A reader, and whether the store has segments: the engine says so only by refusing."""
    slatedb = load()
    builder = slatedb.DbReaderBuilder(name, place)
    builder.with_reader_mode(slatedb.ReaderMode.FOLLOW_LATEST())
    if segmented:
        builder.with_segment_extractor(engine.extractor())
    try:
        return await builder.build(), segmented
    except slatedb.Error.Invalid as error:
        if segmented or f'"{engine.EXTRACTOR_NAME}"' not in error.message:
            raise
    return await _open_reader(place, name, segmented=True)


async def _move(handle: Any, prefix: bytes) -> None:
    source = Source(await handle.snapshot(), EVERYTHING, prefix)
    while rows := await source.chunk():
        batch = engine.new_batch()
        for key, raw in rows:
            if raw.startswith(TOMBSTONE):
                batch.delete(SEGMENT + key)
            else:
                batch.put(SEGMENT + key, raw)
            batch.delete(prefix + key)
        await handle.write(batch)
