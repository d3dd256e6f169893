"""Reading ranges of SlateDB: in chunks, because every call into the engine is dear."""

from __future__ import annotations

from collections import deque
from typing import Any

from lapse.kv.keys import RESERVED, KeyRange
from lapse.kv.reads import RawRow
from lapse.kv.slatedb.engine import load
from lapse.kv.slatedb.keyspace import LAST_RESERVED, within

CHUNK_ROWS = 1_000


class Source:
    """The rows of one range, without Lapse's own, with the prefix of their keys taken off."""

    def __init__(self, handle: Any, keys: KeyRange, prefix: bytes = b"") -> None:
        self._handle = handle
        self._keys = within(prefix, keys)
        self._skip = len(prefix)
        self._iterator: Any = None
        self._done = False

    async def chunk(self) -> list[RawRow]:
        """Lapse has fewer keys of its own than a chunk has rows, so only the last one can be empty."""
        if self._done:
            return []
        if self._iterator is None:
            self._iterator = await self._handle.scan(
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
