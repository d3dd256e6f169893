"""Which zone the application's sessions have: the server's global one, not that of Lapse's own session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import condition
from lapse.engines.zones import is_utc

# The system's zone is known by an abbreviation alone, which is that of the season in which the server was started.
COLUMNS = """
    @@global.time_zone, @@system_time_zone,
    timestampdiff(MINUTE, '2024-01-01', convert_tz('2024-01-01', '+00:00', 'SYSTEM')),
    timestampdiff(MINUTE, '2024-07-01', convert_tz('2024-07-01', '+00:00', 'SYSTEM'))"""
"""What `told` is given."""


def in_doubt(connection: Connection, declared: BoundPolicy) -> str | None:
    """A zone in which the times could be meant: the policy reads some without a zone, does not say which, and it is not
    plainly UTC."""
    return told(declared, connection.exec_driver_sql(f"SELECT {COLUMNS}").one()) if matter(declared) else None


def matter(declared: BoundPolicy) -> bool:
    return declared.policy.time_zone is None and condition.reads_wall_clock(declared)


def told(declared: BoundPolicy, row: Sequence[Any]) -> str | None:
    """As `in_doubt`, by what was asked together with something else."""
    if not matter(declared):
        return None
    zone, system, january, july = row
    if str(zone).upper() == "SYSTEM":
        # As an offset where it is the same all year.
        first, second = _offset(january), _offset(july)
        zone = first if first == second else f"{system} ({first} in January, {second} in July)"
    return None if is_utc(str(zone)) else str(zone)


def _offset(minutes: int) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
