"""Writes that happen together: collected, and written at the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lapse.kv.keys import LOWEST_KEY, MAX_KEY_BYTES, check_key, check_value, take_rows
from lapse.kv.reads import AsyncBlock
from lapse.kv.ttl import PLAIN_TTLS, Ttl, TtlLike, plain_ttl

if TYPE_CHECKING:
    from lapse.kv.base import AsyncStore


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
