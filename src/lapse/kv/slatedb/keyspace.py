"""How keys look inside SlateDB: Lapse's own begin with `RESERVED`, a row's key is the user's.

In a store that once had time buckets every row's key begins with `SEGMENT`, because its database is cut into segments
for good; and while it has them, with a byte and the bucket's number.
"""

from __future__ import annotations

from lapse.kv.keys import RESERVED, KeyRange

LAST_RESERVED = RESERVED + b"\xff" * 16
_AFTER_RESERVED = RESERVED[:-1] + bytes([RESERVED[-1] + 1])
BUCKET_MARK = b"\x01"
BUCKET_PREFIX_BYTES = 9
EXTRACTOR_NAME = "lapse-buckets"


def meta_key(name: bytes) -> bytes:
    return RESERVED + name


def bucket_prefix(id: int) -> bytes:
    return BUCKET_MARK + id.to_bytes(BUCKET_PREFIX_BYTES - 1, "big")


SEGMENT = bucket_prefix(0)


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


def within(prefix: bytes, keys: KeyRange) -> KeyRange:
    """The range as it lies behind a prefix, if there is one."""
    if not prefix:
        return keys
    end = prefix[:-1] + bytes([prefix[-1] + 1]) if keys.end is None else prefix + keys.end
    return KeyRange(start=prefix + (keys.start or b""), end=end)
