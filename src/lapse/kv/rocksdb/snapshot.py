"""A RocksDB store at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING
from weakref import finalize

from lapse.errors import StoreClosed
from lapse.kv.abc import Snapshot
from lapse.kv.clock import StoppedClock
from lapse.kv.keys import KeyRange, check_key, check_limit, read_range
from lapse.kv.rocksdb.engine import engine_errors
from lapse.kv.rocksdb.tables import View
from lapse.kv.rocksdb.views import RawRows
from lapse.kv.row import Row
from lapse.kv.values import Meta, meta_of

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore


class RocksSnapshot(Snapshot):
    def __init__(self, store: RocksStore, view: View, read_ms: int) -> None:
        self._store = store
        self._view = view
        self._read_ms = read_ms
        self._clock = StoppedClock(read_ms)
        reader = store.state.reader_opened(read_ms)
        # A snapshot that is forgotten rather than closed must not hold up every purge from then on.
        self._forget = finalize(self, store.state.reader_closed, reader)

    def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        found = self._row(key, include_expired)
        return None if found is None else found.value

    def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        found = self._row(key, include_expired)
        return None if found is None else meta_of(found, self._read_ms)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        keys, limit = read_range(start, end, prefix), check_limit(limit)
        self._check_open()
        chunks = iter(()) if keys.is_empty or limit == 0 else self._view.chunks(keys)
        return self._store.strict(chunks, self._clock, limit, include_expired)

    def raw_rows(self, keys: KeyRange) -> RawRows:
        self._check_open()
        return chain.from_iterable(self._view.chunks(keys))

    def judge(self, rows: RawRows, limit: int | None, include_expired: bool) -> RawRows:
        return self._store.strict(iter([list(rows)]), self._clock, limit, include_expired)

    @property
    def is_open(self) -> bool:
        return self._forget.alive

    def close(self) -> None:
        self.release()

    def release(self) -> None:
        self._forget()
        self._view.release()

    def _check_open(self) -> None:
        if not self.is_open:
            raise StoreClosed("the snapshot is closed")

    def _row(self, key: bytes, include_expired: bool) -> Row | None:
        check_key(key)
        self._check_open()
        with engine_errors(self._store.state.url):
            return self._store.state.visible(key, self._view.fetch(key), self._read_ms, include_expired)
