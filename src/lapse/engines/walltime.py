"""Wall-clock time in a zone, for columns that store it without one.

A wall-clock time that comes twice means its second coming. One that never comes, because clocks went forward over it,
is read as if they had not. A row `wall + interval` has expired once the clock on the wall shows that time and the
interval has passed since `wall`: these differ where clocks change in between, and the later one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from lapse.model.interval import Interval

_WINDOW = timedelta(hours=36)
"""Further apart than any two offsets from UTC: what is read beyond it lies on the same side."""
_STEP = timedelta(hours=1)
_TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stretch:
    """From `start` until `end` the zone is `offset` ahead of UTC."""

    start: datetime
    end: datetime
    offset: timedelta


def expired_wall_clock(cutoff: datetime, interval: Interval, zone: ZoneInfo) -> datetime:
    """The wall-clock time up to which every row has expired at `cutoff`, as columns without a zone store it."""
    shown = interval.subtracted_from(safe_wall_clock(cutoff, zone))
    passed = Interval(months=interval.months).subtracted_from(safe_wall_clock(cutoff - interval.timedelta, zone))
    return min(shown, passed)


def expiry(wall: datetime, interval: Interval, zone: ZoneInfo) -> datetime | None:
    """When a row with that wall-clock time expires, in UTC; None where that is after the year 9999."""
    try:
        later = Interval(months=interval.months).added_to(wall)
        return max(
            later_reading(later + interval.timedelta, zone),
            later_reading(later, zone) + interval.timedelta,
        )
    except (OverflowError, ValueError):
        return None


def later_reading(wall: datetime, zone: ZoneInfo) -> datetime:
    """The instant of a wall-clock time, in UTC: of two readings, and in a gap, the later one."""
    return max(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))


def safe_wall_clock(instant: datetime, zone: ZoneInfo) -> datetime:
    """The wall-clock time up to which every reading has passed at `instant`; without zone."""
    now = instant.astimezone(UTC)
    stretches = _stretches(now.replace(minute=0, second=0, microsecond=0), zone)
    # The earliest wall-clock time that each stretch shows after now.
    limits = [
        stretch.start + stretch.offset - _TICK if stretch.start > now else now + stretch.offset
        for stretch in stretches
        if stretch.end > now
    ]
    # Clocks have gone forward: what they went over is still read by the clock as it was.
    limits += [
        now + before.offset
        for before, after in pairwise(stretches)
        if after.start <= now < after.start + (after.offset - before.offset)
    ]
    return min(limits).replace(tzinfo=None)


@lru_cache(maxsize=256)
def _stretches(around: datetime, zone: ZoneInfo) -> tuple[_Stretch, ...]:
    """The zone's offsets near an hour, each with when it begins and ends."""
    found: list[_Stretch] = []
    start, end = around - _WINDOW, around + _WINDOW
    at = start
    while at < end:
        following = at + _STEP
        if _offset(at, zone) != _offset(following, zone):
            change = _first_change(at, following, zone)
            found.append(_Stretch(start=start, end=change, offset=_offset(at, zone)))
            start = change
        at = following
    found.append(_Stretch(start=start, end=end, offset=_offset(end - _STEP, zone)))
    return tuple(found)


def _first_change(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """The second in which the offset changes between two instants that have different ones."""
    before = _offset(low, zone)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        low, high = (middle, high) if _offset(middle, zone) == before else (low, middle)
    return high


def _offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset
