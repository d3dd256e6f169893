"""How strained a PostgreSQL server is. What the role may not read is reported as such, never fatal."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Gauge

ACTIVE_SOFT = 0.2
"""Sessions at work on average, ours left out: a fifth of one means that somebody is there."""
RECENT = "interval '1 ms'"
"""A session that ended its statement just now counts as at work: one look seldom meets a statement of 0.1 ms."""
ACTIVE_STOP = 200.0
BLOCKED_SOFT, BLOCKED_STOP = 0.5, 6.0
LAG_SOFT_SECONDS, LAG_STOP_SECONDS = 1.5, 5.0
SLOT_SOFT_BYTES, SLOT_STOP_BYTES = 4e9, 32e9
ARCHIVE_SOFT, ARCHIVE_STOP = 42.0, 1_000.0
AGE_SOFT, AGE_STOP = 1.2e9, 1.6e9
"""Transactions since the oldest frozen one: at 2^31 the server stops taking writes."""

_SERVER = f"""
    SELECT * FROM
      (SELECT count(*) FILTER (WHERE (state = 'active' OR state_change > clock_timestamp() - {RECENT})
                                 AND left(application_name, 5) <> 'lapse'
                                 AND backend_type = 'client backend' AND pid <> pg_backend_pid()) AS active,
              count(*) FILTER (WHERE wait_event_type = 'Lock' AND EXISTS (
                  SELECT 1 FROM pg_stat_activity o
                   WHERE left(o.application_name, 5) = 'lapse' AND o.pid = ANY (pg_blocking_pids(a.pid)))) AS blocked,
              count(*) FILTER (WHERE backend_type IS NULL) AS hidden_sessions
         FROM pg_stat_activity a WHERE datname = current_database()) sessions,
      (SELECT coalesce(max(extract(epoch FROM replay_lag)), 0) AS lag,
              count(*) FILTER (WHERE state IS NULL) AS hidden_replicas
         FROM pg_stat_replication) replicas,
      (SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0) AS slots
         FROM pg_replication_slots) slots,
      (SELECT age(datfrozenxid) AS age FROM pg_database WHERE datname = current_database()) oldest,
      (SELECT has_function_privilege('pg_ls_archive_statusdir()', 'EXECUTE') AS sees_archive) rights"""

_ARCHIVE = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE right(name, 6) = '.ready'"


def read(connection: Connection) -> list[Gauge]:
    found = connection.exec_driver_sql(_SERVER).one()
    waiting = connection.exec_driver_sql(_ARCHIVE).scalar_one() if found.sees_archive else None
    return [
        Gauge(
            name="foreground",
            value=None if found.hidden_sessions else float(found.active),
            soft=ACTIVE_SOFT,
            stop=ACTIVE_STOP,
            unit=" sessions",
            averaged=True,
            note="pg_monitor would show what others do" if found.hidden_sessions else None,
        ),
        Gauge(
            name="blocked by us",
            value=float(found.blocked),
            soft=BLOCKED_SOFT,
            stop=BLOCKED_STOP,
            unit=" sessions",
            averaged=True,
        ),
        Gauge(
            name="replica lag",
            value=None if found.hidden_replicas else float(found.lag),
            soft=LAG_SOFT_SECONDS,
            stop=LAG_STOP_SECONDS,
            unit=" s",
            note="GRANT pg_monitor to read the lag of replicas" if found.hidden_replicas else None,
        ),
        Gauge(
            name="replication slots", value=float(found.slots), soft=SLOT_SOFT_BYTES, stop=SLOT_STOP_BYTES, unit=" B"
        ),
        Gauge(
            name="archive queue",
            value=None if waiting is None else float(waiting),
            soft=ARCHIVE_SOFT,
            stop=ARCHIVE_STOP,
            unit=" segments",
            note="GRANT pg_monitor to see the segments that wait to be archived" if waiting is None else None,
        ),
        Gauge(name="transaction age", value=float(found.age), soft=AGE_SOFT, stop=AGE_STOP),
    ]
