"""`get` and `put` of a RocksDB store: what is done for each row is next to nothing, so everything else counts.

Closures and not methods, with one clock reading each: a call more would be a tenth of what the engine itself needs.
Whatever is not plain takes the long way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lapse.errors import LapseError
from lapse.kv.keys import LOWEST_KEY, MAX_KEY_BYTES, check_key, check_value
from lapse.kv.rocksdb.engine import translate
from lapse.kv.row import HEADER_BYTES, LIVE_END, VALUE
from lapse.kv.state import State
from lapse.kv.ttl import Ttl, TtlLike

SaveMark = Callable[[int], None]


def quick_get(fetch: Callable[[bytes], bytes | None], state: State, save_mark: SaveMark) -> Callable[..., bytes | None]:
    """A live row is told by one comparison."""
    clock, read_ns = state.clock, state.clock.read_ns
    live_end, where, header_bytes, lowest, most = LIVE_END, VALUE, HEADER_BYTES, LOWEST_KEY, MAX_KEY_BYTES

    def get(key: bytes, *, include_expired: bool = False) -> bytes | None:
        try:
            raw = fetch(key)
            if raw is None:
                if type(key) is not bytes or key < lowest or len(key) > most:
                    check_key(key)
                return None
            moment = clock.moment
            if read_ns() >= moment.ends_ns:
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
        found = state.visible(key, raw, moment.now_ms, include_expired)
        return None if found is None else found.value

    return get


def quick_put(
    store: Callable[[bytes, bytes], None], state: State, save_mark: SaveMark, lock: threading.RLock
) -> Callable[..., None]:
    """The header is made once a millisecond for each TTL. The lock is taken by hand: `with` costs as much again."""
    clock, read_ns, acquire, release = state.clock, state.clock.read_ns, lock.acquire, lock.release
    default, lowest, most = Ttl.DEFAULT, LOWEST_KEY, MAX_KEY_BYTES
    known: Any = state.stamps.get

    def put(key: bytes, value: bytes, ttl: TtlLike = default) -> None:
        if type(key) is not bytes or type(value) is not bytes or key < lowest or len(key) > most:
            check_key(key)
            check_value(value)
        acquire()
        try:
            stamp = known(ttl)
            if stamp is None or read_ns() >= stamp.ends_ns:
                now_ms = clock.now_ms()
                state.check_writable()
                save_mark(now_ms)
                stamp = state.stamp(ttl, now_ms)
            group = stamp.group
            if group.keys is not None:
                group.keys.append(key)
            elif not group.first <= key <= group.last:
                group.note(key)
            store(key, stamp.head + value)
        except LapseError:
            raise
        except Exception as error:
            if type(error) is TypeError:
                state.expiry_ms(ttl, clock.now_ms())  # a TTL that cannot even be looked up
                check_value(value)
            raise translate(state.url, error) from error
        finally:
            release()

    return put
