"""Views of a column family: iterators that the store can let go of, since RocksDB cannot close while one
lives."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from lapse.errors import StoreClosed
from lapse.kv.keys import KeyRange

CHUNK_ROWS = 256

RawRows = Iterator[tuple[bytes, bytes]]


class Cursor:
    """One pass over a range, as the family is now."""

    def __init__(self, rocksdict: Any, family: Any, keys: KeyRange) -> None:
        bounds = rocksdict.ReadOptions()
        if keys.end is not None:
            bounds.set_iterate_upper_bound(keys.end)
        self._items: Any = family.items(from_key=keys.start, read_opt=bounds)
        self._family = family  # an iterator of a dropped family is valid only while its handle lives

    @property
    def is_open(self) -> bool:
        return self._items is not None

    def release(self) -> None:
        self._items = self._family = None

    def rows(self) -> RawRows:
        while True:
            if self._items is None:
                raise StoreClosed("the store was closed during this scan")
            chunk = list(islice(self._items, CHUNK_ROWS))
            if len(chunk) < CHUNK_ROWS:
                self.release()
                yield from chunk
                return
            yield from chunk


class Pin:
    """A family as it was when the pin was made, for any number of reads.

    rocksdict's Snapshot pins point reads only: its iterators show later writes. A plain iterator is what
    really stands still, so one is kept and moved about.
    """

    def __init__(self, family: Any) -> None:
        self._iterator: Any = family.iter()
        self._family = family  # as in Cursor
        self._user: object = None
        self._lock = threading.Lock()

    def release(self) -> None:
        with self._lock:
            self._iterator = self._family = None

    def fetch(self, key: bytes) -> bytes | None:
        with self._lock:
            iterator = self._seek(key, None)
            if not iterator.valid() or iterator.key() != key:
                return None
            value: bytes = iterator.value()
            return value

    def rows(self, keys: KeyRange) -> RawRows:
        user, position = object(), keys.start or b"\0"
        while True:
            with self._lock:
                iterator = self._iterator if self._user is user else self._seek(position, user)
                if iterator is None:
                    raise StoreClosed("the snapshot was closed during this scan")
                chunk: list[tuple[bytes, bytes]] = []
                while len(chunk) < CHUNK_ROWS and iterator.valid():
                    key = iterator.key()
                    if keys.end is not None and key >= keys.end:
                        break
                    chunk.append((key, iterator.value()))
                    iterator.next()
            yield from chunk
            if len(chunk) < CHUNK_ROWS:
                return
            position = chunk[-1][0] + b"\0"

    def _seek(self, key: bytes, user: object) -> Any:
        if self._iterator is None:
            raise StoreClosed("the snapshot is closed")
        self._user = user
        self._iterator.seek(key)
        return self._iterator


def newest_of(sources: Iterable[RawRows]) -> RawRows:
    """Rows of several families in key order; of a key that several have, the first family's row."""
    last: bytes | None = None
    for key, _, raw in heapq.merge(*(_ranked(rank, rows) for rank, rows in enumerate(sources))):
        if key != last:
            last = key
            yield key, raw


def _ranked(rank: int, rows: RawRows) -> Iterator[tuple[bytes, int, bytes]]:
    for key, raw in rows:
        yield key, rank, raw
