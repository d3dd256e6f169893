"""What may be a key or a value, and the range of keys a scan covers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lapse.errors import InvalidValue

MAX_KEY_BYTES = 65_535
"""SlateDB's and the RFC's limit (the key's length is a u16); the same on every engine."""

MAX_VALUE_BYTES = 2**32 - 1 - 64
"""Lengths are u32 in both engines; 64 bytes are left for the header."""

LOWEST_KEY = b"\x01"
"""From here on no key is empty or may be one of Lapse's own; one below it is looked at more closely."""

RESERVED = b"\x00lapse/"
"""Lapse's own keys on SlateDB begin with this; refused on every engine."""


def check_key(key: bytes) -> bytes:
    """A class derived from bytes is refused: comparing it, under the store's lock, could run code of the caller's."""
    if type(key) is not bytes:
        raise InvalidValue("key", key, f"must be bytes, not {type(key).__name__}")
    if not key:
        raise InvalidValue("key", key, "must not be empty")
    if len(key) > MAX_KEY_BYTES:
        raise InvalidValue("key", key[:32] + b"...", f"must be at most {MAX_KEY_BYTES} bytes, has {len(key)}")
    if key.startswith(RESERVED):
        raise InvalidValue("key", key, f"must not begin with {RESERVED!r}, which Lapse keeps for itself")
    return key


def check_flag(include_expired: bool) -> bool:
    """Not something that is meant as a default value, as for `dict.get`."""
    if not isinstance(include_expired, bool):
        raise TypeError(f"include_expired must be True or False, not {include_expired!r}; a get has no default value")
    return include_expired


def check_keys(keys: list[bytes]) -> tuple[bytes, bytes]:
    """Check many at once, in a third of the time; returns the first and the last of them. Keys that together are not
    too long for one key are not too long each."""
    if set(map(type, keys)) == {bytes}:
        first = min(keys)
        if first >= LOWEST_KEY and (len(b"".join(keys)) <= MAX_KEY_BYTES or max(map(len, keys)) <= MAX_KEY_BYTES):
            return first, max(keys)
    for key in keys:
        check_key(key)
    return min(keys), max(keys)


def check_value(value: bytes) -> bytes:
    if type(value) is not bytes:
        raise InvalidValue("value", value, f"must be bytes, not {type(value).__name__}")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidValue("value", value[:32] + b"...", f"must be at most {MAX_VALUE_BYTES} bytes")
    return value


def take_rows(rows: Iterable[Any]) -> list[Any]:
    """Rows as plain tuples: after this, nothing of the caller's runs when they are written."""
    taken = list(rows)
    return taken if set(map(type, taken)) <= {tuple} else [tuple(row) for row in taken]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRange:
    """`[start, end)`; None means open on that side."""

    start: bytes | None = None
    end: bytes | None = None

    @property
    def is_empty(self) -> bool:
        return self.start is not None and self.end is not None and self.start >= self.end


EVERYTHING = KeyRange()


def read_range(start: bytes | None, end: bytes | None, prefix: bytes | None) -> KeyRange:
    """The keys that lie in `[start, end)` and begin with `prefix`."""
    for name, bound in (("start", start), ("end", end), ("prefix", prefix)):
        if bound is not None and not isinstance(bound, bytes):
            raise InvalidValue(name, bound, f"must be bytes, not {type(bound).__name__}")
    if start is not None and end is not None and start > end:
        raise InvalidValue("start", start, f"must not lie after end = {end!r}")
    if prefix:
        after = _successor(prefix)
        start = prefix if start is None else max(start, prefix)
        end = after if end is None else end if after is None else min(end, after)
    return KeyRange(start=start, end=end)


def check_limit(limit: int | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidValue("limit", limit, "must be a whole number, 0 or more")


def _successor(prefix: bytes) -> bytes | None:
    """The first key after all keys that begin with `prefix`; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
