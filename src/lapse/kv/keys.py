"""What may be a key or a value, and the range of keys a scan covers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from lapse.errors import InvalidValue
from lapse.kv.ttl import PLAIN_TTLS, Ttl, TtlLike, plain_ttl

MAX_KEY_BYTES = 65_535
"""SlateDB's and the RFC's limit (the key's length is a u16); the same on every engine."""

MAX_VALUE_BYTES = 2**32 - 1 - 64
"""Lengths are u32 in both engines; 64 bytes are left for the header."""

LOWEST_KEY = b"\x01"
"""From here on no key is empty or may be one of Lapse's own; one below it is looked at more closely."""

RESERVED = b"\x00lapse/"
"""Lapse's own keys on SlateDB begin with this; refused on every engine."""

_KEY = itemgetter(0)


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


def check_value(value: bytes) -> bytes:
    if type(value) is not bytes:
        raise InvalidValue("value", value, f"must be bytes, not {type(value).__name__}")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidValue("value", value[:32] + b"...", f"must be at most {MAX_VALUE_BYTES} bytes")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRows:
    """Rows to be written, by their keys: of those with one key the last comes last. `ttls` is None where they have none
    of their own. Everything is checked, and of a type of Python's: to write them runs nothing of the caller's."""

    keys: list[bytes]
    values: list[bytes]
    ttls: list[TtlLike] | None = None


NO_ROWS = CheckedRows(keys=[], values=[])


def take_rows(rows: Iterable[Any], ttl: TtlLike = Ttl.DEFAULT) -> CheckedRows:
    """A row is `(key, value)` or `(key, value, ttl)`. Sorting them costs less than it saves the engine, which finds the
    place of a key next to that of the last one. What is done for each row is a step of C, not of Python."""
    taken = list(rows)
    if not taken:
        return NO_ROWS
    ttls: list[TtlLike] | None = None
    try:
        taken.sort(key=_KEY)
        if len(taken[0]) == 2:
            keys, values = [key for key, _ in taken], [value for _, value in taken]
        else:
            keys, values = [key for key, _, _ in taken], [value for _, value, _ in taken]
            ttls = [own for _, _, own in taken]
    except (TypeError, ValueError, LookupError):  # rows of two and of three, of other types, or with a wrong key
        taken = [_whole(tuple(row), ttl) for row in taken]
        taken.sort(key=_KEY)
        keys, values, ttls = map(list, zip(*taken, strict=True))
    is_short = len(b"".join(keys)) <= MAX_KEY_BYTES or max(map(len, keys)) <= MAX_KEY_BYTES  # all together, or each
    if set(map(type, keys)) != {bytes} or keys[0] < LOWEST_KEY or not is_short:
        for key in keys:
            check_key(key)
    if set(map(type, values)) != {bytes}:
        for value in values:
            check_value(value)
    if ttls is not None and not set(map(type, ttls)) <= PLAIN_TTLS:
        ttls = [plain_ttl(own) for own in ttls]
    return CheckedRows(keys=keys, values=values, ttls=ttls)


def _whole(row: tuple[Any, ...], ttl: TtlLike) -> tuple[bytes, Any, Any]:
    if len(row) not in (2, 3):
        raise InvalidValue("rows", row, "must have a key and a value")
    return check_key(row[0]), row[1], row[2] if len(row) == 3 else ttl


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
        after = successor(prefix)
        start = prefix if start is None else max(start, prefix)
        end = after if end is None else end if after is None else min(end, after)
    return KeyRange(start=start, end=end)


def check_limit(limit: int | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidValue("limit", limit, "must be a whole number, 0 or more")


def successor(prefix: bytes) -> bytes | None:
    """The first key after all keys that begin with `prefix`; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
