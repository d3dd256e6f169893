"""Writes to RocksDB that happen together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.kv import row
from lapse.kv.abc import Batch
from lapse.kv.keys import check_key, check_value
from lapse.kv.rocksdb.tables import Change
from lapse.kv.state import State
from lapse.kv.ttl import Ttl, TtlLike

if TYPE_CHECKING:
    from lapse.kv.rocksdb.store import RocksStore


class RocksBatch(Batch):
    def __init__(self, store: RocksStore) -> None:
        self._store = store
        self._writes: dict[bytes, tuple[bytes, TtlLike] | None] = {}

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        state = self._store.state
        state.expiry_ms(ttl, state.clock.now_ms())  # a TTL that cannot be is refused at its own line
        self._writes[check_key(key)] = (check_value(value), ttl)

    def delete(self, key: bytes) -> None:
        self._writes[check_key(key)] = None

    def __len__(self) -> int:
        return len(self._writes)

    def commit(self) -> None:
        writes, self._writes = self._writes, {}
        store = self._store
        store.state.check_writable()
        if not writes:
            return
        with store.lock:
            now_ms = store.state.clock.now_ms()
            store.write([_change(store.state, key, write, now_ms) for key, write in writes.items()], now_ms)


def _change(state: State, key: bytes, write: tuple[bytes, TtlLike] | None, now_ms: int) -> Change:
    if write is None:
        return key, None, 0
    value, ttl = write
    expires_ms = state.expiry_ms(ttl, now_ms)
    return key, row.header(created_ms=now_ms, expires_ms=expires_ms) + value, expires_ms
