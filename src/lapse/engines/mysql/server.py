"""Which server this is, since when it runs, what it has done, and how it numbers its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.mysql import errors, inspect
from lapse.model.table import TableName

RENAME, OPTIMIZE, CREATE = "rename_table", "optimize", "create_table"
REPLACE = (RENAME, CREATE, "alter_table")
"""Statements that can put another table in the place of one."""
RENAMES = (RENAME, "alter_table")
"""Those of them by which it can be one that was there before."""
REBUILD = (OPTIMIZE, "alter_table", "truncate", "create_index", "drop_index")
"""Statements after which a table has another number and is still the same."""
_KINDS = tuple(dict.fromkeys((*REPLACE, *REBUILD)))
_COUNTERS = tuple(f"com_{kind}" for kind in _KINDS)
_IDENTITY, _STARTED, _HISTORY = "lapse_server", "lapse_server_started", "lapse_server_history"
YOUNG = timedelta(seconds=1.1)
"""Times of creation are whole seconds: one that is no older may be that of two tables."""
SAME_SERVER_SECONDS = 1.0
"""A proxy may send a connection's statements to another server after a failover, and not so soon."""


def identity(connection: Connection) -> str:
    """The same after a restart; another on every replica, and on every node of a cluster."""
    known, until = connection.info.get(_IDENTITY, ("", 0.0))
    if monotonic() > until:
        names = "'server_uuid', 'server_uid', 'hostname', 'port'"
        rows = connection.exec_driver_sql(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
        found = {str(row[0]).lower(): str(row[1]) for row in rows}
        known = found.get("server_uuid") or found.get("server_uid") or f"{found.get('hostname')}:{found.get('port')}"
        connection.info[_IDENTITY] = known, monotonic() + SAME_SERVER_SECONDS
    return str(known)


def incarnation(connection: Connection) -> tuple[str, datetime]:
    """One running server and database, and the server's time. The nodes of a Galera cluster are one."""
    own = inspect.current_database(connection)
    # What it has done is asked with it: the tables that are due are looked at next.
    status = _status(connection, ["wsrep_cluster_state_uuid", *(_COUNTERS if _is_mariadb(connection) else ())])
    cluster = status.values.get("wsrep_cluster_state_uuid", "")
    named = f"{cluster}/{own}" if cluster.strip("-0") else f"{identity(connection)}/{status.started}/{own}"
    return named, status.now


History = tuple[int, Mapping[str, int]]


def history(connection: Connection) -> History:
    """Since which second of the epoch the server runs, exactly, and how many statements of a kind it has executed."""
    if _is_mariadb(connection):
        status = _status(connection, _COUNTERS)
        return status.started, _executed(status.values)
    started, until = connection.info.get(_STARTED, (0, 0.0))
    if monotonic() > until:
        started = _status(connection).started
    return started, executed(connection)


def recent_history(connection: Connection) -> History | None:
    """As it was a moment ago, where this connection has asked for it; None otherwise, and on MySQL.

    What was executed since is missing in it, so it may be kept with what was looked at after it, and says nothing about
    what was looked at before.
    """
    known: tuple[History, float] | None = connection.info.get(_HISTORY)
    return known[0] if known is not None and monotonic() <= known[1] else None


def executed(connection: Connection) -> dict[str, int]:
    """How many statements of a kind were begun since the server was started. MySQL has these in no view."""
    names = ", ".join(f"'{name}'" for name in _COUNTERS)
    rows = connection.exec_driver_sql(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")
    return _executed({str(row[0]).lower(): str(row[1]) for row in rows})


def _executed(found: Mapping[str, str]) -> dict[str, int]:
    return {kind: int(found.get(f"com_{kind}", 0)) for kind in _KINDS}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Status:
    """Since which second of the epoch the server runs, its time, and its counters by their names in lower case."""

    started: int
    now: datetime
    values: Mapping[str, str]


def _status(connection: Connection, names: Sequence[str] = ()) -> _Status:
    view = "information_schema.GLOBAL_STATUS" if _is_mariadb(connection) else "performance_schema.global_status"
    listed = ", ".join(f"'{name}'" for name in ("uptime", *names))
    # The time of a statement and the uptime are read from one clock in one statement.
    rows = connection.exec_driver_sql(
        "SELECT VARIABLE_NAME, VARIABLE_VALUE, unix_timestamp(now()), utc_timestamp(6)"
        f" FROM {view} WHERE VARIABLE_NAME IN ({listed})"
    ).all()
    values = {inspect.text(row[0]).lower(): inspect.text(row[1]) for row in rows}
    started = int(rows[0][2]) - int(values["uptime"]) if "uptime" in values else 0
    until = monotonic() + SAME_SERVER_SECONDS
    connection.info[_STARTED] = started, until
    if all(name in names for name in _COUNTERS):
        connection.info[_HISTORY] = (started, _executed(values)), until
    return _Status(started=started, now=rows[0][3].replace(tzinfo=UTC), values=values)


def stamps_hidden_columns(connection: Connection) -> bool:
    """Does an INSERT that names no columns apply an expression that is the default of an INVISIBLE one?"""
    return _is_mariadb(connection)


def tells_deleted_rows(connection: Connection) -> bool:
    """Does a DELETE send the rows that it has deleted (RETURNING)?"""
    return _is_mariadb(connection)


def renaming_makes_young(connection: Connection) -> bool:
    """Does a table that is renamed get a new time of creation? On MySQL it brings the one it had."""
    return _is_mariadb(connection)


def table_ids(connection: Connection, name: TableName, path: str | None = None) -> dict[str, int]:
    """InnoDB's numbers of a table, or of its partitions by name. Empty without the privilege PROCESS. `path` is where
    its file is, if that is known."""
    path = path or path_of(connection, name)
    escaped = path.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")
    # What cannot be written here as the server writes it is found by its plain name as well.
    escaped = escaped.replace(_ANY, "%")
    tables, spaces = _views(connection)
    # The server reads all of a view for one row of it, so the files are left out where they are not needed.
    plain, files = "NULL", ""
    if _ANY in path:
        plain, files = "s.NAME", f" LEFT JOIN information_schema.{spaces} s ON s.SPACE = t.SPACE"
    try:
        rows = connection.exec_driver_sql(
            f"SELECT t.NAME, t.TABLE_ID, {plain} FROM information_schema.{tables} t{files}"
            " WHERE t.NAME LIKE %s OR t.NAME LIKE %s",
            (escaped, f"{escaped}#P#%"),
        ).all()
    except DBAPIError as error:
        # Another session may be about to rename a table, for which the view waits: then it is not known yet.
        if errors.is_lock_wait(error):
            raise
        return {}
    if _ANY in path:
        path = f"{name.schema or inspect.current_database(connection)}/{name.name}"
        # Only in the name of a file is the sign of a partition none that a table can have in its own.
        found = {str(row[2]): int(row[1]) for row in rows if row[2] == path or "#p#" in str(row[0]).lower()}
    else:
        found = {str(row[0]): int(row[1]) for row in rows}
    # The view compares without regard to case.
    own = (path, f"{path}#P#", f"{path}#p#")
    return {
        each.removeprefix(path): number for each, number in found.items() if each == path or each.startswith(own[1:])
    }


_ANY = "\0"
"""Stands for a character in the name of a file that only the server can spell."""


def path_of(connection: Connection, name: TableName) -> str:
    """The table's file, from which InnoDB has its name for it."""
    schema = name.schema or inspect.current_database(connection)
    if not _is_mariadb(connection):
        return f"{_file_name(schema)}/{_file_name(name.name)}"
    encoded = connection.exec_driver_sql(
        "SELECT CAST(CONVERT(%s USING filename) AS BINARY), CAST(CONVERT(%s USING filename) AS BINARY)",
        (schema, name.name),
    ).one()
    return "/".join(part.decode("ascii") for part in encoded)


def _file_name(name: str) -> str:
    """As MySQL spells it, which does not let a client ask."""
    return re.sub(r"[^A-Za-z0-9_]", lambda found: f"@{ord(found[0]):04x}" if found[0].isascii() else _ANY, name)


def exist(connection: Connection, ids: Iterable[int]) -> bool:
    """Is there a table of one of these numbers, under whatever name?"""
    numbers = ", ".join(str(int(number)) for number in ids)
    found = connection.exec_driver_sql(
        f"SELECT 1 FROM information_schema.{_views(connection)[0]} WHERE TABLE_ID IN ({numbers}) LIMIT 1"
    )
    return found.first() is not None


def _is_mariadb(connection: Connection) -> bool:
    return bool(getattr(connection.dialect, "is_mariadb", False))


def _views(connection: Connection) -> tuple[str, str]:
    """InnoDB's tables, and its files."""
    if _is_mariadb(connection):
        return "INNODB_SYS_TABLES", "INNODB_SYS_TABLESPACES"
    return "INNODB_TABLES", "INNODB_TABLESPACES"
