"""How keys look inside SlateDB.

Lapse's own keys begin with `RESERVED`. Without buckets a row's key is the user's; with buckets it begins with
a byte and the bucket's number, which SlateDB uses to keep each bucket in a segment of its own.
"""

from __future__ import annotations

from lapse.errors import InvalidValue
from lapse.kv.keys import KeyRange, check_key

RESERVED = b"\x00lapse/"
LAST_RESERVED = RESERVED + b"\xff" * 16
_AFTER_RESERVED = RESERVED[:-1] + bytes([RESERVED[-1] + 1])
BUCKET_MARK = b"\x01"
BUCKET_PREFIX_BYTES = 9
EXTRACTOR_NAME = "lapse-buckets"


def meta_key(name: bytes) -> bytes:
    return RESERVED + name


def check_user_key(key: bytes) -> bytes:
    check_key(key)
    if key.startswith(RESERVED):
        raise InvalidValue("key", key, f"must not begin with {RESERVED!r}, which Lapse keeps for itself")
    return key


def bucket_prefix(id: int) -> bytes:
    return BUCKET_MARK + id.to_bytes(BUCKET_PREFIX_BYTES - 1, "big")


def prefix_length(key: bytes) -> int | None:
    """Which part of a key names its segment; no segment's name begins with another's."""
    wanted = BUCKET_PREFIX_BYTES if key[:1] == BUCKET_MARK else len(RESERVED)
    return wanted if len(key) >= wanted else None


def without_reserved(keys: KeyRange) -> list[KeyRange]:
    """The range as up to two ranges around Lapse's own keys."""
    below = KeyRange(start=keys.start, end=RESERVED if keys.end is None else min(keys.end, RESERVED))
    start = _AFTER_RESERVED if keys.start is None else max(keys.start, _AFTER_RESERVED)
    above = KeyRange(start=start, end=keys.end)
    return [part for part in (below, above) if not part.is_empty]


def in_bucket(id: int, keys: KeyRange) -> KeyRange:
    prefix = bucket_prefix(id)
    end = bucket_prefix(id + 1) if keys.end is None else prefix + keys.end
    return KeyRange(start=prefix + (keys.start or b""), end=end)
