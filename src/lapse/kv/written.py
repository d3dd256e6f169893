"""What was written since a purge last looked: which keys, and how soon the earliest of them expires.

A purge must find expired rows without reading the store. Rows are grouped by how far away their expiry is. A group
keeps its keys while they are few, so that one short-lived row among a million is found by its key; of a larger group
it keeps the first and the last key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from lapse.kv.ttl import NEVER_MS

KEPT_KEYS = 1_000
"""Of one group. A purge that has more of them to look up reads whole stretches of the store as fast."""

_STEP_BITS = 20
"""Groups double in width; the first is 2**20 ms, or 17 minutes."""
_NUMBERS = struct.Struct(">qI")


class Group:
    """Keys of rows that expire at `min_ms` or later. `keys` is None once they lie anywhere in `[first, last]`."""

    __slots__ = ("first", "keys", "last", "min_ms")

    def __init__(self, min_ms: int, keys: list[bytes] | None, first: bytes = b"", last: bytes = b"") -> None:
        self.min_ms = min_ms
        self.keys = keys
        self.first = first
        self.last = last

    def note(self, key: bytes) -> None:
        if self.keys is not None:
            self.keys.append(key)
        elif key < self.first:
            self.first = key
        elif key > self.last:
            self.last = key

    def note_many(self, keys: list[bytes], first: bytes, last: bytes) -> None:
        """All of them lie in `[first, last]`."""
        if self.keys is not None:
            self.keys.extend(keys)
            self.shrink()
        elif first < self.first or last > self.last:
            self.first, self.last = min(self.first, first), max(self.last, last)

    def note_range(self, first: bytes, last: bytes) -> None:
        keys = [first, last, *([self.first, self.last] if self.keys is None else self.keys)]
        self.first, self.last, self.keys = min(keys), max(keys), None

    def shrink(self) -> None:
        if self.keys is not None and len(self.keys) > KEPT_KEYS:
            self.keys = list(set(self.keys))
            if len(self.keys) > KEPT_KEYS:
                self.first, self.last, self.keys = min(self.keys), max(self.keys), None


class Written:
    """The caller holds the store's lock."""

    def __init__(self, *, base_ms: int = 0) -> None:
        self.base_ms = base_ms
        self.groups: dict[int, Group] = {}
        self.is_unknown = False
        """Rows may have been written that are in no group: the last process did not close the store."""

    def group(self, expires_ms: int) -> Group:
        """The group for rows with this expiry; it counts them as written."""
        number = -1 if expires_ms == NEVER_MS else max(0, (expires_ms - self.base_ms) >> _STEP_BITS).bit_length()
        group = self.groups.get(number)
        if group is None:
            group = self.groups[number] = Group(expires_ms, [])
        elif expires_ms < group.min_ms:
            group.min_ms = expires_ms
        group.shrink()
        return group

    def note(self, key: bytes, expires_ms: int) -> None:
        self.group(expires_ms).note(key)

    def due(self, now_ms: int) -> list[Group]:
        """Those with keys of which one may have expired."""
        return [group for group in self if group.keys is not None and group.min_ms <= now_ms]

    def shrink(self) -> None:
        for group in self.groups.values():
            group.shrink()

    def absorb(self, other: Written) -> None:
        """Take back what a purge that failed had taken."""
        self.is_unknown = self.is_unknown or other.is_unknown
        for group in other:
            mine = self.group(group.min_ms)
            if group.keys is not None:
                mine.note_many(group.keys, min(group.keys), max(group.keys))
            else:
                mine.note_range(group.first, group.last)

    def __iter__(self) -> Iterator[Group]:
        return iter([group for group in self.groups.values() if group.keys is None or group.keys])

    def to_bytes(self) -> bytes:
        """Empty where not all is known: the next process does not know it, either."""
        if self.is_unknown:
            return b""
        parts = []
        for group in self:
            keys = [group.first, group.last] if group.keys is None else group.keys
            parts.append(_NUMBERS.pack(group.min_ms, 0 if group.keys is None else len(keys)))
            parts.extend(packed(keys))
        return b"\1" + b"".join(parts)


def read_written(raw: bytes | None, *, base_ms: int) -> Written:
    """`raw` is None where the last process did not close the store. Other versions wrote JSON, with no keys."""
    written = Written(base_ms=base_ms)
    if not raw or raw[:1] != b"\1":
        written.is_unknown = True
        return written
    offset = 1
    while offset < len(raw):
        min_ms, count = _NUMBERS.unpack_from(raw, offset)
        keys, offset = unpacked(raw, offset + _NUMBERS.size, count or 2)
        group = Group(min_ms, keys) if count else Group(min_ms, None, keys[0], keys[1])
        written.groups[len(written.groups) + 1_000] = group  # numbers that no other group has
    return written


def packed(keys: Iterable[bytes]) -> Iterator[bytes]:
    for key in keys:
        yield len(key).to_bytes(2, "big")
        yield key


def unpacked(raw: bytes, offset: int, count: int) -> tuple[list[bytes], int]:
    keys = []
    for _ in range(count):
        start = offset + 2
        offset = start + int.from_bytes(raw[offset:start], "big")
        keys.append(raw[start:offset])
    return keys, offset
