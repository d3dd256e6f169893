"""Which zone the application's sessions have: the server's global one, not that of Lapse's own session."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Declared
from lapse.engines.mysql import condition
from lapse.engines.zones import is_utc

# The system's zone is known by an abbreviation alone, which is that of the season in which the server was started.
_SYSTEM = """
    SELECT @@system_time_zone,
           timestampdiff(MINUTE, '2024-01-01', convert_tz('2024-01-01', '+00:00', 'SYSTEM')),
           timestampdiff(MINUTE, '2024-07-01', convert_tz('2024-07-01', '+00:00', 'SYSTEM'))"""


def in_doubt(connection: Connection, declared: Declared) -> str | None:
    """A zone in which the times could be meant: the policy reads some without a zone, does not say which, and it is not
    plainly UTC."""
    if declared.policy.time_zone is not None or not condition.reads_wall_clock(declared):
        return None
    zone = str(connection.exec_driver_sql("SELECT @@global.time_zone").scalar_one())
    if zone.upper() == "SYSTEM":
        zone = _system_zone(connection)
    return None if is_utc(zone) else zone


def _system_zone(connection: Connection) -> str:
    """As an offset where it is the same all year."""
    name, january, july = connection.exec_driver_sql(_SYSTEM).one()
    first, second = _offset(january), _offset(july)
    return first if first == second else f"{name} ({first} in January, {second} in July)"


def _offset(minutes: int) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
