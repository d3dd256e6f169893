"""A RocksDB store. Its coroutines do not wait: see `lapse.kv.base`.

In asyncio they run in the loop's thread, in microseconds; only what takes long is left to another thread. For a get or
a put that would be of no use: the binding keeps Python's lock meanwhile, so that the loop stands still anyway.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import add
from pathlib import Path
from typing import Any, TypeVar

from lapse.errors import LapseError
from lapse.kv.base import AsyncStore
from lapse.kv.keys import LOWEST_KEY, MAX_KEY_BYTES, CheckedRows, KeyRange, check_flag, check_key, check_value
from lapse.kv.options import Budget, MergeFunction
from lapse.kv.reads import Chunks, RawRow
from lapse.kv.rocksdb.engine import Calls, Handle, Pin, PinnedRows, RangeCursor, lapse_errors, load, translate
from lapse.kv.rocksdb.purge import RocksPurge
from lapse.kv.row import HEADER_BYTES, LIVE_END, VALUE, header
from lapse.kv.runner import Direct, give_back
from lapse.kv.state import Stamp, State
from lapse.kv.ttl import PLAIN_TTLS, Ttl, TtlLike, plain_ttl
from lapse.kv.units import Group
from lapse.kv.verify import total_bytes

T = TypeVar("T")


class ThreadGate:
    """One thread at a time. The store's is reentrant, that of its purges is not."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    @property
    def is_taken(self) -> bool:
        return bool(self._lock.locked())

    def beside(self) -> ThreadGate:
        return self

    alone = beside

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


class RocksStore(AsyncStore):
    """One writer process owns the store (RocksDB's LOCK), so a lock in this process is enough to make
    read-modify-write, and a purge's look-then-delete, atomic."""

    mark_step_ms = 1_000
    purge_batch_rows = 1_000
    lock: threading.RLock

    def __init__(self, *, state: State, database: Handle, meta_family: Handle, calls: Calls) -> None:
        self.lock = threading.RLock()
        gates = ThreadGate(self.lock), ThreadGate(threading.Lock())
        super().__init__(state=state, handle=database, gate=gates[0], purge_gate=gates[1])
        self.meta_family = meta_family
        self.calls = calls
        state.overdue = calls.overdue
        self._rocksdict = load()
        self._sync = self._rocksdict.WriteOptions()
        self._sync.sync = state.options.durable
        if not state.options.read_only:
            database.set_write_options(self._sync)

    @property
    def path(self) -> Path:
        assert self.state.url.path is not None
        return self.state.url.path

    def quick(self) -> dict[str, Callable[..., Any]]:
        found: dict[str, Callable[..., Any]] = {"get": _quick_get(self)}
        return found if self.state.options.read_only else found | {"put": _quick_put(self)}

    # Reading

    async def fetch_from(self, handle: Any, key: bytes) -> bytes | None:
        raw: bytes | None = handle.get(key)
        return raw

    async def fetch_rows(self, keys: Sequence[bytes]) -> list[RawRow]:
        found = self.calls.wait_for(partial(self.handle.get, list(keys)))
        return [(key, raw) for key, raw in zip(keys, found, strict=True) if raw is not None]

    def chunks_from(self, handle: Any, keys: KeyRange) -> Chunks:
        return PinnedRows(handle, keys.start or b"\0", keys.end) if isinstance(handle, Pin) else RangeCursor(self, keys)

    async def chunks_now(self, keys: KeyRange) -> Chunks:
        return RangeCursor(self, keys, self.purge_batch_rows, is_purge=True)

    async def pin(self) -> Pin:
        return Pin(self.handle)

    def unpin(self, handle: Pin) -> None:
        handle.release()

    async def meta_value(self, name: bytes) -> bytes | None:
        value: bytes | None = self.meta_family.get(name)
        return value

    async def size(self) -> int:
        return total_bytes(self.data_files())

    def data_files(self) -> list[Path]:
        return [file for file in self.path.iterdir() if file.suffix in (".sst", ".log", ".blob")]

    def estimated_rows(self) -> int:
        return int(self.handle.property_int_value("rocksdb.estimate-num-keys") or 0)

    # Writing

    async def write(self, rows: CheckedRows, ttl: TtlLike, deletes: Sequence[bytes] = ()) -> None:
        """What is done for each row is a step of C, not of Python."""
        now_ms = self.state.clock.now_ms()
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key in deletes:
            batch.delete(key)
        if rows.keys:
            heads = self._heads(rows, ttl, now_ms)
            deque(map(batch.put, rows.keys, map(add, heads, rows.values)), maxlen=0)
        with lapse_errors(self.state.url):
            self.handle.raw.write(batch, self._sync)

    def _heads(self, rows: CheckedRows, ttl: TtlLike, now_ms: int) -> Iterable[bytes]:
        """The headers of the rows, which are noted as written: with one TTL for all, a few or as many as rows."""
        state, keys, ttls = self.state, rows.keys, rows.ttls
        if ttls is None:
            stamp = state.stamp(ttl, now_ms)
            stamp.group.note_many(keys)
            return repeat(stamp.head)
        heads, groups = dict[TtlLike, bytes](), dict[TtlLike, Group]()
        for own in set(ttls):
            expires_ms = state.expiry_ms(own, now_ms)
            heads[own] = header(created_ms=now_ms, expires_ms=expires_ms)
            groups[own] = state.written.group(expires_ms)
        distinct = set(groups.values())
        if any(group.keys is not None for group in distinct):
            for key, own in zip(keys, ttls, strict=True):
                if (listed := groups[own].keys) is not None:
                    listed.append(key)
        for group in distinct:
            group.shrink()
            if group.keys is None:
                group.note_many(keys)
        return [heads[own] for own in ttls]

    async def put_row(self, key: bytes, raw: bytes, stamp: Stamp) -> None:
        stamp.group.note(key)
        self.handle.put(key, raw)

    async def delete_rows(self, keys: Sequence[bytes]) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        self.handle.write(batch)

    def version(self) -> int:
        return int(self.handle.latest_sequence_number())

    async def call(self, function: MergeFunction, existing: bytes | None, operand: bytes) -> bytes:
        return function(existing, operand)

    # Maintenance

    def new_purge(self, budget: Budget) -> RocksPurge:
        """A disk that does not answer is noticed here: the rest of a purge has no limit."""
        self.handle.flush_wal(True)
        return RocksPurge(self, budget)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def put_meta(self, values: dict[bytes, bytes]) -> None:
        with self.lock:
            for name, value in values.items():
                self.meta_family.put(name, value)

    def save_mark_now(self, now_ms: int) -> None:
        """For what is no coroutine."""
        if self.is_mark_due(now_ms):
            Direct().run(self.save_mark(now_ms))

    async def sync(self) -> None:
        with self.lock:
            self.handle.flush_wal(True)

    async def aside(self, work: Coroutine[Any, Any, T]) -> T:
        if self.in_loop and asyncio._get_running_loop() is not None:
            return await asyncio.to_thread(Direct().run, work)
        return await work

    async def close_engine(self) -> None:
        with lapse_errors(self.state.url):
            try:
                self.meta_family.close()
            finally:
                self.handle.close()


# `get` and `put`: what is done for each row is next to nothing, so everything else counts. They are closures and not
# methods, with one clock reading each; a call more would be a tenth of what the engine itself needs. Whatever is not
# plain takes the long way.


def _quick_get(store: RocksStore) -> Callable[..., bytes | None]:
    """One comparison shows that a row is live. `include_expired` is a keyword for callers, and is checked where it
    matters: Python calls a function that declares it as a keyword more slowly."""
    state, fetch, save_mark = store.state, store.handle.raw.get, store.save_mark_now
    clock, read_s = state.clock, state.clock.read_s
    live_end, where, header_bytes, lowest, most = LIVE_END, VALUE, HEADER_BYTES, LOWEST_KEY, MAX_KEY_BYTES

    def get(key: bytes, include_expired: bool = False) -> bytes | None:
        try:
            raw: bytes | None = fetch(key)
            if raw is None:
                if type(key) is not bytes or key < lowest or len(key) > most:
                    check_key(key)
                if include_expired is not False:
                    check_flag(include_expired)
                return None
            moment = clock.moment
            if read_s() >= moment.ends_s:
                moment = clock.advance()
                save_mark(moment.now_ms)
            if moment.live_from <= raw < live_end:
                value = raw[where]
                if value or len(raw) == header_bytes:
                    return value
        except LapseError:
            raise
        except Exception as error:
            check_key(key)
            raise translate(state.url, error) from error
        found = state.visible(key, raw, moment.now_ms, check_flag(include_expired))
        return None if found is None else found.value

    return get


def _quick_put(store: RocksStore) -> Callable[..., None]:
    """The header is made once a millisecond for each TTL. The lock is taken by hand: `with` costs a fiftieth more."""
    state, write, save_mark, lock = store.state, store.handle.raw.put, store.save_mark_now, store.lock
    clock, read_s, known = state.clock, state.clock.read_s, state.stamps.get
    acquire, release = lock.acquire, lock.release
    default, plain, lowest, most, step_ms = Ttl.DEFAULT, PLAIN_TTLS, LOWEST_KEY, MAX_KEY_BYTES, store.mark_step_ms

    def put(key: bytes, value: bytes, ttl: TtlLike = default) -> None:
        if type(key) is not bytes or type(value) is not bytes or key < lowest or len(key) > most:
            check_key(key)
            check_value(value)
        if ttl is not default and type(ttl) is not str and type(ttl) not in plain:
            ttl = plain_ttl(ttl)
        try:
            acquire()
            try:
                stamp = known(ttl)
                if stamp is None or read_s() >= stamp.ends_s:
                    now_ms = clock.now_ms()
                    if state.closed or state.overdue:
                        state.check_open()
                    if now_ms - state.mark_ms >= step_ms:
                        save_mark(now_ms)
                    stamp = state.stamp(ttl, now_ms)
                group = stamp.group
                if group.keys is not None:
                    group.keys.append(key)
                elif not group.first <= key <= group.last:
                    group.note(key)
                write(key, stamp.head + value)
            finally:
                release()
        except LapseError:
            raise
        except KeyboardInterrupt:
            give_back(lock)
            raise
        except Exception as error:
            raise translate(state.url, error) from error

    return put
