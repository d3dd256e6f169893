"""How strained a PostgreSQL server is. What the role may not read is reported as such, never fatal."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Gauge

ACTIVE_SOFT = 0.2
"""Sessions at work on average, ours left out: a fifth of one means that somebody is there."""
ACTIVE_STOP = 200.0
BLOCKED_SOFT, BLOCKED_STOP = 0.5, 6.0
LAG_SOFT_SECONDS, LAG_STOP_SECONDS = 1.5, 5.0
SLOT_SOFT_BYTES, SLOT_STOP_BYTES = 4e9, 32e9
ARCHIVE_SOFT, ARCHIVE_STOP = 42.0, 1_000.0
AGE_SOFT, AGE_STOP = 1.2e9, 1.6e9
"""Transactions since the oldest frozen one: at 2^31 the server stops taking writes."""

_SESSIONS = """
    SELECT count(*) FILTER (WHERE state = 'active' AND left(application_name, 5) <> 'lapse'
                              AND backend_type = 'client backend' AND pid <> pg_backend_pid()),
           count(*) FILTER (WHERE wait_event_type = 'Lock' AND EXISTS (
               SELECT 1 FROM pg_stat_activity o
                WHERE left(o.application_name, 5) = 'lapse' AND o.pid = ANY (pg_blocking_pids(a.pid)))),
           count(*) FILTER (WHERE backend_type IS NULL)
      FROM pg_stat_activity a WHERE datname = current_database()"""

_LAG = """
    SELECT coalesce(max(extract(epoch FROM replay_lag)), 0),
           count(*) FILTER (WHERE state IS NULL)
      FROM pg_stat_replication"""

_SLOTS = """
    SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0) FROM pg_replication_slots"""

_AGE = "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()"


def read(connection: Connection) -> list[Gauge]:
    return [*_sessions(connection), *_replication(connection), _archive(connection), _wraparound(connection)]


def _sessions(connection: Connection) -> list[Gauge]:
    active, blocked, hidden = connection.exec_driver_sql(_SESSIONS).one()
    note = "pg_monitor would show what others do" if hidden else None
    return [
        Gauge(
            name="foreground",
            value=None if hidden else float(active),
            soft=ACTIVE_SOFT,
            stop=ACTIVE_STOP,
            unit=" sessions",
            averaged=True,
            note=note,
        ),
        Gauge(
            name="blocked by us",
            value=float(blocked),
            soft=BLOCKED_SOFT,
            stop=BLOCKED_STOP,
            unit=" sessions",
            averaged=True,
        ),
    ]


def _replication(connection: Connection) -> list[Gauge]:
    lag, hidden = connection.exec_driver_sql(_LAG).one()
    note = "GRANT pg_monitor to read the lag of replicas" if hidden else None
    slots = connection.exec_driver_sql(_SLOTS).scalar_one()
    return [
        Gauge(
            name="replica lag",
            value=None if hidden else float(lag),
            soft=LAG_SOFT_SECONDS,
            stop=LAG_STOP_SECONDS,
            unit=" s",
            note=note,
        ),
        Gauge(name="replication slots", value=float(slots), soft=SLOT_SOFT_BYTES, stop=SLOT_STOP_BYTES, unit=" B"),
    ]


def _archive(connection: Connection) -> Gauge:
    value, note = None, None
    try:
        value = float(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE right(name, 6) = '.ready'"
            ).scalar_one()
        )
    except DBAPIError:
        note = "GRANT pg_monitor to see the segments that wait to be archived"
    return Gauge(name="archive queue", value=value, soft=ARCHIVE_SOFT, stop=ARCHIVE_STOP, unit=" segments", note=note)


def _wraparound(connection: Connection) -> Gauge:
    age = connection.exec_driver_sql(_AGE).scalar_one()
    return Gauge(name="transaction age", value=float(age), soft=AGE_SOFT, stop=AGE_STOP)
