"""A store, whatever its engine: everything that is not the engine's own is written here, once.

It is written as coroutines. SlateDB's wait for the engine; RocksDB's do not, and `lapse.kv.runner.Direct` runs them
where they are called. `lapse.kv.sync` makes the synchronous methods of these.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from lapse.errors import Unsupported
from lapse.kv import format as stored
from lapse.kv.clock import StoreClock
from lapse.kv.keys import (
    EVERYTHING,
    LOWEST_KEY,
    MAX_KEY_BYTES,
    NO_ROWS,
    CheckedRows,
    KeyRange,
    check_key,
    check_value,
    take_rows,
)
from lapse.kv.options import Budget, DurationLike, MergeFunction, PurgeLimits
from lapse.kv.reads import AsyncBlock, AsyncReader, AsyncSnapshot, Chunks, RawRow, Views
from lapse.kv.row import Row, header
from lapse.kv.state import Stamp, State
from lapse.kv.ttl import PLAIN_TTLS, Ttl, TtlLike, from_millis, plain_ttl, read_default
from lapse.kv.units import EMPTY, UNKNOWN, Written, pack_units, read_written
from lapse.kv.url import describe_owner
from lapse.kv.values import Census, Preview, PurgeRecord, PurgeResult, Stats

if TYPE_CHECKING:
    from lapse.kv.purge import Purge
    from lapse.kv.slatedb.store import AsyncTransaction


T = TypeVar("T")


class Gate(Protocol):
    """Writes are inside `beside()` each other; a read-modify-write, or a purge's look-then-delete, is `alone()`.
    Nothing of the caller's runs in either."""

    @property
    def is_taken(self) -> bool: ...
    def beside(self) -> AbstractAsyncContextManager[None]: ...
    def alone(self) -> AbstractAsyncContextManager[None]: ...


class AsyncStore(AsyncReader):
    mark_step_ms: int
    """How far the clock moves before its mark is saved again: what a crash can forget of the time."""
    purge_batch_rows: int
    """Rows that a purge removes in one step, some milliseconds: what a writer may have to wait for."""
    lock: AbstractContextManager[object] = nullcontext()
    """For what must not wait and may be called in several threads."""
    in_loop = False
    """Whether asyncio runs its coroutines."""

    def __init__(self, *, state: State, handle: Any, gate: Gate, purge_gate: Gate) -> None:
        self.state = state
        self.store = self
        self.handle = handle
        self.gate = gate
        self.purge_gate = purge_gate
        self.views = Views()

    # What an engine does

    @abstractmethod
    def fetch_from(self, handle: Any, key: bytes) -> Awaitable[bytes | None]: ...

    @abstractmethod
    async def fetch_rows(self, keys: Sequence[bytes]) -> list[RawRow]:
        """Those of them that exist, as they are stored."""

    @abstractmethod
    def chunks_from(self, handle: Any, keys: KeyRange) -> Chunks: ...

    @abstractmethod
    async def chunks_now(self, keys: KeyRange) -> Chunks:
        """Rows as they are now, whatever is written meanwhile."""

    @abstractmethod
    async def write(self, rows: CheckedRows, ttl: TtlLike, deletes: Sequence[bytes] = ()) -> None:
        """All together, with `ttl` where rows have none of their own. The caller is inside the gate."""

    @abstractmethod
    async def put_row(self, key: bytes, raw: bytes, stamp: Stamp) -> None:
        """One row, header included. The caller is inside the gate."""

    @abstractmethod
    async def delete_rows(self, keys: Sequence[bytes]) -> None:
        """By a purge: not counted as a write. The caller is alone inside the gate."""

    @abstractmethod
    def version(self) -> int:
        """Another number after every write: a purge that has seen no other need not look at a row again."""

    @abstractmethod
    async def meta_value(self, name: bytes) -> bytes | None: ...

    @abstractmethod
    async def put_meta(self, values: dict[bytes, bytes]) -> None:
        """In this order, or together."""

    @abstractmethod
    async def size(self) -> int:
        """Bytes of the store: of its files where it has files, else of the tables it refers to."""

    @abstractmethod
    async def sync(self) -> None: ...

    @abstractmethod
    async def close_engine(self) -> None:
        """Close the engine."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def call(self, function: MergeFunction, existing: bytes | None, operand: bytes) -> bytes:
        """Call a function of the caller's, where it holds nothing up."""

    @abstractmethod
    async def pin(self) -> Any:
        """The engine's object for a snapshot."""

    @abstractmethod
    def new_purge(self, budget: Budget) -> Purge: ...

    async def transaction(self) -> AsyncTransaction:
        raise Unsupported(
            f"{self.state.url.engine}'s Python binding has no transactions",
            hint="use batch() for writes that belong together, snapshot() for reads, or a slatedb: store",
        )

    async def aside(self, work: Coroutine[Any, Any, T]) -> T:
        """Await what takes long, where it holds no loop up."""
        return await work

    def unpin(self, handle: Any) -> None:
        """A snapshot has ended."""

    def estimated_rows(self) -> int | None:
        return None

    # Opening and closing

    async def start(self, *, is_new: bool) -> None:
        """Take over what the store has noted, and note that it is open. The format is noted last: a store that has it
        has everything else."""
        state, options, now_ms = self.state, self.state.options, self.state.clock.now_ms()
        notes: dict[bytes, bytes] = {}
        if is_new:
            state.written = Written(base_ms=now_ms)
            notes[stored.UNITS_KEY] = pack_units([EMPTY])
        else:
            state.default = stored.read_default(await self.meta_value(stored.DEFAULT_TTL_KEY))
            if options.read_only:
                return
            state.written = read_written(await self.meta_value(stored.WRITTEN_KEY), base_ms=now_ms)
            notes[stored.WRITTEN_KEY] = b""
        if is_new or options.trust_clock:
            state.mark_ms = now_ms
            notes[stored.MARK_KEY] = stored.pack_mark(now_ms)
        if options.sets_default:
            state.default = options.default
            notes[stored.DEFAULT_TTL_KEY] = stored.pack_default(options.default)
        if self._names_its_owner:
            notes[stored.OWNER_KEY] = describe_owner(now_ms).encode()
        if not is_new and state.format.version < stored.FORMAT_VERSION:
            notes[stored.UNITS_KEY] = pack_units([UNKNOWN])
        if is_new or state.format.version < stored.FORMAT_VERSION:
            state.format = replace(state.format, version=stored.FORMAT_VERSION)
            notes[stored.FORMAT_KEY] = state.format.to_bytes()
        await self.put_meta(notes)

    async def close(self) -> None:
        await self.aside(self._close())

    async def _close(self) -> None:
        """The engine is closed even if an earlier step fails: a store that is still locked cannot be opened again."""
        state = self.state
        with self.lock:
            if state.closed:
                return
            state.closed = True
            state.stamps.clear()
            for view in self.views:
                view.release()
            try:
                if not state.options.read_only and not state.overdue:
                    notes = {stored.MARK_KEY: stored.pack_mark(state.clock.moment.now_ms)}
                    if not self.purge_gate.is_taken:  # else the purge has what was written, and it is not known
                        notes[stored.WRITTEN_KEY] = state.written.to_bytes()
                    await self.put_meta(notes | ({stored.OWNER_KEY: b""} if self._names_its_owner else {}))
            finally:
                await self.close_engine()

    @property
    def _names_its_owner(self) -> bool:
        """In an object store nothing else keeps a second writer out."""
        return self.state.url.remote is not None and self.state.options.take_over

    # Looking

    @property
    def url(self) -> str:
        return str(self.state.url)

    @property
    def default_ttl(self) -> timedelta | str | None:
        """The TTL of writes that name none; text where it has calendar months, None where rows stay."""
        default = self.state.default
        if default is None:
            return None
        return str(default) if default.is_calendar else default.timedelta

    @property
    def clock(self) -> StoreClock:
        return self.state.clock

    def read_ms(self) -> int:
        self.state.check_open()
        return self.state.clock.now_ms()

    async def snapshot(self) -> AsyncSnapshot:
        await self.save_mark(self.read_ms())
        async with self.gate.beside():
            now_ms = self.read_ms()
            return AsyncSnapshot(self, await self.pin(), now_ms)

    def open_snapshots(self) -> list[AsyncSnapshot]:
        return [view for view in self.views if isinstance(view, AsyncSnapshot)]

    def cutoff_ms(self) -> tuple[int, int]:
        """What a purge may remove, rows that are expired for the oldest open snapshot or transaction too; and now."""
        now_ms = self.state.clock.now_ms()
        return min([now_ms, *(snapshot.opened_ms for snapshot in self.open_snapshots())]), now_ms

    async def stats(self) -> Stats:
        """What is known at once, without reading rows."""
        state = self.state
        state.check_open()
        return Stats(
            url=self.url,
            engine=state.url.engine,
            format_version=state.format.version,
            default_ttl=None if state.default is None else str(state.default),
            rows=self.estimated_rows(),
            paused=await self.paused(),
            bytes=await self.size(),
            open_snapshots=len(self.open_snapshots()),
            clock_mark=from_millis(max(state.mark_ms, 0)),
            last_purge=await self._last_purge(),
        )

    async def preview(self) -> Preview:
        """What a purge would remove now, and what expires next; every row is read, and nothing is changed."""
        self.state.check_open()
        census = await self.aside(self.count())
        self.state.metrics.counted(expired=census.expired, oldest_ms=census.oldest_ms)
        return census.preview(paused=await self.paused(), last_purge=await self._last_purge())

    async def history(self) -> list[PurgeRecord]:
        """The latest hundred purges, latest first."""
        self.state.check_open()
        return stored.read_history(await self.meta_value(stored.HISTORY_KEY))

    async def paused(self) -> str | None:
        raw = await self.meta_value(stored.PAUSE_KEY)
        return raw.decode() if raw else None

    async def count(self) -> Census:
        census, chunks = Census(self.state.clock.now_ms()), self.chunks(EVERYTHING)
        while found := await chunks.chunk():
            census.add(found)
        return census

    async def _last_purge(self) -> datetime | None:
        purged_ms = stored.read_mark(await self.meta_value(stored.PURGE_KEY))
        return from_millis(purged_ms) if purged_ms else None

    # Writing

    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self.state.check_writable()
        check_key(key)
        check_value(value)
        ttl = plain_ttl(ttl)
        async with self.gate.beside():
            self.state.check_writable()
            now_ms = self.state.clock.now_ms()
            if self.is_mark_due(now_ms):
                await self.save_mark(now_ms)
            stamp = self.state.stamp(ttl, now_ms)
            await self.put_row(key, stamp.head + value, stamp)

    def put_many(
        self, rows: Iterable[tuple[bytes, bytes] | tuple[bytes, bytes, TtlLike]], ttl: TtlLike = Ttl.DEFAULT
    ) -> Coroutine[Any, Any, int]:
        """Write rows together: the fastest way in. A row may name its own TTL. Returns how many.

        The rows are taken when it is called, so that nothing of the caller's runs in the coroutine. TTLs count from the
        moment the rows are written."""
        self.state.check_writable()
        ttl = plain_ttl(ttl)
        return self.write_all(take_rows(rows, ttl), ttl)

    async def delete(self, key: bytes) -> None:
        self.state.check_writable()
        await self.write_all(NO_ROWS, deletes=[check_key(key)])

    async def write_all(self, rows: CheckedRows, ttl: TtlLike = Ttl.DEFAULT, deletes: Sequence[bytes] = ()) -> int:
        """Returns how many rows."""
        async with self.gate.beside():
            self.state.check_writable()
            if rows.keys or deletes:
                await self.save_mark(self.state.clock.now_ms())
                await self.write(rows, ttl, deletes)
        return len(rows.keys)

    async def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        """Give a live row a new TTL from now on; False if there is none."""
        self.state.check_writable()
        ttl = plain_ttl(ttl)
        async with self.gate.alone():
            now_ms = self.state.clock.now_ms()
            stamp = self.state.stamp(ttl, now_ms)
            found = await self._live_row(key, now_ms)
            if found is None:
                return False
            head = header(created_ms=found.created_ms, expires_ms=stamp.expires_ms)
            await self.put_row(key, head + found.value, stamp)
            return True

    async def persist(self, key: bytes) -> bool:
        """Remove the TTL of a live row; False if there is none."""
        return await self.touch(key, Ttl.NO_EXPIRY)

    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        """Combine the live value with `operand` by the store's merge function, as one write with this TTL.

        An expired value is not seen by the function: what has expired does not come back through a merge. The function
        is called again if another write of the row came in between.
        """
        self.state.check_writable()
        function = self.state.options.merge
        if function is None:
            raise Unsupported("this store has no merge function", hint="open it with merge=function")
        check_value(operand)
        ttl = plain_ttl(ttl)
        self.state.expiry_ms(ttl, self.state.clock.now_ms())  # before the function is called
        while True:
            found = await self._live_row(key, self.state.clock.now_ms())
            value = check_value(await self.call(function, None if found is None else found.value, operand))
            async with self.gate.alone():
                now_ms = self.state.clock.now_ms()
                if await self._live_row(key, now_ms) == found:  # else another write came in between, or it has expired
                    stamp = self.state.stamp(ttl, now_ms)
                    await self.put_row(key, stamp.head + value, stamp)
                    return value

    async def _live_row(self, key: bytes, now_ms: int) -> Row | None:
        return self.state.visible(key, await self.fetch_from(self.handle, check_key(key)), now_ms, False)

    def batch(self) -> AsyncBatch:
        self.state.check_writable()
        return AsyncBatch(self)

    # Maintenance

    async def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        """Change it, in the store, for writes from now on; rows already written keep their expiry."""
        default = read_default(ttl)
        await self._set_meta(stored.DEFAULT_TTL_KEY, stored.pack_default(default))
        async with self.gate.beside():
            self.state.default = default
            self.state.stamps.clear()

    async def pause(self, reason: str = "paused") -> None:
        """Refuse purges until `resume`. Expired rows stay stored, and stay invisible."""
        await self._set_meta(stored.PAUSE_KEY, reason.encode() or b"paused")

    async def resume(self) -> None:
        await self._set_meta(stored.PAUSE_KEY, b"")

    async def _set_meta(self, name: bytes, value: bytes) -> None:
        self.state.check_writable()
        await self.put_meta({name: value})
        await self.flush()

    async def purge(self, **limits: Unpack[PurgeLimits]) -> PurgeResult:
        """Remove rows that are expired, on an idle store as well.

        Without `within` the rows are removed and the engine frees their bytes in its own time. With `within` flush,
        compaction and garbage collection are driven until the bytes are gone, the store's files are searched for them,
        and `complete` says whether all that happened in this time. Where files cannot be searched (object stores) it
        can be true without that, and `verification.unchecked` says so. Once `stop` is set the purge ends at its next
        step and leaves the rest for another one.
        """
        return await self.aside(self.purge_within(Budget(**limits)))

    async def purge_within(self, budget: Budget) -> PurgeResult:
        self.state.check_writable()
        try:
            async with self.purge_gate.alone():
                result = await self.new_purge(budget).run()
        except Exception:
            self.state.metrics.purge_failed()
            raise
        self.state.metrics.purge_finished(result, self.state.clock.now_ms())
        return result

    def is_mark_due(self, now_ms: int) -> bool:
        return now_ms - self.state.mark_ms >= self.mark_step_ms and not self.state.options.read_only

    async def save_mark(self, now_ms: int) -> None:
        if self.is_mark_due(now_ms):
            with self.lock:
                self.state.mark_ms = max(now_ms, self.state.mark_ms)
                await self.put_meta({stored.MARK_KEY: stored.pack_mark(self.state.mark_ms)})

    async def flush(self) -> None:
        """Make every write so far survive a crash of the machine."""
        self.state.check_open()
        if not self.state.options.read_only:
            await self.aside(self.sync())


class AsyncBatch(AsyncBlock):
    """A batch that could not be written still has its writes, to be committed again."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._writes: dict[bytes, tuple[bytes, bytes | None, TtlLike]] = {}
        self._ttls: set[TtlLike] = {Ttl.DEFAULT}
        """Those that were looked at; whether a moment is still to come is seen at the commit."""

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        if type(key) is not bytes or type(value) is not bytes or key < LOWEST_KEY or len(key) > MAX_KEY_BYTES:
            check_key(key)
            check_value(value)
        if type(ttl) not in PLAIN_TTLS:
            ttl = plain_ttl(ttl)
        if ttl not in self._ttls:
            state = self._store.state
            state.expiry_ms(ttl, state.clock.now_ms())  # one that cannot be is refused here, not at the commit
            self._ttls.add(ttl)
        self._writes[key] = (key, value, ttl)

    def delete(self, key: bytes) -> None:
        self._writes[check_key(key)] = (key, None, Ttl.DEFAULT)

    def quick(self) -> dict[str, Callable[..., Any]]:
        return {"put": self.put, "delete": self.delete}

    def __len__(self) -> int:
        return len(self._writes)

    async def commit(self) -> None:
        self._store.state.check_writable()
        writes = self._writes.values()
        deletes = [key for key, value, _ in writes if value is None]
        puts = (write for write in writes if write[1] is not None) if deletes else writes
        await self._store.write_all(take_rows(puts), deletes=deletes)
        self._writes = {}

    async def close(self) -> None:
        """Nothing was written, and nothing is lost."""
