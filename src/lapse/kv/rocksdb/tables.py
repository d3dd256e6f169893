"""Where rows lie in RocksDB: all in one column family, or one family per time bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from lapse.errors import StoreClosed
from lapse.kv import row
from lapse.kv.buckets import BucketMap
from lapse.kv.format import BUCKETS_KEY
from lapse.kv.keys import MAX_KEY_BYTES, KeyRange, check_key, check_value
from lapse.kv.rocksdb.engine import META_FAMILY, ROWS_FAMILY, load, options
from lapse.kv.rocksdb.views import Chunks, Cursor, Pin, newest_chunks
from lapse.kv.ttl import NEVER_MS

Change = tuple[bytes, bytes | None, int]
"""Key, stored bytes (None deletes), expiry."""

_BUCKET_PREFIX = "bucket-"


class View(Protocol):
    """Newest versions only, tombstones included."""

    def fetch(self, key: bytes) -> bytes | None: ...
    def chunks(self, keys: KeyRange) -> Chunks: ...
    def release(self) -> None: ...


class Table(Protocol):
    """Callers hold the store's lock around `write`, `pin`, `cursors` and `drop`."""

    fetch: Callable[[bytes], bytes | None]

    def write(self, changes: Sequence[Change], now_ms: int, extra: dict[bytes, bytes]) -> None:
        """All changes and the store's own keys in `extra`, together."""
        ...

    def cursors(self, keys: KeyRange) -> list[Cursor]:
        """Newest first."""
        ...

    def pin(self) -> View: ...
    def families(self) -> list[Any]: ...

    def close(self) -> None:
        """Let go of every family and handle: RocksDB stays open, and locked, while one is referred to."""
        ...


class FlatTable:
    def __init__(self, database: Any, write_options: Any) -> None:
        self._rocksdict = load()
        self._database = database
        self._sync = write_options
        self._meta_handle = database.get_column_family_handle(META_FAMILY)
        database.set_write_options(write_options)
        self.put_one: Callable[[bytes, bytes], None] = database.put
        self.fetch: Callable[[bytes], bytes | None] = database.get

    def write(self, changes: Sequence[Change], now_ms: int, extra: dict[bytes, bytes]) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, raw, _ in changes:
            if raw is None:
                batch.delete(key)
            else:
                batch.put(key, raw)
        for key, value in extra.items():
            batch.put(key, value, self._meta_handle)
        self._database.write(batch, self._sync)

    def put_many(self, head: bytes, rows: Iterable[tuple[bytes, bytes]]) -> int:
        """Rows that share one header. The loop is as short as it can be: it runs for every row that comes
        in."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in rows:
            if type(key) is bytes and type(value) is bytes and 0 < len(key) <= MAX_KEY_BYTES:
                put(key, head + value)
            else:
                put(check_key(key), head + check_value(value))
        count = len(batch)
        self._database.write(batch, self._sync)
        return count

    def cursors(self, keys: KeyRange) -> list[Cursor]:
        return [Cursor(self._rocksdict, self._database, keys)]

    def pin(self) -> View:
        return Pin(self._database)

    def families(self) -> list[Any]:
        return [self._database]

    def close(self) -> None:
        self._meta_handle = None
        self.fetch = closed_fetch
        del self.put_one


class BucketPin:
    def __init__(self, pins: list[Pin]) -> None:
        self._pins = pins

    def fetch(self, key: bytes) -> bytes | None:
        return next((raw for pin in self._pins if (raw := pin.fetch(key)) is not None), None)

    def chunks(self, keys: KeyRange) -> Chunks:
        return newest_chunks([pin.chunks(keys) for pin in self._pins])

    def release(self) -> None:
        for pin in self._pins:
            pin.release()


class BucketTable:
    """A delete, and a purge inside a bucket, writes a tombstone row: an older bucket may still have the
    key."""

    def __init__(self, database: Any, write_options: Any, buckets: BucketMap, names: list[str]) -> None:
        self._rocksdict = load()
        self._database = database
        self._sync = write_options
        self._meta_handle = database.get_column_family_handle(META_FAMILY)
        self.buckets = buckets
        self._families: dict[int, Any] = {}
        for name in names:
            if name.startswith(_BUCKET_PREFIX):
                id = int(name.removeprefix(_BUCKET_PREFIX))
                self._families[id] = database.get_column_family(name)
                buckets.add(id)
        self._order()
        self.fetch: Callable[[bytes], bytes | None] = self._fetch_newest

    def write(self, changes: Sequence[Change], now_ms: int, extra: dict[bytes, bytes]) -> None:
        id = self.buckets.id_for(now_ms)
        self._ensure(id)
        is_oldest = id == self.buckets.ids()[0]
        batch, handle = self._rocksdict.WriteBatch(raw_mode=True), self._handle(id)
        low_ms, high_ms = NEVER_MS, now_ms
        for key, raw, expires_ms in changes:
            if raw is not None:
                batch.put(key, raw, handle)
                low_ms, high_ms = min(low_ms, expires_ms), max(high_ms, expires_ms)
            elif is_oldest:
                batch.delete(key, handle)
            else:
                batch.put(key, row.tombstone(created_ms=now_ms), handle)
        if self.buckets.note(id, min_ms=low_ms, max_ms=high_ms, rows=len(changes)):
            batch.put(BUCKETS_KEY, self.buckets.to_bytes(), self._meta_handle)
        for key, value in extra.items():
            batch.put(key, value, self._meta_handle)
        self._database.write(batch, self._sync)

    def replace_in(self, id: int, keys: Sequence[bytes], now_ms: int) -> None:
        """Remove rows of one bucket without uncovering what an older bucket has under the same keys."""
        batch, handle = self._rocksdict.WriteBatch(raw_mode=True), self._handle(id)
        is_oldest = id == self.buckets.ids()[0]
        for key in keys:
            if is_oldest:
                batch.delete(key, handle)
            else:
                batch.put(key, row.tombstone(created_ms=now_ms), handle)
        self._database.write(batch, self._sync)

    def drop(self, id: int) -> None:
        # The name is forgotten only after the family is gone: a crash in between leaves an empty entry, not a
        # family that nobody knows.
        del self._families[id]
        self._order()
        self._database.drop_column_family(f"{_BUCKET_PREFIX}{id}")
        self.buckets.forget(id)
        self._database.get_column_family(META_FAMILY).put(BUCKETS_KEY, self.buckets.to_bytes())

    def family(self, id: int) -> Any:
        return self._families[id]

    def cursors(self, keys: KeyRange) -> list[Cursor]:
        return [Cursor(self._rocksdict, family, keys) for family in self._newest_first]

    def pin(self) -> View:
        return BucketPin([Pin(family) for family in self._newest_first])

    def families(self) -> list[Any]:
        return list(self._newest_first)

    def close(self) -> None:
        self._meta_handle = None
        for family in self._families.values():
            family.close()
        self._families = {}
        self._order()
        self.fetch = closed_fetch

    def _fetch_newest(self, key: bytes) -> bytes | None:
        for family in self._newest_first:
            raw: bytes | None = family.get(key)
            if raw is not None:
                return raw
        return None

    def _order(self) -> None:
        """A new tuple each time: reads take no lock, and one under way goes on with the families it began
        with."""
        self._newest_first = tuple(self._families[id] for id in sorted(self._families, reverse=True))

    def _ensure(self, id: int) -> None:
        if id not in self._families:
            created = self._database.create_column_family(f"{_BUCKET_PREFIX}{id}", options(self._rocksdict))
            self._families[id] = created
            self.buckets.add(id)
            self._order()

    def _handle(self, id: int) -> Any:
        return self._database.get_column_family_handle(f"{_BUCKET_PREFIX}{id}")


def open_table(database: Any, write_options: Any, buckets: BucketMap | None, names: list[str]) -> Table:
    if buckets is None:
        return FlatTable(database, write_options)
    for id in [id for id in buckets.ids() if f"{_BUCKET_PREFIX}{id}" not in names]:
        buckets.forget(id)
    return BucketTable(database, write_options, buckets, [name for name in names if name != ROWS_FAMILY])


def closed_fetch(key: bytes) -> bytes | None:
    raise StoreClosed("the store is closed")
