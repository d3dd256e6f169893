"""When a wall-clock row expires, said independently of Lapse: for checking what its engines delete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from lapse.model.interval import DAY, HOUR, MINUTE, Interval

LARGEST_SHIFT = timedelta(hours=24)

CHANGES = [
    # (zone, near a change of its clocks, in UTC)
    ("America/Los_Angeles", datetime(2024, 3, 10, 10, tzinfo=UTC)),
    ("America/Los_Angeles", datetime(2024, 11, 3, 9, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Europe/London", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Pacific/Auckland", datetime(2026, 9, 26, 14, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("Etc/GMT+8", datetime(2026, 3, 8, 7, tzinfo=UTC)),
]
WHOLE_DAY = ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC))
"""Samoa left a whole day out."""

zones = st.sampled_from([*CHANGES, WHOLE_DAY])
minutes = st.integers(-30 * 60, 30 * 60).map(lambda count: timedelta(minutes=count))
intervals = st.one_of(
    st.sampled_from([0, 1, 30, 60, 89, 90, 91, 120, 180, 300]).map(lambda count: Interval(micros=count * MINUTE)),
    st.sampled_from([1, 7]).map(lambda count: Interval(micros=count * DAY)),
    st.sampled_from([(1, 0), (0, 0), (1, 90 * MINUTE), (12, HOUR)]).map(lambda i: Interval(months=i[0], micros=i[1])),
)


def readings(wall: datetime, zone: ZoneInfo) -> list[datetime]:
    """Every instant at which a clock in that zone shows that time; none in a gap."""
    naive = wall.replace(tzinfo=UTC)
    offsets = {
        (naive + timedelta(minutes=15 * step)).astimezone(zone).utcoffset() or timedelta()
        for step in range(-4 * 40, 4 * 40)
    }
    found = [naive - offset for offset in offsets]
    return [instant for instant in found if instant.astimezone(zone).replace(tzinfo=None) == wall]


def latest_reading(wall: datetime, zone: ZoneInfo) -> datetime:
    """In a gap: by the clock as it was before."""
    back = timedelta()
    while not (found := readings(wall - back, zone)):
        back += timedelta(minutes=1)
    return max(found) + back


def true_expiry(wall: datetime, interval: Interval, zone: ZoneInfo) -> datetime:
    later = _months_later(wall, interval.months)
    elapsed = timedelta(microseconds=interval.micros)
    return max(latest_reading(later + elapsed, zone), latest_reading(later, zone) + elapsed)


def _months_later(wall: datetime, months: int) -> datetime:
    month = wall.month - 1 + months
    for day in range(wall.day, 0, -1):
        try:
            return wall.replace(year=wall.year + month // 12, month=month % 12 + 1, day=day)
        except ValueError:
            continue
    raise AssertionError(wall)
