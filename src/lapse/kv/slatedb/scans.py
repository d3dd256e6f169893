"""Reading ranges of SlateDB: in chunks, because every call into the engine is dear."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from lapse.errors import LapseError, StoreClosed
from lapse.kv import row
from lapse.kv.clock import StoppedClock, StoreClock
from lapse.kv.keys import KeyRange
from lapse.kv.row import HEADER_BYTES, LIVE_END, VALUE
from lapse.kv.slatedb.engine import load, translate
from lapse.kv.slatedb.keyspace import LAST_RESERVED, RESERVED
from lapse.kv.state import State

CHUNK_ROWS = 1_000

RawRow = tuple[bytes, bytes]


class Source:
    """The rows of one range, without Lapse's own, with the first `skip` bytes of their keys taken off."""

    def __init__(self, handle: Any, keys: KeyRange, skip: int = 0) -> None:
        self.handle = handle
        self._keys = keys
        self._skip = skip
        self._iterator: Any = None
        self._done = False

    async def chunk(self) -> list[RawRow]:
        """Empty at the end, and only there: Lapse has fewer keys of its own than a chunk has rows."""
        if self._done:
            return []
        if self._iterator is None:
            self._iterator = await self.handle.scan(
                load().KeyRange(start=self._keys.start, start_inclusive=True, end=self._keys.end, end_inclusive=False)
            )
        rows = await self._iterator.next_batch(CHUNK_ROWS)
        if len(rows) < CHUNK_ROWS:
            self._done, self._iterator = True, None
        skip = self._skip
        if skip:
            return [(kv.key[skip:], kv.value) for kv in rows]
        if rows and rows[0].key <= LAST_RESERVED:
            return [(kv.key, kv.value) for kv in rows if not kv.key.startswith(RESERVED)]
        return [(kv.key, kv.value) for kv in rows]


class Chained:
    """Ranges one after the other."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = deque(sources)

    async def chunk(self) -> list[RawRow]:
        while self._sources:
            rows = await self._sources[0].chunk()
            if rows:
                return rows
            self._sources.popleft()
        return []


class Merged:
    """Buckets side by side, newest first: of a key that several have, the first one's row.

    They are read one by one, so a view that stands still is taken first; `pin` makes it.
    """

    def __init__(self, sources: list[Source], pin: Callable[[], Awaitable[Any]] | None) -> None:
        self._sources = sources
        self._pin = pin
        self._heads: list[deque[RawRow]] = [deque() for _ in sources]

    async def chunk(self) -> list[RawRow]:
        if self._pin is not None:
            pinned, self._pin = await self._pin(), None
            for source in self._sources:
                source.handle = pinned
        rows: list[RawRow] = []
        while len(rows) < CHUNK_ROWS:
            for source, head in zip(self._sources, self._heads, strict=True):
                if not head:
                    head.extend(await source.chunk())
            heads = [head for head in self._heads if head]
            if not heads:
                break
            newest = min(heads, key=lambda head: head[0][0])  # the first of equals, so the newest
            key, raw = newest.popleft()
            for head in heads:
                while head and head[0][0] == key:
                    head.popleft()
            rows.append((key, raw))
        return rows


Chunks = Source | Chained | Merged


class Scan(AsyncIterator[RawRow]):
    """Live rows of a range. `ready` serves what has been read; `fill` reads more.

    Rows are judged one by one, by `clock`. `check` raises once its reader must not be read any more.
    """

    def __init__(
        self,
        state: State,
        chunks: Chunks | None,
        *,
        clock: StoreClock | StoppedClock,
        check: Callable[[], object] | None,
        limit: int | None,
        include_expired: bool,
    ) -> None:
        self._state = state
        self._chunks = chunks
        self._clock = clock
        self._check = check
        self._left = -1 if limit is None else limit
        self._include_expired = include_expired
        self._rows: deque[RawRow] = deque()

    @property
    def is_open(self) -> bool:
        return self._chunks is not None

    def close(self) -> None:
        self._chunks = None
        self._rows.clear()

    def ready(self) -> Iterator[RawRow]:
        """Rows that have been read already and are live when they are taken; then more must be read."""
        rows, clock, check = self._rows, self._clock, self._check
        while rows and self._left:
            key, raw = rows.popleft()
            if check is not None:
                check()
            moment = clock.moment
            if clock.read_ns() >= moment.ends_ns:
                moment = clock.advance()
            is_live = moment.live_from <= raw < LIVE_END and len(raw) >= HEADER_BYTES
            if is_live or self._is_shown_dead(key, raw):
                self._left -= 1
                yield key, raw[VALUE]

    def _is_shown_dead(self, key: bytes, raw: bytes) -> bool:
        is_tombstone = row.unpack(key, raw)[0] & row.TOMBSTONE
        if not is_tombstone and not self._include_expired:
            self._state.metrics.hidden.inc()
        return not is_tombstone and self._include_expired

    async def fill(self) -> bool:
        """False at the end."""
        if not self._left:
            self.close()
            return False
        if self._state.closed:
            raise StoreClosed("the store was closed during this scan")
        if self._chunks is None:
            return False
        try:
            self._rows.extend(await self._chunks.chunk())
        except LapseError:
            raise
        except Exception as error:
            raise translate(self._state.url, error) from error
        if not self._rows:
            self._chunks, self._left = None, 0
        return bool(self._rows)

    async def __aiter__(self) -> AsyncIterator[RawRow]:
        """What `async for` uses: a generator costs a row less than a call of `__anext__`."""
        while True:
            for found in self.ready():
                yield found
            if not await self.fill():
                return

    async def __anext__(self) -> RawRow:
        while True:
            for found in self.ready():
                return found
            if not await self.fill():
                raise StopAsyncIteration
