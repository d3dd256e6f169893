"""Numbers, times and sizes as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lapse.console import words

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def plain(text: str) -> str:
    """With spaces that may break."""
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0"), (1234, "1,234"), (1_234_567.8, "1,234,568"), (-5, "-5")]
)
def test_numbers_in_full(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.25, "0.2"), (9.5, "9.5"), (42.4, "42"), (999, "999"), (1_000, "1.0 k"),
     (12_345, "12.3 k"), (123_456, "123 k"), (5_000_000, "5.0 M"), (7.5e9, "7.5 G")],
)  # fmt: skip
def test_three_digits_are_enough_to_compare(value: float | None, text: str) -> None:
    assert plain(words.compact(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (150 * 1024, "150 KiB"), (5 * 1024**3, "5.0 GiB"),
     (3 * 1024**5, "3072 TiB")],
)  # fmt: skip
def test_sizes(value: int | None, text: str) -> None:
    assert plain(words.size(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 s"), (0.25, "250 ms"), (1, "1 s"), (59.9, "59 s"), (61, "1 min 1 s"), (600, "10 min"),
     (5400, "1 h 30 min"), (86_400, "1 day"), (2 * 86_400 + 3 * 3600, "2 days 3 h"), (30 * 86_400, "30 days"),
     (timedelta(minutes=2), "2 min")],
)  # fmt: skip
def test_durations_have_one_or_two_units(value: timedelta | float | None, text: str) -> None:
    assert plain(words.duration(value)) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(None, "s", "–"), (2048.0, "B", "2.0 KiB"), (90.0, "s", "1 min 30 s"), (12.4, "%", "12 %"), (1500.0, "", "1.5 k"),
     (3.0, " sessions", "3 sessions")],
)  # fmt: skip
def test_a_gauge_is_written_by_its_unit(value: float | None, unit: str, text: str) -> None:
    assert plain(words.measure(value, unit)) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0, "0 %"), (0.05, "5.0 %"), (0.5, "50 %"), (2, "200 %")])
def test_shares(value: float | None, text: str) -> None:
    assert plain(words.percent(value)) == text


@pytest.mark.parametrize(
    ("step", "text"),
    [(timedelta(0), "now"), (timedelta(seconds=30), "in 30 s"), (timedelta(minutes=-5), "5 min ago"),
     (timedelta(days=1), "in 1 day"), (timedelta(days=-3), "3 days ago"), (timedelta(hours=1, minutes=59), "in 1 h")],
)  # fmt: skip
def test_how_far_away_a_moment_is(step: timedelta, text: str) -> None:
    assert plain(words.relative(NOW + step, NOW)) == text


def test_moments_are_in_utc() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert words.moment(elsewhere) == "2026-03-01 12:00:00 UTC"
    assert words.moment(None) == words.relative(None, NOW) == "–"


def test_minutes_do_not_change_with_every_second() -> None:
    assert plain(words.minutes(timedelta(seconds=59))) == "under 1 min"
    assert words.minutes(timedelta(seconds=61)) == words.minutes(timedelta(seconds=119))


def test_every_filter_is_a_function_here() -> None:
    assert all(words.FILTERS[name] is getattr(words, name) for name in words.FILTERS)


@pytest.mark.parametrize(
    ("value", "text", "short"),
    [
        (0, "0 rows", "0 rows"),
        (1, "1 row", "1 row"),
        (12345, "12,345 rows", "12.3\u00a0k rows"),
        (None, "– rows", "– rows"),
    ],
)
def test_one_row_and_more(value: int | None, text: str, short: str) -> None:
    assert (words.rows(value), words.compact_rows(value)) == (text, short)
