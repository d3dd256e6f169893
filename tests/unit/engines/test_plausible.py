"""Which text is a time: the pattern knows the calendar, so that no server has to refuse what it let through."""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.engines.plausible import BANDS, ISO_OFFSET, ISO_TIME, NO_YEAR


@given(st.integers(1, 9999), st.integers(0, 19), st.integers(0, 39))
def test_a_date_is_one_of_the_calendar(year: int, month: int, day: int) -> None:
    text = f"{year:04}-{month:02}-{day:02}"
    try:
        date(year, month, day)
    except ValueError:
        assert not re.search(ISO_TIME, text)
    else:
        assert re.search(ISO_TIME, text)


@pytest.mark.parametrize("text", ["00:00", "23:59", "12:30:59", "12:30:59.1", "12:30:59.123456789"])
@pytest.mark.parametrize("offset", ["", "Z", "z", "+00", "-05:30", "+1400", "-0800"])
@pytest.mark.parametrize("between", ["T", " "])
def test_times_with_and_without_offset(text: str, offset: str, between: str) -> None:
    whole = f"2024-02-29{between}{text}{offset}"
    assert re.search(ISO_TIME, whole)
    assert bool(re.search(ISO_OFFSET, whole)) == bool(offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1812251200",
        "1.2.3",
        "10/11/12",
        "2024-1-1",
        " 2024-01-01",
        "2024-01-01 ",
        "2024-01-01 24:00",
        "2024-01-01 12:60",
        "2024-01-01 10",
        "2024-01-01+02:00",
        "2024-01-01 10:00+15:00",
        "2024-01-01 10:00 PST",
        "2024-W05-1",
        "20240101T000000Z",
        "12024-01-01",
        "infinity",
        "now",
    ],
)
def test_what_is_no_time(text: str) -> None:
    assert not re.search(ISO_TIME, text)


def test_never_in_text() -> None:
    assert all(re.search(NO_YEAR, text) for text in ("0000-01-01", "0001-01-01T00:00:00Z", "9999-12-31"))
    assert not any(re.search(NO_YEAR, text) for text in ("1000-01-01", "2024-01-01", "9998-12-31"))


def test_a_number_tells_its_own_unit() -> None:
    bands = sorted(BANDS.values())
    assert all(low < high for low, high in bands)
    assert all(high < low for (_, high), (low, _) in pairwise(bands))
