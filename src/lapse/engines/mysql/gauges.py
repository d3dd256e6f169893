"""How strained a MariaDB or MySQL server is. What this role or this flavour does not show is reported as such."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
LAG_SOFT_SHARE = 0.3
"""Of `lapse_replica_lag_limit`."""
LAG_SETTINGS = ("lapse_replica_lag_limit",)
FLOW_SOFT, FLOW_STOP = 0.05, 0.1
NANOSECONDS = 1e9

_STATUS = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_row_lock_current_waits', 'Innodb_history_list_length',"
    " 'Innodb_buffer_pool_pages_dirty', 'Innodb_buffer_pool_pages_total', 'wsrep_flow_control_paused_ns')"
)
_OTHERS = (
    "SELECT id FROM information_schema.processlist WHERE command IN ('Query', 'Execute')"
    " AND id <> connection_id() AND left(coalesce(info, ''), 8) <> '/* lapse' AND user <> 'system user'"
)
_HISTORY = "SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
_REPLICAS = ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")


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
        _foreground(connection, own),
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
        _own_lag(connection, lag_limit, lag_privilege),
        *(_lag_of(name, database, lag_limit) for name, database in replicas.items()),
    ]
    return [*gauges, *_flow_control(status)]


def _purge_debt(connection: Connection, status: dict[str, float]) -> Gauge:
    length = status.get("Innodb_history_list_length", _history(connection))
    note = _grant(connection, "PROCESS") if length is None else None
    return Gauge(name="purge debt", value=length, soft=HISTORY_SOFT, stop=HISTORY_STOP, note=note)


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


def _foreground(connection: Connection, own: Collection[int]) -> Gauge:
    """Without the PROCESS privilege a role sees its own sessions only, and so no foreground."""
    value = float(sum(int(thread) not in own for (thread,) in connection.exec_driver_sql(_OTHERS)))
    return Gauge(
        name="foreground", value=value, soft=RUNNING_SOFT, stop=RUNNING_STOP, unit=" statements", averaged=True
    )


def _history(connection: Connection) -> float | None:
    try:
        value = connection.exec_driver_sql(_HISTORY).scalar()
    except DBAPIError:
        return None
    return None if value is None else float(value)


def _dirty(status: dict[str, float]) -> Gauge:
    total = status.get("Innodb_buffer_pool_pages_total")
    dirty = status.get("Innodb_buffer_pool_pages_dirty")
    share = dirty / total if total and dirty is not None else None
    return Gauge(name="dirty pages", value=share, soft=DIRTY_SOFT, stop=DIRTY_STOP, note="not in this server's status")


def _own_lag(connection: Connection, limit: float, privilege: str) -> Gauge:
    """Of this server behind its own source; a primary has none."""
    behind = _seconds_behind(connection)
    if behind is None:
        return _lag("replica lag", None, limit, _grant(connection, privilege))
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
    for statement in _REPLICAS:
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
