"""From a URL to an open SlateDB store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lapse.errors import ClockBehind, ForeignStore, InvalidValue, LapseError, NotFound, Refused, StoreLocked
from lapse.kv import format as stored
from lapse.kv.clock import StoreClock
from lapse.kv.format import StoreFormat
from lapse.kv.options import Options
from lapse.kv.slatedb.deadline import Deadline, Guarded
from lapse.kv.slatedb.engine import LOCK_FILE, WriterLock, extractor, load, object_store, settings, translate
from lapse.kv.slatedb.keyspace import EXTRACTOR_NAME, meta_key
from lapse.kv.slatedb.store import SlateStore
from lapse.kv.slatedb.upgrade import without_buckets
from lapse.kv.state import State
from lapse.kv.ttl import from_millis
from lapse.kv.url import StoreUrl

_LEFT_BY_CREATION = (LOCK_FILE, "manifest", "wal", "compacted", "compactions", "gc")
"""What a directory has in it that is to become a store, after a process was killed over that."""


async def open_store(url: StoreUrl, options: Options) -> SlateStore:
    load()
    if url.path is not None and url.path.is_file():  # the engine would try again for ever
        raise ForeignStore(f"{url.path} is a file and no SlateDB store", hint="give the path of a new directory")
    if url.path is not None and not url.path.parent.is_dir():
        _check_may_create(url, options)
        url.path.parent.mkdir(parents=True)
    try:
        place, name = object_store(url)
        deadline = Deadline(url, options.timeout_s)
        opening = _Opening(
            url=url,
            options=options,
            clock=StoreClock(options.clock, max_jump_ms=None if options.read_only else options.max_clock_jump_ms),
            place=place,
            name=name,
            deadline=deadline,
            admin=Guarded(load().AdminBuilder(name, place).build(), deadline),
        )
        return await opening.run()
    except LapseError:
        raise
    except Exception as error:
        raise translate(url, error) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opening:
    url: StoreUrl
    options: Options
    clock: StoreClock
    place: Any
    name: str
    deadline: Deadline
    admin: Any

    async def run(self) -> SlateStore:
        manifest = await self.admin.read_manifest(None)
        if manifest is None:
            return await self._create(segmented=False)
        with self.deadline:
            found, segmented = await _open_reader(self.place, self.name)
        reader: Any = Guarded(found, self.deadline)
        try:
            raw = await reader.get(meta_key(stored.FORMAT_KEY))
            if raw is None:
                await self._check_unfinished(reader)
                return await self._create(segmented=segmented)
            format = stored.read_format(raw)
            mark_ms = stored.read_mark(await reader.get(meta_key(stored.MARK_KEY)))
            if self.options.read_only:
                return await self._read_only(format, reader, mark_ms)
            self._check_clock(format, manifest, mark_ms)
            self._check_owner(await reader.get(meta_key(stored.OWNER_KEY)))
        except BaseException:
            await reader.shutdown()
            raise
        await reader.shutdown()
        lock = WriterLock(self.url)
        try:
            handle, recorder = await self._open_writer(segmented)
            if format.bucket_ms:
                format = await without_buckets(handle, self.admin, format)
            state = self._state(format)
            names = (stored.DEFAULT_TTL_KEY, stored.WRITTEN_KEY)
            default, written = [await handle.get(meta_key(name)) for name in names]
            words = state.first_words(mark_ms=mark_ms, default=default, written=written)
            return await self._finish(state, words, handle, recorder, lock)
        except BaseException:
            lock.release()
            raise

    async def _create(self, *, segmented: bool) -> SlateStore:
        url, clock = self.url, self.clock
        _check_may_create(url, self.options)
        if url.path is not None and url.path.exists():
            strange = [file for file in url.path.iterdir() if file.name not in _LEFT_BY_CREATION]
            if strange:
                raise ForeignStore(f"{url.path} is not empty and no SlateDB store", hint="give a new directory")
        format = StoreFormat(
            engine=url.engine,
            created_ms=clock.now_ms(),
            engine_expiry=clock.is_system and not segmented,
            segmented=segmented,
            snapshot_lifetime_ms=self.options.snapshot_lifetime_ms if clock.is_system and not segmented else 0,
        )
        lock = WriterLock(url)
        try:
            handle, recorder = await self._open_writer(segmented)
            state = self._state(format)
            return await self._finish(state, state.birth_words(), handle, recorder, lock)
        except BaseException:
            lock.release()
            raise

    def _state(self, format: StoreFormat) -> State:
        return State(url=self.url, options=self.options, format=format, clock=self.clock, translate=translate)

    async def _finish(
        self, state: State, words: dict[bytes, bytes], handle: Any, recorder: Any, lock: WriterLock
    ) -> SlateStore:
        store = SlateStore(
            state=state, handle=handle, admin=self.admin, recorder=recorder, lock=lock, deadline=self.deadline
        )
        await store.put_meta(words)
        await store.sync()
        return store

    async def _read_only(self, format: StoreFormat, reader: Any, mark_ms: int) -> SlateStore:
        if format.bucket_ms:
            raise Refused(f"{self.url} has time buckets", hint="open it for writing once: that converts it")
        self.clock.start_at(mark_ms)
        state = self._state(format)
        state.first_words(mark_ms=mark_ms, default=await reader.get(meta_key(stored.DEFAULT_TTL_KEY)), written=None)
        return SlateStore(
            state=state, handle=reader, admin=self.admin, recorder=None, lock=None, deadline=self.deadline
        )

    async def _open_writer(self, segmented: bool) -> tuple[Any, Any]:
        slatedb = load()
        builder, recorder = slatedb.DbBuilder(self.name, self.place), slatedb.DefaultMetricsRecorder()
        builder.with_settings(settings(self.url))
        builder.with_metrics_recorder(recorder)
        if segmented:
            builder.with_segment_extractor(extractor())
        with self.deadline:
            return Guarded(await builder.build(), self.deadline), recorder

    async def _check_unfinished(self, reader: Any) -> None:
        """A database without a single key: a process was killed while it created it."""
        rows = await reader.scan(load().KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False))
        if await rows.next_batch(1) or self.options.read_only:
            raise ForeignStore(f"{self.url} was not written by Lapse", hint="copy its rows to a new store")
        await reader.shutdown()

    def _check_owner(self, raw: bytes | None) -> None:
        """In an object store nothing keeps a second writer out, and it would cut off the first."""
        if raw and not self.options.take_over:
            raise StoreLocked(
                f"{self.url} is open for writing ({raw.decode(errors='replace')})",
                hint="purge it from that process; if it is gone for good, open the store once with take_over=True",
            )

    def _check_clock(self, format: StoreFormat, manifest: Any, mark_ms: int) -> None:
        clock, options = self.clock, self.options
        if format.engine_expiry and not clock.is_system:
            raise InvalidValue(
                "clock",
                type(options.clock).__name__,
                "cannot be used: this store was created with the system's clock, and its engine purges by that",
                hint="create the store with the clock it is to be used with",
            )
        if not options.trust_clock:
            clock.resume(mark_ms, wait_s=options.clock_wait_s)
        # The engine keeps a mark of its own and would stall for ten seconds at the first write before it says so.
        system, tick_ms = StoreClock(), manifest.last_l0_clock_tick
        try:
            system.resume(tick_ms, wait_s=options.clock_wait_s)
        except ClockBehind:
            raise ClockBehind(
                f"the system's clock is behind {from_millis(tick_ms).isoformat()}, when SlateDB last wrote this store",
                hint="set the system's clock right, or open the store with read_only=True and copy its rows",
            ) from None


def _check_may_create(url: StoreUrl, options: Options) -> None:
    if options.read_only or not options.create:
        hint = "leave out read_only=True and create=False to create it"
        raise NotFound(f"there is no store at {url}", hint=hint)


async def _open_reader(place: Any, name: str) -> tuple[Any, bool]:
    """A reader, which changes nothing, and whether the store has segments: the engine says so only by
    refusing."""
    slatedb = load()
    for segmented in (False, True):
        builder = slatedb.DbReaderBuilder(name, place)
        builder.with_reader_mode(slatedb.ReaderMode.FOLLOW_LATEST())
        if segmented:
            builder.with_segment_extractor(extractor())
        try:
            return await builder.build(), segmented
        except slatedb.Error.Invalid as error:
            if segmented or f'"{EXTRACTOR_NAME}"' not in error.message:
                raise
    raise AssertionError("unreachable")
