"""The header that Lapse writes before every value.

    | u8      | u8    | i64       | i64  | var   |
    |---------|-------|-----------|------|-------|
    | version | flags | expire_ts | ts   | value |

Big-endian, times in milliseconds since 1970. The flags are 0; bit 0 marks a tombstone, which only stores with time
buckets have, until they are converted. The expiry of a row that stays is `NEVER_MS`. In this order all stored rows that
are live at one time lie between two byte strings, so that a read decides with one comparison:
`live_from(now_ms) <= raw < LIVE_END`. (Version 1 had the times the other way round; it was never released.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from lapse.errors import CorruptRow, StoreTooNew

ROW_VERSION = 2

_HEADER = struct.Struct(">BBqq")
_START = struct.Struct(">BBq")
HEADER_BYTES = _HEADER.size
VALUE = slice(HEADER_BYTES, None)
"""Where the value is in a stored row."""

LIVE_END = bytes([ROW_VERSION, 0, 0x80])
"""Behind every live row: an expiry with the highest bit set would be before 1970."""

PLAIN = bytes([ROW_VERSION, 0])
"""What every row begins with."""

TOMBSTONE = bytes([ROW_VERSION, 1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A stored row. It is expired at every time `>= expires_ms`."""

    key: bytes
    value: bytes
    created_ms: int
    expires_ms: int


def live_from(now_ms: int) -> bytes:
    """Not behind any row that is live at this time. Bytes too few for a header may lie behind it as well."""
    return _START.pack(ROW_VERSION, 0, now_ms + 1)


def header(*, created_ms: int, expires_ms: int) -> bytes:
    return _HEADER.pack(ROW_VERSION, 0, expires_ms, created_ms)


def is_row(raw: bytes) -> bool:
    """Whether it can be read."""
    return PLAIN <= raw < LIVE_END and len(raw) >= HEADER_BYTES


def is_expired(raw: bytes, cutoff_ms: int) -> bool:
    return is_row(raw) and expires_ms_of(raw) <= cutoff_ms


def expires_ms_of(raw: bytes) -> int:
    """Of a row that is known to be one."""
    return int.from_bytes(raw[2:10], "big")


def unpack(key: bytes, raw: bytes) -> tuple[int, int]:
    """Creation and expiry of a stored row; anything that Lapse did not write is refused, not guessed at."""
    try:
        version, flags, expires_ms, created_ms = _HEADER.unpack_from(raw)
    except struct.error:
        raise CorruptRow(key, f"{len(raw)} bytes are too few for a header of {HEADER_BYTES}") from None
    if version > ROW_VERSION:
        raise StoreTooNew(
            f"row {key!r} has format {version}; this Lapse reads up to {ROW_VERSION}", hint="upgrade lapse-ttl"
        )
    if version != ROW_VERSION or flags:
        raise CorruptRow(key, f"format {version} with flags {flags:#04x} is unknown")
    if expires_ms < 0 or created_ms < 0:
        raise CorruptRow(key, "its times are before 1970")
    return created_ms, expires_ms
