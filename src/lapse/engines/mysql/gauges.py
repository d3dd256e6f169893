"""How strained a MariaDB or MySQL server is. What this role or this flavour does not show is reported as such."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Gauge
from lapse.engines.mysql.names import quote

RUNNING_SOFT, RUNNING_STOP = 0.2, 200.0
"""Statements of others at work on average: a fifth of one means that an application is there."""
LOCK_WAIT_SOFT, LOCK_WAIT_STOP = 0.5, 6.0
HISTORY_SOFT, HISTORY_STOP = 1e5, 1e6
DIRTY_SOFT, DIRTY_STOP = 0.75, 0.9
REDO_SOFT, REDO_STOP = 0.5, 0.9
WRITTEN_SOFT, WRITTEN_STOP = 0.5, 4.0
"""Of what the server may write, `innodb_io_capacity_max`. In a hurry it writes more."""
LAG_SOFT_SHARE = 0.3
"""Of `lapse_replica_lag_limit`."""
LAG_SETTINGS = ("lapse_replica_lag_limit",)
FLOW_SOFT, FLOW_STOP = 0.05, 0.1
NANOSECONDS = 1e9

_STATUS = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_row_lock_current_waits', 'Innodb_history_list_length',"
    " 'Innodb_buffer_pool_pages_dirty', 'Innodb_buffer_pool_pages_total', 'wsrep_flow_control_paused_ns',"
    " 'Threads_connected', 'Innodb_checkpoint_age', 'Innodb_checkpoint_max_age',"
    " 'Innodb_redo_log_logical_size', 'Innodb_redo_log_capacity_resized', 'Innodb_buffer_pool_pages_flushed')"
)
_FLOW = "SHOW GLOBAL STATUS LIKE 'wsrep_flow_control_paused_ns'"
_OTHERS = (
    "SELECT id FROM information_schema.processlist WHERE command IN ('Query', 'Execute')"
    " AND id <> connection_id() AND left(coalesce(info, ''), 8) <> '/* lapse' AND user <> 'system user'"
)
_SESSIONS = (
    "SELECT count(*), coalesce(sum(p.user <> substring_index(user(), '@', 1)), 0)"
    " FROM information_schema.processlist AS p"
)
"""How many this account sees, and how many of them are another's."""
_CAPACITY = "lapse_io_capacity_max"
"""In a connection's info."""
_HISTORY = "SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
REPLICA_STATUS = ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")


def read(
    connection: Connection,
    replicas: Mapping[str, Database],
    own: Collection[int],
    *,
    lag_limit: float,
    lag_privilege: str,
) -> list[Gauge]:
    """`own` are the threads of this process, which are not foreground whatever they do; `lag_privilege` lets an account
    see how far this server is behind its source."""
    status = {str(name): float(value) for name, value in connection.exec_driver_sql(_STATUS) if _is_number(value)}
    gauges = [
        _foreground(connection, own, connected=status.get("Threads_connected")),
        Gauge(
            name="lock waits",
            value=status.get("Innodb_row_lock_current_waits"),
            soft=LOCK_WAIT_SOFT,
            stop=LOCK_WAIT_STOP,
            averaged=True,
            note="not in this server's status",
        ),
        _purge_debt(connection, status),
        _dirty(status),
        _redo_log(status),
        _written(connection, status),
        _own_lag(connection, lag_limit, lag_privilege),
        *(_lag_of(name, database, lag_limit) for name, database in replicas.items()),
    ]
    return [*gauges, *_flow_control(status)]


def glance(connection: Connection, own: Collection[int]) -> list[Gauge]:
    status = {str(name): float(value) for name, value in connection.exec_driver_sql(_FLOW)}
    return [_foreground(connection, own), *_flow_control(status)]


def read_tidb(connection: Connection, own: Collection[int]) -> list[Gauge]:
    """Of all servers of the cluster."""
    waits = _one_number(connection, "SELECT count(*) FROM information_schema.data_lock_waits")
    return [
        _foreground(connection, own, _OTHERS.replace("processlist", "cluster_processlist")),
        Gauge(
            name="lock waits",
            value=waits,
            soft=LOCK_WAIT_SOFT,
            stop=LOCK_WAIT_STOP,
            averaged=True,
            grant=_grant(connection, "PROCESS") if waits is None else None,
        ),
    ]


def _purge_debt(connection: Connection, status: dict[str, float]) -> Gauge:
    length = status.get("Innodb_history_list_length", _one_number(connection, _HISTORY))
    grant = _grant(connection, "PROCESS") if length is None else None
    return Gauge(name="purge debt", value=length, soft=HISTORY_SOFT, stop=HISTORY_STOP, grant=grant)


def _grant(connection: Connection, privilege: str) -> str:
    """That lets this account see what it does not."""
    user, host = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()).rsplit("@", 1)
    return f"GRANT {privilege} ON *.* TO {quote(user)}@{quote(host)};"


def _flow_control(status: dict[str, float]) -> list[Gauge]:
    """The share of the time for which a Galera cluster waits for its slowest node.

    The server's own share is an average since it started, and says nothing of a cluster that is stuck now.
    """
    paused = status.get("wsrep_flow_control_paused_ns")
    if paused is None:
        return []
    seconds = paused / NANOSECONDS
    return [
        Gauge(name="galera flow control", value=seconds, soft=FLOW_SOFT, stop=FLOW_STOP, counter=True, averaged=True)
    ]


def _foreground(
    connection: Connection, own: Collection[int], others: str = _OTHERS, connected: float | None = None
) -> Gauge:
    """Without the PROCESS privilege an account sees its own sessions only: where more than those are `connected`, it
    cannot tell whether an application is at work."""
    value: float | None = float(sum(int(thread) not in own for (thread,) in connection.exec_driver_sql(others)))
    grant = None
    if not value and connected is not None:
        seen, of_others = connection.exec_driver_sql(_SESSIONS).one()
        # One that has gone since they were counted hides nothing from an account that sees others' sessions.
        if connected > seen and not of_others:
            value, grant = None, _grant(connection, "PROCESS")
    return Gauge(
        name="foreground",
        value=value,
        grant=grant,
        soft=RUNNING_SOFT,
        stop=RUNNING_STOP,
        unit=" statements",
        averaged=True,
        application=True,
    )


def _one_number(connection: Connection, sql: str) -> float | None:
    """None where this role may not see it."""
    try:
        value = connection.exec_driver_sql(sql).scalar()
    except DBAPIError:
        return None
    return None if value is None else float(value)


def _dirty(status: dict[str, float]) -> Gauge:
    total = status.get("Innodb_buffer_pool_pages_total")
    dirty = status.get("Innodb_buffer_pool_pages_dirty")
    share = dirty / total if total and dirty is not None else None
    return _filled("dirty pages", share, DIRTY_SOFT, DIRTY_STOP)


def _redo_log(status: dict[str, float]) -> Gauge:
    """How much of the log is needed still. When all of it is, every writer waits until pages have been written."""
    used = status.get("Innodb_checkpoint_age", status.get("Innodb_redo_log_logical_size"))
    room = status.get("Innodb_checkpoint_max_age", status.get("Innodb_redo_log_capacity_resized"))
    return _filled("redo log", used / room if room and used is not None else None, REDO_SOFT, REDO_STOP)


def _written(connection: Connection, status: Mapping[str, float]) -> Gauge:
    """Pages on their way to the disk, which every reader and every commit has to share with them."""
    if _CAPACITY not in connection.info:
        connection.info[_CAPACITY] = _one_number(connection, "SELECT @@innodb_io_capacity_max")
    most: float | None = connection.info[_CAPACITY]
    return Gauge(
        name="pages written",
        value=status.get("Innodb_buffer_pool_pages_flushed") if most else None,
        soft=WRITTEN_SOFT * (most or 1.0),
        stop=WRITTEN_STOP * (most or 1.0),
        unit="/s",
        counter=True,
        averaged=True,
        own=True,
        note="not in this server's status",
    )


def _filled(name: str, share: float | None, soft: float, stop: float) -> Gauge:
    """What deletes fill and the server empties by itself."""
    return Gauge(name=name, value=share, soft=soft, stop=stop, own=True, note="not in this server's status")


def _own_lag(connection: Connection, limit: float, privilege: str) -> Gauge:
    """Of this server behind its own source; a primary has none."""
    behind = _seconds_behind(connection)
    if behind is None:
        return replace(_lag("replica lag", None, limit), grant=_grant(connection, privilege))
    return _lag("replica lag", max((seconds for seconds in behind if seconds is not None), default=0.0), limit)


def _lag_of(name: str, replica: Database, limit: float) -> Gauge:
    """A replica that cannot be asked, or that has stopped, may be any time behind."""
    try:
        with replica.connect() as connection:
            behind = _seconds_behind(connection)
    except DBAPIError:
        return _lag(f"replica lag of {name}", limit, limit, "it cannot be reached")
    seconds = [limit if each is None else each for each in behind or [None]]
    note = "it does not replicate, or does not say" if not behind else None
    return _lag(f"replica lag of {name}", max(seconds), limit, note)


def _seconds_behind(connection: Connection) -> list[float | None] | None:
    """Behind each source, None for one that is not followed now; None instead of a list if this role may not see it."""
    for statement in REPLICA_STATUS:
        try:
            rows = connection.exec_driver_sql(statement).mappings().all()
        except DBAPIError:
            continue
        found = [row.get("Seconds_Behind_Master", row.get("Seconds_Behind_Source")) for row in rows]
        return [None if seconds is None else float(seconds) for seconds in found]
    return None


def _lag(name: str, value: float | None, limit: float, note: str | None = None) -> Gauge:
    soft = LAG_SOFT_SHARE * limit
    return Gauge(name=name, value=value, soft=soft, stop=limit, unit=" s", note=note, settings=LAG_SETTINGS)


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
