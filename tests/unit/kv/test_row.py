from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.errors import CorruptRow, StoreFromTheFuture
from lapse.kv import row
from lapse.kv.ttl import MAX_EXPIRY_MS, NEVER_MS

TIMES = st.integers(min_value=0, max_value=MAX_EXPIRY_MS)


@given(value=st.binary(max_size=50), created=TIMES, expires=TIMES | st.just(NEVER_MS))
def test_what_is_written_is_read(value: bytes, created: int, expires: int) -> None:
    raw = row.header(created_ms=created, expires_ms=expires) + value
    assert row.decode(b"k", raw) == row.Row(key=b"k", value=value, created_ms=created, expires_ms=expires)
    mark, peeked = row.peek(raw)
    assert mark in row.LIVE_MARKS
    assert peeked == expires


def test_the_layout_is_fixed() -> None:
    """A change here is a change of the format: it needs a new version."""
    assert row.header(created_ms=1, expires_ms=2) == b"\x01\x02" + b"\0" * 7 + b"\x01" + b"\0" * 7 + b"\x02"
    assert row.header(created_ms=1, expires_ms=NEVER_MS)[:2] == b"\x01\x00"
    assert row.tombstone(created_ms=5)[:2] == b"\x01\x01"
    assert row.HEADER_BYTES == 18


def test_a_tombstone_is_no_row() -> None:
    raw = row.tombstone(created_ms=5)
    assert row.decode(b"k", raw) is None
    assert row.peek(raw)[0] not in row.LIVE_MARKS


@given(st.binary(max_size=17))
def test_a_truncated_header_is_an_error(raw: bytes) -> None:
    with pytest.raises(CorruptRow, match="too few"):
        row.unpack(b"k", raw)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"\x02" + b"\0" * 17, StoreFromTheFuture),
        (b"\x00" + b"\0" * 17, CorruptRow),
        (b"\x01\x80" + b"\0" * 16, CorruptRow),
        (b"\x01\x00" + b"\0" * 16, CorruptRow),
        (b"\x01\x02" + b"\0" * 8 + b"\x7f" + b"\xff" * 7, CorruptRow),
    ],
)
def test_other_bytes_are_never_guessed_at(raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        row.unpack(b"k", raw)
