"""The `get` of a RocksDB store: what is done for each row is next to nothing, so everything else counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lapse.errors import LapseError
from lapse.kv.keys import check_key
from lapse.kv.rocksdb.engine import translate
from lapse.kv.rocksdb.marks import Marks
from lapse.kv.row import HEADER_BYTES, LIVE_END, VALUE
from lapse.kv.state import State


class Get(Protocol):
    def __call__(self, key: bytes, *, include_expired: bool = False) -> bytes | None: ...


def quick_get(fetch: Callable[[bytes], bytes | None], state: State, marks: Marks) -> Get:
    """A closure and not a method, with one clock reading and one comparison for a live row: a call more would be
    a tenth of what the engine itself needs. Whatever is not plainly a live row takes the long way."""
    clock, read_ns = state.clock, state.clock.read_ns

    def get(key: bytes, *, include_expired: bool = False) -> bytes | None:
        try:
            raw = fetch(key)
            if raw is None:
                check_key(key)
                state.check_open()
                return None
            moment = clock.moment
            if read_ns() >= moment.ends_ns:
                moment = clock.advance()
                marks.save(moment.now_ms)
            if moment.live_from <= raw < LIVE_END:
                value = raw[VALUE]
                if value or len(raw) == HEADER_BYTES:
                    return value
        except LapseError:
            raise
        except Exception as error:
            check_key(key)
            raise translate(state.url, error) from error
        found = state.visible(key, raw, moment.now_ms, include_expired)
        return None if found is None else found.value

    return get
