"""Durations in every dialect, their arithmetic and their refusals."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.errors import InvalidValue
from lapse.model import interval
from lapse.model.interval import DAY, HOUR, MINUTE, SECOND, Interval

intervals = st.builds(Interval, months=st.integers(0, 1200), micros=st.integers(0, 400 * DAY))
moments = st.integers(0, 7_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@pytest.mark.parametrize(
    ("text", "months", "micros"),
    [
        ("30 days", 0, 30 * DAY),
        ("1h30m", 0, 90 * MINUTE),
        ("90 minutes", 0, 90 * MINUTE),
        ("P3M", 3, 0),
        ("P1Y2M3DT4H5M6.5S", 14, 3 * DAY + 4 * HOUR + 5 * MINUTE + 6 * SECOND + 500_000),
        ("PT0.5S", 0, 500_000),
        ("INTERVAL 3 MONTH", 3, 0),
        ("INTERVAL '1:30' HOUR_MINUTE", 0, 90 * MINUTE),
        ("INTERVAL '5' DAY_SECOND", 0, 5 * SECOND),
        ("INTERVAL '1 1:1:1' DAY_SECOND", 0, DAY + HOUR + MINUTE + SECOND),
        ("INTERVAL '2-6' YEAR_MONTH", 30, 0),
        ("INTERVAL 1 QUARTER", 3, 0),
        ("INTERVAL '5 minutes'", 0, 5 * MINUTE),
        ("'5 minutes'::interval", 0, 5 * MINUTE),
        ("00:05:00", 0, 5 * MINUTE),
        ("3 mons 2 days 01:30:00", 3, 2 * DAY + 90 * MINUTE),
        ("1 year, 2 weeks", 12, 14 * DAY),
        ("0.5 days", 0, 12 * HOUR),
        ("1.5 years", 18, 0),
        ("250ms", 0, 250_000),
        ("7 us", 0, 7),
        ("0 seconds", 0, 0),
        ("P0D", 0, 0),
        ("INTERVAL 0 DAY", 0, 0),
    ],
)
def test_every_spelling(text: str, months: int, micros: int) -> None:
    assert interval.parse(text) == Interval(months=months, micros=micros)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("10", "unit"),
        ("-5 days", "negative"),
        ("1 day -3 days", "negative"),
        ("1 fortnight", "duration"),
        ("", "duration"),
        ("P", "duration"),
        ("PT", "duration"),
        ("0.5 months", "fraction"),
        ("5000 years", "1000 years"),
        ("INTERVAL 3 MINUTES_PAST", "unknown unit"),
        ("INTERVAL '1:2:3' HOUR_MINUTE", "at most 2"),
        ("1 day; DROP TABLE t", "duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_parameters_name(text: str, word: str) -> None:
    with pytest.raises(InvalidValue, match="ttl_expire_after") as caught:
        interval.parse(text, name="ttl_expire_after")
    assert word in str(caught.value)


@given(intervals)
def test_words_are_read_back(value: Interval) -> None:
    assert interval.parse(value.to_words()) == value


@given(intervals.filter(lambda value: not (value.months and value.micros)))
def test_mysql_is_read_back(value: Interval) -> None:
    assert interval.parse(value.to_mysql()) == value


@given(intervals, moments)
def test_a_row_is_never_expired_early(value: Interval, moment: datetime) -> None:
    """What the job compares with, `cutoff - interval`, never lets a row go before `column + interval` has come."""
    threshold = value.subtracted_from(moment)
    assert value.added_to(threshold) <= moment


def test_the_end_of_a_month_is_clamped() -> None:
    month = Interval(months=1)
    assert month.added_to(datetime(2026, 1, 31, tzinfo=UTC)) == datetime(2026, 2, 28, tzinfo=UTC)
    assert month.subtracted_from(datetime(2028, 3, 31, tzinfo=UTC)) == datetime(2028, 2, 29, tzinfo=UTC)


def test_what_a_dialect_cannot_say_is_refused() -> None:
    mixed = Interval(months=1, micros=DAY)
    for write in (mixed.to_mysql, mixed.to_seconds, mixed.to_go, Interval(micros=1).to_seconds):
        with pytest.raises(InvalidValue):
            write()
    assert Interval(micros=26 * HOUR + 30 * MINUTE).to_go() == "1d2h30m"
    assert Interval(micros=HOUR).to_seconds() == 3600


@pytest.mark.parametrize("quantity", ["NaN", "Infinity", "sNaN", "1e9", "1_0", "1e999999999", "0x10", "", "٣"])
@pytest.mark.parametrize("unit", ["DAY", "MONTH", "SECOND"])
def test_a_quantity_that_is_no_plain_number_is_refused(quantity: str, unit: str) -> None:
    with pytest.raises(InvalidValue):
        interval.from_unit(quantity, unit)
    with pytest.raises(InvalidValue):
        interval.parse(f"INTERVAL '{quantity}' {unit}")


@pytest.mark.parametrize("unit", ["DAY", "HOUR", "WEEK", "MINUTE", "MICROSECOND", "MONTH"])
def test_a_fraction_that_servers_round_is_refused(unit: str) -> None:
    """MySQL reads INTERVAL 1.5 DAY as two days, PostgreSQL INTERVAL '1.5' DAY as one."""
    with pytest.raises(InvalidValue, match="whole number"):
        interval.parse(f"INTERVAL 1.5 {unit}")
    assert interval.parse("INTERVAL 1.5 SECOND") == Interval(micros=1_500_000)
    assert interval.parse("INTERVAL 2.0 DAY") == Interval(micros=2 * DAY)


def test_less_than_a_microsecond_is_rounded_up() -> None:
    assert interval.parse("0.0000001 seconds") == Interval(micros=1)
