"""The header that Lapse writes before every value.

    | u8      | u8    | i64  | i64       | var   |
    |---------|-------|------|-----------|-------|
    | version | flags | ts   | expire_ts | value |

Big-endian, times in milliseconds since 1970. Bit 0 of the flags marks a tombstone, bit 1 a row that expires;
the other bits are reserved. A row without bit 1 has `NEVER_MS` as its expiry, so that one comparison decides
every read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from lapse.errors import CorruptRow, StoreFromTheFuture
from lapse.kv.ttl import NEVER_MS

ROW_VERSION = 1
TOMBSTONE = 0b01
EXPIRES = 0b10
_KNOWN_FLAGS = TOMBSTONE | EXPIRES

_HEADER = struct.Struct(">BBqq")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A stored row. It is expired at every time `>= expires_ms`."""

    key: bytes
    value: bytes
    created_ms: int
    expires_ms: int

    @property
    def never_expires(self) -> bool:
        return self.expires_ms == NEVER_MS


LIVE_MARKS = frozenset({bytes([ROW_VERSION, 0]), bytes([ROW_VERSION, EXPIRES])})
"""How a row that is no tombstone begins."""

peek = struct.Struct(">2s8xq").unpack_from
"""The first two bytes and the expiry of a stored row: all that most reads need to know."""


def header(*, created_ms: int, expires_ms: int) -> bytes:
    return _HEADER.pack(ROW_VERSION, 0 if expires_ms == NEVER_MS else EXPIRES, created_ms, expires_ms)


def tombstone(*, created_ms: int) -> bytes:
    """A row that says "nothing here", for places where a plain delete would uncover an older version."""
    return _HEADER.pack(ROW_VERSION, TOMBSTONE, created_ms, created_ms)


def unpack(key: bytes, raw: bytes) -> tuple[int, int, int]:
    """Flags, creation and expiry of a stored row; anything that Lapse did not write is refused, not guessed
    at."""
    try:
        version, flags, created_ms, expires_ms = _HEADER.unpack_from(raw)
    except struct.error:
        raise CorruptRow(key, f"{len(raw)} bytes are too few for a header of {HEADER_BYTES}") from None
    if version != ROW_VERSION or flags & ~_KNOWN_FLAGS:
        raise _unknown(key, version, flags)
    if (expires_ms == NEVER_MS) == bool(flags):
        raise CorruptRow(key, "its flags and its expiry contradict each other")
    return flags, created_ms, expires_ms


def decode(key: bytes, raw: bytes) -> Row | None:
    """None for a tombstone."""
    flags, created_ms, expires_ms = unpack(key, raw)
    if flags & TOMBSTONE:
        return None
    return Row(key=key, value=raw[HEADER_BYTES:], created_ms=created_ms, expires_ms=expires_ms)


def _unknown(key: bytes, version: int, flags: int) -> CorruptRow | StoreFromTheFuture:
    if version > ROW_VERSION:
        return StoreFromTheFuture(
            f"row {key!r} has format {version}; this Lapse reads up to {ROW_VERSION}",
            hint="upgrade lapse-ttl",
        )
    return CorruptRow(key, f"format {version} with flags {flags:#04x} is unknown")
