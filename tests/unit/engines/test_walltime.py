"""Wall clocks: a row is never expired before the instant that its declaration means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from lapse.engines.walltime import expired_wall_clock, expiry, later_reading, safe_wall_clock
from lapse.model.interval import MINUTE, Interval
from tests import walltimes

BERLIN = ZoneInfo("Europe/Berlin")


@given(st.integers(0, 215 * 24 * 60))
def test_every_reading_of_a_safe_wall_clock_has_passed(minutes: int) -> None:
    """From the day before clocks go forward to the day after they go back."""
    instant = datetime(2026, 3, 28, tzinfo=UTC) + timedelta(minutes=minutes)
    wall = safe_wall_clock(instant, BERLIN)
    for fold in (0, 1):
        assert wall.replace(tzinfo=BERLIN, fold=fold).astimezone(UTC) <= instant
    assert instant.astimezone(BERLIN).replace(tzinfo=None) - wall <= timedelta(hours=1)


@given(walltimes.zones, walltimes.minutes, walltimes.minutes, walltimes.intervals)
def test_no_row_is_early(
    place: tuple[str, datetime], cutoff_at: timedelta, row_at: timedelta, interval: Interval
) -> None:
    zone, cutoff = ZoneInfo(place[0]), place[1] + cutoff_at
    near = interval.subtracted_from((cutoff + row_at).astimezone(zone).replace(tzinfo=None))
    limit = expired_wall_clock(cutoff, interval, zone)
    for wall in (near, limit):
        expires = walltimes.true_expiry(wall, interval, zone)
        if wall <= limit:
            assert expires <= cutoff
        elif not interval.months:
            assert expires + walltimes.LARGEST_SHIFT > cutoff, "late by more than a change of clocks"


@given(walltimes.zones, walltimes.minutes, walltimes.intervals)
def test_the_expiry_of_a_row(place: tuple[str, datetime], row_at: timedelta, interval: Interval) -> None:
    zone = ZoneInfo(place[0])
    wall = (place[1] + row_at).astimezone(zone).replace(tzinfo=None)
    assert later_reading(wall, zone) == walltimes.latest_reading(wall, zone)
    assert expiry(wall, interval, zone) == walltimes.true_expiry(wall, interval, zone)


def test_ninety_minutes_over_the_hour_that_clocks_go_forward() -> None:
    zone, interval = ZoneInfo("America/Los_Angeles"), Interval(micros=90 * MINUTE)
    cutoff = datetime(2024, 3, 10, 11, 1, tzinfo=UTC)
    # 01:36 was 85 minutes ago, although the clock has moved by 145.
    assert expired_wall_clock(cutoff, interval, zone) == datetime(2024, 3, 10, 1, 31)  # noqa: DTZ001


def test_without_a_change_of_clocks_nothing_is_late() -> None:
    cutoff = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert expired_wall_clock(cutoff, Interval(micros=90 * MINUTE), BERLIN) == datetime(2026, 7, 1, 12, 30)  # noqa: DTZ001
