"""Wall-clock time in a zone, for columns that store it without one."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo


def safe_wall_clock(instant: datetime, zone: ZoneInfo) -> datetime:
    """The wall-clock time up to which every reading has passed at `instant`; without zone.

    When clocks go back an hour is read twice, and a stored time in it could mean the second reading. During the first
    one the result is moved back, so that such a row is late by at most that hour and never early.
    """
    local = instant.astimezone(zone)
    wall = local.replace(tzinfo=None)
    second_reading = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return wall - max(second_reading - instant.astimezone(UTC), instant - instant)
