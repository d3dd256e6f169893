"""How strained a PostgreSQL server is. What the role may not read is reported as such, never fatal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace

from sqlalchemy import Connection

from lapse.engines.base import Gauge
from lapse.engines.postgres import upkeep
from lapse.engines.postgres.session import often
from lapse.model.settings import Settings
from lapse.model.table import TableName

ACTIVE_SOFT = 0.2
"""Sessions at work on average, ours left out: a fifth of one means that an application is there."""
RECENT = "interval '1 ms'"
"""A session that ended its statement just now counts as at work: one look seldom meets a statement of 0.1 ms."""
ACTIVE_STOP = 200.0
BLOCKED_SOFT, BLOCKED_STOP = 0.5, 6.0
LAG_SOFT_SHARE = 0.3
"""Of `lapse_replica_lag_limit`."""
SLOT_SOFT_BYTES, SLOT_STOP_BYTES = 4e9, 32e9
ARCHIVE_SOFT, ARCHIVE_STOP = 42.0, 1_000.0
AGE_SOFT, AGE_STOP = 1.2e9, 1.6e9
"""Transactions since the oldest frozen one: at 2^31 the server stops taking writes."""
DEBT_SOFT_SHARE = 0.5
"""Of `lapse_vacuum_debt_limit`."""
DEBT_ROWS = 10_000
"""Fewer dead rows than this are no debt, whatever the size of the table."""

_SERVER = f"""
    SELECT pg_catalog.quote_ident(current_user) AS role, * FROM
      (SELECT count(*) FILTER (WHERE (state = 'active' OR state_change > clock_timestamp() - {RECENT})
                                 AND left(application_name, 5) <> 'lapse'
                                 AND backend_type = 'client backend' AND pid <> pg_backend_pid()) AS active,
              count(*) FILTER (WHERE wait_event_type = 'Lock' AND EXISTS (
                  SELECT 1 FROM pg_stat_activity o
                   WHERE left(o.application_name, 5) = 'lapse' AND o.pid = ANY (pg_blocking_pids(a.pid)))) AS blocked,
              count(*) FILTER (WHERE backend_type IS NULL) AS hidden_sessions
         FROM pg_stat_activity a WHERE datname = current_database()) sessions,
      (SELECT coalesce(json_object_agg(name, lag), '{{}}') AS lags, coalesce(sum(hidden), 0) AS hidden_replicas
         FROM (SELECT coalesce(application_name, '') AS name, coalesce(max(extract(epoch FROM replay_lag)), 0) AS lag,
                      count(*) FILTER (WHERE state IS NULL) AS hidden
                 FROM pg_stat_replication GROUP BY 1) each) replicas,
      (SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0) AS slots
         FROM pg_replication_slots) slots,
      (SELECT age(datfrozenxid) AS age FROM pg_database WHERE datname = current_database()) oldest,
      (SELECT has_function_privilege('pg_ls_archive_statusdir()', 'EXECUTE') AS sees_archive,
              current_setting('archive_mode') <> 'off' AS archives) archive,
      (SELECT pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                   ELSE pg_current_wal_insert_lsn() END, '0/0') AS log_written,
              pg_size_bytes(current_setting('max_wal_size'))
                / (1 + current_setting('checkpoint_completion_target')::float8) AS log_room) log"""

_ARCHIVE = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE right(name, 6) = '.ready'"


def read(connection: Connection, settings: Settings) -> list[Gauge]:
    (row,) = often(connection, _SERVER)
    found = SimpleNamespace(**row)
    monitor = f"GRANT pg_monitor TO {found.role};"
    waiting = None
    if found.sees_archive:
        # A server that archives nothing has no queue to count, which takes as long as all the rest.
        waiting = connection.exec_driver_sql(_ARCHIVE).scalar_one() if found.archives else 0
    return [
        Gauge(
            name="foreground",
            value=None if found.hidden_sessions else float(found.active),
            soft=ACTIVE_SOFT,
            stop=ACTIVE_STOP,
            unit=" sessions",
            averaged=True,
            application=True,
            grant=monitor if found.hidden_sessions else None,
        ),
        Gauge(
            name="blocked by us",
            value=float(found.blocked),
            soft=BLOCKED_SOFT,
            stop=BLOCKED_STOP,
            unit=" sessions",
            averaged=True,
        ),
        _replica_lag(found.lags, settings, missing_grant=monitor if found.hidden_replicas else None),
        Gauge(
            name="replication slots", value=float(found.slots), soft=SLOT_SOFT_BYTES, stop=SLOT_STOP_BYTES, unit=" B"
        ),
        Gauge(
            name="archive queue",
            value=None if waiting is None else float(waiting),
            soft=ARCHIVE_SOFT,
            stop=ARCHIVE_STOP,
            unit=" segments",
            grant=monitor if waiting is None else None,
        ),
        Gauge(name="transaction age", value=float(found.age), soft=AGE_SOFT, stop=AGE_STOP),
        # So much log makes the server begin a checkpoint before its time: it writes every changed page, and afterwards
        # each page goes into the log as a whole when it is changed again.
        Gauge(
            name="checkpoints",
            value=float(found.log_written),
            soft=float(found.log_room) / settings.checkpoint_interval.approximate_seconds,
            unit=" B/s",
            counter=True,
            averaged=True,
            own=True,
            settings=("lapse_checkpoint_interval",),
        ),
    ]


def read_tables(connection: Connection, settings: Settings, names: Collection[TableName]) -> list[Gauge]:
    limit = settings.vacuum_debt_limit
    if not limit:
        return []
    return [
        Gauge(
            name="vacuum debt",
            value=debt.dead / max(debt.due_at, DEBT_ROWS),
            soft=DEBT_SOFT_SHARE * limit,
            stop=float(limit),
            note=None if debt.is_running else "autovacuum is off",
            settings=("lapse_vacuum_debt_limit",),
            table=name,
        )
        for name, debt in upkeep.debts(connection, names).items()
    ]


def _replica_lag(lags: Mapping[str, float], settings: Settings, *, missing_grant: str | None) -> Gauge:
    """Of the worst of those that count. A standby that is delayed on purpose looks like one that cannot keep up, from
    here: it is left out by its name."""
    limit = settings.replica_lag_limit.approximate_seconds
    name, lag = max(
        ((name, lag) for name, lag in lags.items() if settings.counts_replica(name)),
        key=lambda each: each[1],
        default=("", 0.0),
    )
    return Gauge(
        name="replica lag",
        value=None if missing_grant else float(lag),
        soft=LAG_SOFT_SHARE * limit,
        stop=limit,
        unit=" s",
        note=f"of {name}" if lag and missing_grant is None else None,
        grant=missing_grant,
        settings=("lapse_replica_lag_limit", "lapse_replicas"),
    )
