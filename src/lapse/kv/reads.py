"""Strict reads, whatever the engine: of a store, and of a snapshot or transaction, in which the time stands still."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import ref

from lapse.errors import SnapshotTooOld, StoreClosed
from lapse.kv.clock import StoppedClock, StoreClock
from lapse.kv.keys import KeyRange, check_key, check_limit, read_range
from lapse.kv.row import HEADER_BYTES, LIVE_END, VALUE, unpack
from lapse.kv.state import State
from lapse.kv.values import Meta

if TYPE_CHECKING:
    from lapse.kv.base import AsyncStore

RawRow = tuple[bytes, bytes]


class Chunks(Protocol):
    """The rows of one range as they are stored, expired ones included."""

    async def chunk(self) -> list[RawRow]:
        """Empty at the end, and only there. An end that is none, because reading failed, is an error."""
        ...


class View(Protocol):
    """Something that keeps files of the engine alive while it is open."""

    @property
    def is_open(self) -> bool: ...
    def release(self) -> object: ...


class Views:
    """Those that are open. A garbage collection may take one away at any moment, in any thread, and another thread may
    add one: no lock is taken, which the same thread could hold."""

    def __init__(self) -> None:
        self._all: set[ref[View]] = set()

    def add(self, view: View) -> None:
        self._all.add(ref(view, self._all.discard))

    def __iter__(self) -> Iterator[View]:
        found = [view() for view in self._all.copy()]
        return iter([view for view in found if view is not None and view.is_open])


@dataclass(kw_only=True, eq=False)
class Scan:
    """Live rows of a range. `fill` reads a chunk, and answers with what hands its rows out.

    Rows are judged one by one, by `clock`, at the moment they are handed out: a scan may pause for hours. `left` rows
    may still be handed out, -1 for all.
    """

    state: State
    chunks: Chunks | None
    clock: StoreClock
    left: int
    include_expired: bool

    @property
    def is_open(self) -> bool:
        return self.chunks is not None

    def release(self) -> None:
        self.chunks = None

    async def fill(self) -> Iterator[RawRow] | None:
        """None at the end. The scan does not keep the answer: once garbage-collected it releases the engine."""
        if self.left and self.state.closed:
            raise StoreClosed("the store was closed during this scan")
        if not self.left or self.chunks is None:
            self.release()
            return None
        rows = await self.chunks.chunk()
        if not rows:
            self.left = 0
            self.release()
            return None
        judged = self._judge(rows)
        return judged if self.left < 0 else self._limited(judged)

    def _judge(self, rows: Iterable[RawRow]) -> Iterator[RawRow]:
        """One comparison of bytes shows that a row is live. The loop runs for every row that is returned."""
        hidden, include_expired, where, end, least = 0, self.include_expired, VALUE, LIVE_END, HEADER_BYTES
        clock, moment = self.clock, self.clock.moment
        read_s, ends_s, live_from = clock.read_s, moment.ends_s, moment.live_from
        try:
            for key, raw in rows:
                if read_s() >= ends_s:
                    moment = clock.advance()
                    ends_s, live_from = moment.ends_s, moment.live_from
                if live_from <= raw < end and ((value := raw[where]) or len(raw) == least):
                    yield key, value
                    continue
                unpack(key, raw)  # an error if it cannot be read
                if include_expired:
                    yield key, raw[where]
                else:
                    hidden += 1
        finally:
            if hidden:
                self.state.metrics.hidden(hidden)

    def _limited(self, rows: Iterable[RawRow]) -> Iterator[RawRow]:
        for found in rows:
            self.left -= 1
            yield found
            if not self.left:
                return

    async def rows(self) -> AsyncIterator[RawRow]:
        while (rows := await self.fill()) is not None:
            for found in rows:
                yield found
            await sleep(0)  # reading a chunk may not wait for anything, as on RocksDB: other tasks have their turn


class AsyncBlock:
    """Used with `async with`: committed at the end if it can be and all went well, else closed."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        await (getattr(self, "commit", self.close) if kind is None else self.close)()

    def quick(self) -> dict[str, Callable[..., Any]]:
        """Methods that code which is not asynchronous can call as they are."""
        return {}


class AsyncReader(AsyncBlock, ABC):
    """A row is expired at every time `>=` its expiry. Expired rows are not returned by any read unless
    `include_expired` is true. Reads outside a snapshot or transaction use the time of the moment a row is handed out;
    inside one the time stands still. The TTL of a row is the one of its latest write."""

    store: AsyncStore
    handle: Any
    """The engine's object: the store's own, or that of a snapshot or transaction."""

    @property
    @abstractmethod
    def clock(self) -> StoreClock:
        """By which rows are judged."""

    @abstractmethod
    def read_ms(self) -> int:
        """The time at which rows are judged; raises if this reader must not read any more."""

    async def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        check_key(key)
        if self.store.is_mark_due(now_ms := self.read_ms()):
            await self.store.save_mark(now_ms)
        raw = await self.store.fetch_from(self.handle, key)
        if raw is None:
            return None
        # At the time of the answer: the row may have expired while the engine looked for it.
        if self.clock.present().live_from <= raw < LIVE_END and len(raw) >= HEADER_BYTES:
            return raw[VALUE]
        found = self.store.state.visible(key, raw, self.read_ms(), include_expired)
        return None if found is None else found.value

    async def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        """When the row was written, when it expires and how long that is from now."""
        self.read_ms()
        raw, now_ms = await self.store.fetch_from(self.handle, check_key(key)), self.read_ms()
        found = self.store.state.visible(key, raw, now_ms, include_expired)
        return None if found is None else Meta.of(found, now_ms)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> AsyncIterator[RawRow]:
        """Rows of `[start, end)` that begin with `prefix`, in key order, as they were when the scan began, which is at
        its first row at the latest."""
        return self.open_scan(start, end, prefix, limit, include_expired).rows()

    def open_scan(
        self, start: bytes | None, end: bytes | None, prefix: bytes | None, limit: int | None, include_expired: bool
    ) -> Scan:
        keys = read_range(start, end, prefix)
        check_limit(limit)
        self.read_ms()
        chunks = None if keys.is_empty else self.chunks(keys)
        left, state = -1 if limit is None else limit, self.store.state
        scan = Scan(state=state, chunks=chunks, clock=self.clock, left=left, include_expired=include_expired)
        self.store.views.add(scan)
        return scan

    def chunks(self, keys: KeyRange) -> Chunks:
        return self.store.chunks_from(self.handle, keys)


class AsyncSnapshot(AsyncReader):
    """A view in which neither rows nor time change."""

    def __init__(self, store: AsyncStore, handle: Any, read_ms: int) -> None:
        self.store = store
        self.handle = handle
        self.opened_ms = read_ms
        store.views.add(self)

    @property
    def clock(self) -> StoreClock:
        return StoppedClock(self.opened_ms, self.read_ms)

    def read_ms(self) -> int:
        """SlateDB's compaction removes rows under an open snapshot once they have expired. It is therefore told an
        expiry that lies `snapshot_lifetime` later: up to that age a snapshot finds everything it may see, and after it
        reads are refused rather than answered wrongly."""
        state = self.store.state
        if not self.is_open or state.closed:
            raise StoreClosed("the snapshot or transaction has ended")
        if state.format.engine_expiry:
            age_ms, most_ms = state.clock.now_ms() - self.opened_ms, state.format.snapshot_lifetime_ms
            if age_ms >= most_ms:
                raise SnapshotTooOld(
                    f"opened {age_ms} ms ago, but expired rows may be purged after {most_ms} ms",
                    hint="read faster, or create the store with a longer snapshot_lifetime",
                )
        return self.opened_ms

    @property
    def is_open(self) -> bool:
        return self.handle is not None

    def release(self) -> Any:
        """Returns the engine's object, for what is still to be done with it."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self.store.unpin(handle)
        return handle

    async def close(self) -> None:
        self.release()
