"""Purge units: stretches of the key space, each with the earliest expiry inside.

A unit whose earliest expiry is still to come is not read. The bounds say where to look and nothing else: a row is
removed only after it was read and found expired.
"""

from __future__ import annotations

import base64
import json
import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lapse.errors import StoreError
from lapse.kv.ttl import NEVER_MS
from lapse.kv.written import Group, Written, packed, unpacked

UNIT_ROWS = 20_000
_NUMBERS = struct.Struct(">qqI")
_VERSION = b"\2"


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

    def widened(self, min_ms: int) -> Unit:
        return replace(self, min_ms=min(self.min_ms, min_ms), owed_ms=min(self.owed_ms, min_ms))


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
            self.all = [unit.widened(0) for unit in self.all]
            written.is_unknown = False
        for number, group in list(written.groups.items()):
            if group.keys is None or group.min_ms > keys_after_ms:
                self.owe(group, rows=True)
                del written.groups[number]

    def owe(self, group: Group, *, rows: bool) -> None:
        """Rows of this group were written: their bytes are somewhere, and with `rows` they themselves are, too."""
        for index in self._indexes(group):
            unit = self.all[index]
            if rows:
                self.all[index] = unit.widened(group.min_ms)
            elif group.min_ms < unit.owed_ms:
                self.all[index] = replace(unit, owed_ms=group.min_ms)

    def end(self, index: int) -> bytes | None:
        return self._starts[index + 1] if index + 1 < len(self._starts) else None

    def _indexes(self, group: Group) -> Iterable[int]:
        if group.keys is not None:
            return {bisect_right(self._starts, key) - 1 for key in group.keys}
        return range(bisect_right(self._starts, group.first) - 1, bisect_right(self._starts, group.last))


class UnitBuilder:
    """Cuts the rows that a purge leaves alive, in key order, into units. A unit begins with a row that lives: the key
    of one that is gone is not kept."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._start: bytes | None = None
        self._low_ms, self._rows = NEVER_MS, 0
        self.units: list[Unit] = []

    def add(self, key: bytes, low_ms: int, rows: int) -> None:
        """Rows from `key` on, the earliest of which expires at `low_ms`."""
        if self._rows >= UNIT_ROWS:
            self.cut()
        if self._start is None:
            self._start = key
        self._rows += rows
        self._low_ms = min(self._low_ms, low_ms)

    def cut(self) -> None:
        if self._start is not None:
            unit = Unit(start=self._start, min_ms=self._low_ms, owed_ms=self._unit.owed_ms, rows=self._rows)
            self.units.append(unit)
        self._start, self._low_ms, self._rows = None, NEVER_MS, 0

    def finish(self) -> list[Unit]:
        self.cut()
        return self.units or [replace(self._unit, start=b"", min_ms=NEVER_MS, rows=0)]


def join(units: Iterable[Unit]) -> list[Unit]:
    """One list without gaps: small neighbours become one, and what has no start of its own joins the unit before."""
    result: list[Unit] = []
    for unit in units:
        last = result[-1] if result else None
        if last is not None and (not unit.start or last.rows + unit.rows <= UNIT_ROWS):
            result[-1] = replace(
                last,
                min_ms=min(last.min_ms, unit.min_ms),
                owed_ms=min(last.owed_ms, unit.owed_ms),
                rows=last.rows + unit.rows,
            )
        else:
            result.append(unit)
    return [replace(result[0], start=b""), *result[1:]] if result else [EMPTY]


def pack_units(units: Iterable[Unit]) -> bytes:
    parts = [_VERSION]
    for unit in units:
        parts.extend(packed([unit.start]))
        parts.append(_NUMBERS.pack(unit.min_ms, unit.owed_ms, unit.rows))
    return b"".join(parts)


def read_units(raw: bytes | None) -> Units:
    if not raw:
        return Units([UNKNOWN])
    try:
        return Units(_read(raw) if raw[:1] == _VERSION else _read_first_version(raw))
    except (ValueError, TypeError, struct.error) as error:
        raise StoreError("the store's purge units cannot be read") from error


def _read(raw: bytes) -> list[Unit]:
    units, offset = list[Unit](), 1
    while offset < len(raw):
        (start,), offset = unpacked(raw, offset, 1)
        min_ms, owed_ms, rows = _NUMBERS.unpack_from(raw, offset)
        offset += _NUMBERS.size
        units.append(Unit(start=start, min_ms=min_ms, owed_ms=owed_ms, rows=rows))
    return units


def _read_first_version(raw: bytes) -> list[Unit]:
    """Whose rows' bytes are anywhere, as it did not note what it had removed from where."""
    return [
        Unit(start=base64.b64decode(start or ""), min_ms=low, owed_ms=0, rows=rows)
        for start, _, low, _, rows in json.loads(raw)
    ]
