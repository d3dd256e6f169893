from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.errors import CorruptRow, StoreTooNew
from lapse.kv import row
from lapse.kv.ttl import MAX_EXPIRY_MS, NEVER_MS

TOMBSTONE = b"\x02\x01" + (b"\0" * 7 + b"\x05") * 2
"""As stores with time buckets had them."""
TIMES = st.integers(min_value=0, max_value=MAX_EXPIRY_MS)


@given(value=st.binary(max_size=50), created=TIMES, expires=TIMES | st.just(NEVER_MS))
def test_what_is_written_is_read(value: bytes, created: int, expires: int) -> None:
    raw = row.header(created_ms=created, expires_ms=expires) + value
    assert row.unpack(b"k", raw) == (created, expires)
    assert raw[row.VALUE] == value


@given(value=st.binary(max_size=50), created=TIMES, expires=TIMES | st.just(NEVER_MS), now=TIMES)
def test_one_comparison_tells_a_live_row(value: bytes, created: int, expires: int, now: int) -> None:
    for at in (now, max(0, min(expires, MAX_EXPIRY_MS) - 1), min(expires, MAX_EXPIRY_MS)):
        raw = row.header(created_ms=created, expires_ms=expires) + value
        assert (row.live_from(at) <= raw < row.LIVE_END) == (expires > at)
        assert not row.live_from(at) <= TOMBSTONE < row.LIVE_END


def test_the_layout_is_fixed() -> None:
    """A change here is a change of the format: it needs a new version."""
    assert row.header(created_ms=1, expires_ms=2) == b"\x02\x00" + b"\0" * 7 + b"\x02" + b"\0" * 7 + b"\x01"
    assert row.header(created_ms=1, expires_ms=NEVER_MS)[:10] == b"\x02\x00\x7f" + b"\xff" * 7
    assert row.HEADER_BYTES == 18


def test_a_tombstone_is_no_row() -> None:
    assert TOMBSTONE.startswith(row.TOMBSTONE) and not row.is_row(TOMBSTONE)
    with pytest.raises(CorruptRow, match="flags 0x01"):
        row.unpack(b"k", TOMBSTONE)


@given(st.binary(max_size=17))
def test_a_truncated_header_is_an_error(raw: bytes) -> None:
    with pytest.raises(CorruptRow, match="too few"):
        row.unpack(b"k", raw)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"\x03" + b"\0" * 17, StoreTooNew),
        (b"\x00" + b"\0" * 17, CorruptRow),
        (b"\x01" + b"\0" * 17, CorruptRow),
        (b"\x02\x80" + b"\0" * 16, CorruptRow),
        (b"\x02\x00\x80" + b"\0" * 15, CorruptRow),
        (b"\x02\x00" + b"\0" * 8 + b"\x80" + b"\0" * 7, CorruptRow),
    ],
)
def test_other_bytes_are_never_guessed_at(raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        row.unpack(b"k", raw)
