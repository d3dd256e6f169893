"""Views of a column family: iterators that the store can let go of, since RocksDB cannot close while one
lives."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from lapse.errors import StoreClosed
from lapse.kv.keys import KeyRange

CHUNK_ROWS = 256

RawRows = Iterator[tuple[bytes, bytes]]
Chunks = Iterator[list[tuple[bytes, bytes]]]
"""Rows in lists: to go on in a list costs a tenth of going on in a generator."""


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

    def chunks(self) -> Chunks:
        while True:
            if self._items is None:
                raise StoreClosed("the store was closed during this scan")
            chunk = list(islice(self._items, CHUNK_ROWS))
            if len(chunk) < CHUNK_ROWS:
                self.release()
                yield chunk
                return
            yield chunk


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

    def chunks(self, keys: KeyRange) -> Chunks:
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
            yield chunk
            if len(chunk) < CHUNK_ROWS:
                return
            position = chunk[-1][0] + b"\0"

    def _seek(self, key: bytes, user: object) -> Any:
        if self._iterator is None:
            raise StoreClosed("the snapshot is closed")
        self._user = user
        self._iterator.seek(key)
        return self._iterator


def newest_chunks(sources: Sequence[Chunks]) -> Chunks:
    """Rows of several families in key order; of a key that several have, the first family's row."""
    rows = _newest_of(sources)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield chunk


def _newest_of(sources: Sequence[Chunks]) -> RawRows:
    last: bytes | None = None
    for key, _, raw in heapq.merge(*(_ranked(rank, chunks) for rank, chunks in enumerate(sources))):
        if key != last:
            last = key
            yield key, raw


def _ranked(rank: int, chunks: Chunks) -> Iterator[tuple[bytes, int, bytes]]:
    for key, raw in chain.from_iterable(chunks):
        yield key, rank, raw
