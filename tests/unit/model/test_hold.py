"""Holds as values, and the text in which a policy keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.errors import InvalidValue
from lapse.model.hold import HeldTerm, Hold, read_instant, read_terms, write_terms
from lapse.model.table import TableName

WHEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
terms = st.builds(
    HeldTerm,
    id=st.integers(1, 2**62),
    where=st.none() | st.text(),
    until=st.none() | st.datetimes(timezones=zones),
)


@given(st.lists(terms, max_size=5))
def test_terms_come_back_as_they_were(held: list[HeldTerm]) -> None:
    assert read_terms(write_terms(held)) == tuple(held)


def test_no_hold_is_no_text() -> None:
    assert write_terms([]) is None
    assert read_terms(None) == ()


def test_what_a_hold_says() -> None:
    some = Hold(id=3, table=TableName("orders"), where="tenant = 7", until=WHEN, placed_at=WHEN)
    assert some.term == HeldTerm(id=3, where="tenant = 7", until=WHEN)
    assert some.rows == "rows with tenant = 7"
    assert Hold(id=4, table=TableName("orders"), placed_at=WHEN).rows == "all rows"


@pytest.mark.parametrize("text", ["2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "2026-03-01 12:00+00:00"])
def test_instants_as_people_write_them(text: str) -> None:
    assert read_instant(text, "until") == WHEN


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tomorrow", "ISO 8601"),
        ("", "ISO 8601"),
        ("2026-02-30T00:00:00Z", "ISO 8601"),
        ("2026-03-01T12:00:00", "no zone"),
        ("2026-03-01", "no zone"),
    ],
)
def test_an_instant_that_is_none(text: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as raised:
        read_instant(text, "until")
    assert "until" in str(raised.value)
    if words == "no zone":
        assert raised.value.hint is not None and raised.value.hint.endswith("Z for UTC")
