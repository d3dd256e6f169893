"""Where expired rows can be: a purge must find them without reading the store.

What was written since a purge last looked is `Written`: groups of rows by how far away their expiry is. A group keeps
its keys while they are few, so that one short-lived row among a million is found by its key; of a larger group it keeps
the first and the last key.

What a purge has read is cut into units: stretches of the key space, each with the earliest expiry inside. A unit whose
earliest expiry is still to come is not read. Both say where to look and nothing else: a row is removed only after it
was read and found expired.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lapse.errors import StoreError
from lapse.kv.ttl import NEVER_MS

KEPT_KEYS = 1_000
"""Of one group. A purge that has more of them to look up reads whole stretches of the store as fast."""
UNIT_ROWS = 20_000
_STEP_BITS = 20
"""Groups double in width; the first is 2**20 ms, or 17 minutes."""
_GROUP = struct.Struct(">qI")
_UNIT = struct.Struct(">qqI")
_UNITS_VERSION = b"\2"
_WRITTEN_VERSION = b"\1"


@dataclass(slots=True, eq=False)
class Group:
    """Keys of rows that expire at `min_ms` or later. `keys` is None once they lie anywhere in `[first, last]`."""

    min_ms: int
    keys: list[bytes] | None
    first: bytes = b""
    last: bytes = b""

    def note(self, key: bytes) -> None:
        if self.keys is not None:
            self.keys.append(key)
        elif key < self.first:
            self.first = key
        elif key > self.last:
            self.last = key

    def note_many(self, keys: Sequence[bytes]) -> None:
        """In their order."""
        if self.keys is not None:
            self.keys.extend(keys)
            self.shrink()
        else:
            self.first, self.last = min(self.first, keys[0]), max(self.last, keys[-1])

    def shrink(self, most: int = KEPT_KEYS) -> None:
        if self.keys is not None and len(self.keys) > most:
            self.keys = list(set(self.keys))
            if len(self.keys) > most:
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
        if group.keys is not None and len(group.keys) > KEPT_KEYS:
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
        """Add what a failed purge had taken."""
        self.is_unknown = self.is_unknown or other.is_unknown
        for group in other:
            mine = self.group(group.min_ms)
            if group.keys is not None:
                mine.note_many(sorted(group.keys))
            else:
                mine.note_many([group.first, group.last])
                mine.shrink(most=0)

    def __iter__(self) -> Iterator[Group]:
        return iter([group for group in self.groups.values() if group.keys is None or group.keys])

    def to_bytes(self) -> bytes:
        """Empty where not all is known: the next process does not know it, either."""
        if self.is_unknown:
            return b""
        parts = [_WRITTEN_VERSION]
        for group in self:
            keys = [group.first, group.last] if group.keys is None else group.keys
            parts.append(_GROUP.pack(group.min_ms, 0 if group.keys is None else len(keys)))
            parts.extend(map(_packed, keys))
        return b"".join(parts)


def read_written(raw: bytes | None, *, base_ms: int) -> Written:
    """`raw` is None where the last process did not close the store. Other versions wrote JSON, with no keys."""
    written = Written(base_ms=base_ms)
    if not raw or raw[:1] != _WRITTEN_VERSION:
        written.is_unknown = True
        return written
    offset = 1
    while offset < len(raw):
        min_ms, count = _GROUP.unpack_from(raw, offset)
        keys, offset = _unpacked(raw, offset + _GROUP.size, count or 2)
        group = Group(min_ms, keys) if count else Group(min_ms, None, keys[0], keys[1])
        written.groups[len(written.groups) + 1_000] = group  # numbers that no other group has
    return written


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """The keys from `start` up to the start of the next unit.

    `min_ms` is the earliest expiry of its rows, `owed_ms` that of all rows ever written into it since its files were
    last rewritten: their bytes may still be there. `rows` were live when it was read.
    """

    start: bytes
    min_ms: int
    owed_ms: int
    rows: int = 0


UNKNOWN = Unit(start=b"", min_ms=0, owed_ms=0)
"""The whole key space, with nothing known about it."""

EMPTY = Unit(start=b"", min_ms=NEVER_MS, owed_ms=NEVER_MS)
"""The whole key space of a new store."""


class Units:
    def __init__(self, units: list[Unit]) -> None:
        self.all = units
        self._starts = [unit.start for unit in units]

    def fold(self, written: Written, *, keys_after_ms: int = NEVER_MS) -> None:
        """Take in the groups that are ranges, and those with keys that expire after `keys_after_ms`; they are gone from
        `written` then."""
        if written.is_unknown:
            self.all = [replace(unit, min_ms=0, owed_ms=0) for unit in self.all]
            written.is_unknown = False
        for number, group in list(written.groups.items()):
            if group.keys is None or group.min_ms > keys_after_ms:
                self.owe(group, rows=True)
                del written.groups[number]

    def owe(self, group: Group, *, rows: bool) -> None:
        """Rows of this group were written: their bytes are somewhere, and with `rows` they themselves are, too."""
        if group.keys is not None:
            indexes: Iterable[int] = {bisect_right(self._starts, key) - 1 for key in group.keys}
        else:
            indexes = range(bisect_right(self._starts, group.first) - 1, bisect_right(self._starts, group.last))
        for index in indexes:
            unit = self.all[index]
            min_ms = min(unit.min_ms, group.min_ms) if rows else unit.min_ms
            self.all[index] = replace(unit, min_ms=min_ms, owed_ms=min(unit.owed_ms, group.min_ms))

    def end(self, index: int) -> bytes | None:
        return self._starts[index + 1] if index + 1 < len(self._starts) else None


def join(units: Iterable[Unit]) -> list[Unit]:
    """One list without gaps: small neighbours become one, and what has no start of its own joins the unit before."""
    result: list[Unit] = []
    for unit in units:
        last = result[-1] if result else None
        if last is not None and (not unit.start or last.rows + unit.rows <= UNIT_ROWS):
            owed_ms = min(last.owed_ms, unit.owed_ms)
            result[-1] = replace(
                last, min_ms=min(last.min_ms, unit.min_ms), owed_ms=owed_ms, rows=last.rows + unit.rows
            )
        else:
            result.append(unit)
    return [replace(result[0], start=b""), *result[1:]] if result else [EMPTY]


def pack_units(units: Iterable[Unit]) -> bytes:
    packed = (_packed(unit.start) + _UNIT.pack(unit.min_ms, unit.owed_ms, unit.rows) for unit in units)
    return _UNITS_VERSION + b"".join(packed)


def read_units(raw: bytes | None) -> Units:
    """Those of the first version did not say from where rows had been removed: nothing is known then."""
    if not raw or raw[:1] != _UNITS_VERSION:
        return Units([UNKNOWN])
    units, offset = list[Unit](), 1
    try:
        while offset < len(raw):
            (start,), offset = _unpacked(raw, offset, 1)
            min_ms, owed_ms, rows = _UNIT.unpack_from(raw, offset)
            offset += _UNIT.size
            units.append(Unit(start=start, min_ms=min_ms, owed_ms=owed_ms, rows=rows))
    except (ValueError, struct.error) as error:
        raise StoreError("the store's purge units cannot be read") from error
    return Units(units)


def _packed(key: bytes) -> bytes:
    return len(key).to_bytes(2, "big") + key


def _unpacked(raw: bytes, offset: int, count: int) -> tuple[list[bytes], int]:
    keys = []
    for _ in range(count):
        start = offset + 2
        offset = start + int.from_bytes(raw[offset:start], "big")
        keys.append(raw[start:offset])
    return keys, offset
