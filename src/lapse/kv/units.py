"""Purge units: stretches of the key space with the earliest and the latest expiry inside.

A unit whose earliest expiry is still to come is skipped without being read; one whose rows are all expired is
dropped whole. The bounds are taken when a purge reads the unit; rows written later are known only as a whole
(`Written`), so they widen the bounds of every unit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lapse.errors import StoreError
from lapse.kv.state import Written
from lapse.kv.ttl import NEVER_MS

UNIT_ROWS = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """The keys of `[start, end)`; `end` is None in the last unit. `rows` were live when it was read."""

    start: bytes
    end: bytes | None
    min_ms: int
    max_ms: int
    rows: int

    def widened(self, written: Written) -> Unit:
        if not written.rows:
            return self
        return replace(self, min_ms=min(self.min_ms, written.min_ms), max_ms=max(self.max_ms, written.max_ms))


UNKNOWN = Unit(start=b"", end=None, min_ms=0, max_ms=NEVER_MS, rows=0)
"""The whole key space, with nothing known about it."""

EMPTY = replace(UNKNOWN, min_ms=NEVER_MS, max_ms=0)
"""The whole key space of a new store."""


class UnitBuilder:
    """Cuts the rows that a purge leaves alive, in key order, into units."""

    def __init__(self, start: bytes, end: bytes | None) -> None:
        self._start, self._end = start, end
        self._min_ms, self._max_ms, self._rows = NEVER_MS, 0, 0
        self._units: list[Unit] = []

    def add(self, key: bytes, expires_ms: int) -> None:
        if self._rows >= UNIT_ROWS:
            self._cut(key)
        self._rows += 1
        self._min_ms = min(self._min_ms, expires_ms)
        self._max_ms = max(self._max_ms, expires_ms)

    def finish(self) -> list[Unit]:
        self._cut(self._end)
        return self._units

    def stop_at(self, key: bytes, rest: Unit) -> list[Unit]:
        """The purge ends before `key`: what is behind keeps the bounds it had."""
        self._cut(key)
        return [*self._units, replace(rest, start=key)]

    def _cut(self, end: bytes | None) -> None:
        self._units.append(Unit(start=self._start, end=end, min_ms=self._min_ms, max_ms=self._max_ms, rows=self._rows))
        self._start = end or b""
        self._min_ms, self._max_ms, self._rows = NEVER_MS, 0, 0


def coalesce(units: Iterable[Unit]) -> list[Unit]:
    """Join neighbours that a purge has made small, so that the list stays in proportion to the rows."""
    result: list[Unit] = []
    for unit in units:
        last = result[-1] if result else None
        if last is not None and last.rows + unit.rows <= UNIT_ROWS:
            result[-1] = Unit(
                start=last.start,
                end=unit.end,
                min_ms=min(last.min_ms, unit.min_ms),
                max_ms=max(last.max_ms, unit.max_ms),
                rows=last.rows + unit.rows,
            )
        else:
            result.append(unit)
    return result


def pack_units(units: Iterable[Unit]) -> bytes:
    return json.dumps([[_text(u.start), _text(u.end), u.min_ms, u.max_ms, u.rows] for u in units]).encode()


def read_units(raw: bytes | None) -> list[Unit]:
    if not raw:
        return [UNKNOWN]
    try:
        return [
            Unit(start=_bytes(start) or b"", end=_bytes(end), min_ms=low, max_ms=high, rows=rows)
            for start, end, low, high, rows in json.loads(raw)
        ]
    except (ValueError, TypeError) as error:
        raise StoreError("the store's purge units cannot be read") from error


def _text(key: bytes | None) -> str | None:
    return None if key is None else base64.b64encode(key).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
