"""From a URL to an open SlateDB store."""

from __future__ import annotations

from typing import Any

from lapse.errors import ClockBehind, ForeignStore, InvalidValue, NotFound
from lapse.kv import format as stored
from lapse.kv.aio.abc import AsyncStore
from lapse.kv.buckets import read_buckets
from lapse.kv.clock import StoreClock
from lapse.kv.format import StoreFormat, check_bucket
from lapse.kv.options import Options, Unset
from lapse.kv.slatedb.engine import WriterLock, engine_errors, extractor, load, object_store, settings
from lapse.kv.slatedb.foreign import ForeignSlateStore
from lapse.kv.slatedb.keyspace import EXTRACTOR_NAME, meta_key
from lapse.kv.slatedb.purge import restore_bounds
from lapse.kv.slatedb.store import SlateStore
from lapse.kv.state import State
from lapse.kv.ttl import from_millis
from lapse.kv.units import EMPTY, pack_units
from lapse.kv.url import StoreUrl


async def open_store(url: StoreUrl, options: Options) -> AsyncStore:
    clock = StoreClock(options.clock)
    load()
    if url.path is not None and url.path.is_file():  # the engine would try again for ever
        raise ForeignStore(f"{url.path} is a file and no SlateDB store", hint="give the path of a new directory")
    if url.path is not None and not url.path.parent.is_dir():
        _check_may_create(url, options)
        url.path.parent.mkdir(parents=True)
    with engine_errors(url):
        place, name = object_store(url)
        admin = load().AdminBuilder(name, place).build()
        manifest = await admin.read_manifest(None)
        if manifest is None:
            return await _create(url, options, clock, place, name, admin)
        reader, segmented = await _open_reader(place, name)
        try:
            raw = await reader.get(meta_key(stored.FORMAT_KEY))
            if raw is None:
                return _foreign(url, options, clock, reader)
            format = stored.read_format(raw)
            check_bucket(format, options)
            mark_ms = stored.read_mark(await reader.get(meta_key(stored.MARK_KEY)))
            if options.read_only:
                return await _read_only(url, options, clock, format, reader, admin, mark_ms)
            _check_clock(clock, format, manifest, mark_ms, options)
        except BaseException:
            await reader.shutdown()
            raise
        await reader.shutdown()
        lock = WriterLock(url)
        try:
            handle, recorder = await _open_writer(url, place, name, segmented)
            return await _finish(url, options, clock, format, handle, admin, recorder, lock, mark_ms)
        except BaseException:
            lock.release()
            raise


async def _create(url: StoreUrl, options: Options, clock: StoreClock, place: Any, name: str, admin: Any) -> SlateStore:
    _check_may_create(url, options)
    if url.path is not None and url.path.exists() and any(url.path.iterdir()):
        raise ForeignStore(f"{url.path} is not empty and no SlateDB store", hint="give the path of a new directory")
    # Buckets hold versions of a key in several trees: were the engine to purge the newest, an older one would
    # show.
    engine_expiry = clock.is_system and not options.bucket_ms
    format = StoreFormat(
        engine=url.engine,
        created_ms=clock.now_ms(),
        bucket_ms=options.bucket_ms,
        engine_expiry=engine_expiry,
        snapshot_lifetime_ms=options.snapshot_lifetime_ms if engine_expiry else 0,
    )
    lock = WriterLock(url)
    try:
        handle, recorder = await _open_writer(url, place, name, bool(options.bucket_ms))
        batch = load().WriteBatch()
        batch.put(meta_key(stored.UNITS_KEY), pack_units([EMPTY]))
        batch.put(meta_key(stored.MARK_KEY), stored.pack_mark(clock.now_ms()))
        batch.put(meta_key(stored.FORMAT_KEY), format.to_bytes())
        await handle.write(batch)
        await handle.flush()
        return await _finish(url, options, clock, format, handle, admin, recorder, lock, 0, is_new=True)
    except BaseException:
        lock.release()
        raise


def _check_may_create(url: StoreUrl, options: Options) -> None:
    if options.read_only or not options.create:
        hint = "leave out read_only=True and create=False to create it"
        raise NotFound(f"there is no store at {url}", hint=hint)


async def _finish(
    url: StoreUrl,
    options: Options,
    clock: StoreClock,
    format: StoreFormat,
    handle: Any,
    admin: Any,
    recorder: Any,
    lock: WriterLock,
    mark_ms: int,
    *,
    is_new: bool = False,
) -> SlateStore:
    state = State(url=url, options=options, format=format, clock=clock)
    state.mark_ms = mark_ms
    state.default = stored.read_default(await handle.get(meta_key(stored.DEFAULT_TTL_KEY)))
    state.written = await restore_bounds(handle, is_new=is_new)
    if not isinstance(options.default_ttl, Unset):
        state.default = options.default_ttl
        await handle.put(meta_key(stored.DEFAULT_TTL_KEY), stored.pack_default(state.default))
        await handle.flush()
    raw = await handle.get(meta_key(stored.BUCKETS_KEY))
    buckets = read_buckets(raw, width_ms=format.bucket_ms) if format.bucket_ms else None
    return SlateStore(state=state, handle=handle, admin=admin, recorder=recorder, buckets=buckets, lock=lock)


async def _read_only(
    url: StoreUrl,
    options: Options,
    clock: StoreClock,
    format: StoreFormat,
    reader: Any,
    admin: Any,
    mark_ms: int,
) -> SlateStore:
    state = State(url=url, options=options, format=format, clock=clock)
    state.mark_ms = mark_ms
    state.default = stored.read_default(await reader.get(meta_key(stored.DEFAULT_TTL_KEY)))
    raw = await reader.get(meta_key(stored.BUCKETS_KEY))
    buckets = read_buckets(raw, width_ms=format.bucket_ms) if format.bucket_ms else None
    return SlateStore(state=state, handle=reader, admin=admin, recorder=None, buckets=buckets, lock=None)


def _foreign(url: StoreUrl, options: Options, clock: StoreClock, reader: Any) -> AsyncStore:
    if not options.read_only:
        raise ForeignStore(
            f"{url} was not written by Lapse",
            hint="open it with read_only=True, or copy its rows to a new store",
        )
    return ForeignSlateStore(url=url, reader=reader, clock=clock)


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


async def _open_writer(url: StoreUrl, place: Any, name: str, segmented: bool) -> tuple[Any, Any]:
    slatedb = load()
    builder, recorder = slatedb.DbBuilder(name, place), slatedb.DefaultMetricsRecorder()
    builder.with_settings(settings(url))
    builder.with_metrics_recorder(recorder)
    if segmented:
        builder.with_segment_extractor(extractor())
    return await builder.build(), recorder


def _check_clock(clock: StoreClock, format: StoreFormat, manifest: Any, mark_ms: int, options: Options) -> None:
    if format.engine_expiry and not clock.is_system:
        raise InvalidValue(
            "clock",
            type(options.clock).__name__,
            "cannot be used: this store was created with the system's clock, and its engine purges by that",
            hint="create the store with the clock it is to be used with",
        )
    clock.resume(mark_ms, wait_s=options.clock_wait_s)
    # The engine keeps a mark of its own and would stall for ten seconds at the first write before it says so.
    system, tick_ms = StoreClock(), manifest.last_l0_clock_tick
    try:
        system.resume(tick_ms, wait_s=options.clock_wait_s)
    except ClockBehind:
        raise ClockBehind(
            f"the system's clock is behind {from_millis(tick_ms).isoformat()}, when SlateDB last wrote this store",
            hint="set the system's clock right, or open the store with read_only=True",
        ) from None
