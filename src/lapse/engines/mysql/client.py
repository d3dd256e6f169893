"""What people ask for from the mariadb and mysql programs: procedures and views beside the catalog, and their requests.

Tables have no owners there. An account may ask for a table on which it has all rights, and a request is believed only
if every account that could have forged it has these rights, too: both are read from the server's grant tables when a
worker does what was asked.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Advice, ClientRequest
from lapse.engines.mysql import errors, grants, inspect, privileges
from lapse.engines.mysql.grants import Account
from lapse.engines.mysql.names import live_view, qualified, quote
from lapse.errors import NotPermitted
from lapse.model.table import REQUEST_TABLE, TableName

VERSION = 1
"""Grows with every change of `client.sql`."""
MARK = "Made by Lapse."
_TO_INSTALL = ("CREATE", "CREATE VIEW", "DROP", "CREATE ROUTINE", "ALTER ROUTINE")
_LONGEST_ANSWER = 8000
_FREE = "(state = 'waiting' OR (state = 'working' AND claimed_at < utc_timestamp(6) - INTERVAL 5 MINUTE))"


@cache
def _statements() -> tuple[str, ...]:
    text = files("lapse.engines.mysql").joinpath("client.sql").read_text(encoding="utf-8")
    _, _, text = text.partition("\n\n")
    return tuple(each.strip().removesuffix(";") for each in re.split(r";\n\n(?=CREATE )", text))


@cache
def _procedures() -> dict[str, str]:
    """By their names."""
    return {found[1]: each for each in _statements() if (found := re.match(r"CREATE PROCEDURE (\w+)", each))}


@cache
def _views() -> dict[str, str]:
    return {found[1]: each for each in _statements() if (found := re.match(r"CREATE OR REPLACE .* VIEW (\w+)", each))}


def install(connection: Connection, *, replaces: bool) -> bool:
    """A procedure that is as it should be is left alone: rights on it stay only where the server `replaces` it."""
    if _taken(connection):
        return False
    try:
        connection.exec_driver_sql(_statements()[0])
        present = _bodies(connection)
        for name, statement in _procedures().items():
            if name not in present or present[name] not in statement:
                _make(connection, name, statement, replaces=replaces)
        for statement in _views().values():
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if errors.is_denied(error):
            return False
        raise
    return True


def _make(connection: Connection, name: str, statement: str, *, replaces: bool) -> None:
    if replaces:
        connection.exec_driver_sql(statement.replace("CREATE PROCEDURE", "CREATE OR REPLACE PROCEDURE", 1))
        return
    connection.exec_driver_sql(f"DROP PROCEDURE IF EXISTS {name}")
    connection.exec_driver_sql(statement)


def _bodies(connection: Connection) -> dict[str, str]:
    """Of the procedures that are there and made by this account; one of another account is made anew."""
    found = connection.exec_driver_sql(
        "SELECT ROUTINE_NAME, ROUTINE_DEFINITION FROM information_schema.ROUTINES"
        " WHERE ROUTINE_SCHEMA = DATABASE() AND DEFINER = CURRENT_USER() AND ROUTINE_DEFINITION IS NOT NULL"
    )
    return {inspect.text(name): inspect.text(body) for name, body in found}


def _taken(connection: Connection) -> list[str]:
    """Names of client.sql that something of the user's has."""
    names = (REQUEST_TABLE, *_views())
    found = connection.exec_driver_sql(
        "SELECT t.TABLE_NAME, t.TABLE_COMMENT, v.VIEW_DEFINITION FROM information_schema.TABLES t"
        " LEFT JOIN information_schema.VIEWS v ON v.TABLE_SCHEMA = t.TABLE_SCHEMA AND v.TABLE_NAME = t.TABLE_NAME"
        f" WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME IN ({', '.join('%s' for _ in names)})",
        names,
    )
    theirs = [
        inspect.text(name)
        for name, comment, view in found
        if "lapse_" not in inspect.text(view or "") and inspect.text(comment) != "made by Lapse"
    ]
    routines = connection.exec_driver_sql(
        "SELECT ROUTINE_NAME, ROUTINE_COMMENT FROM information_schema.ROUTINES"
        f" WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME IN ({', '.join('%s' for _ in _procedures())})",
        tuple(_procedures()),
    )
    return [*theirs, *(inspect.text(name) for name, comment in routines if MARK not in inspect.text(comment))]


def remove(connection: Connection) -> None:
    for name in _views():
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
    for name in _procedures():
        connection.exec_driver_sql(f"DROP PROCEDURE IF EXISTS {name}")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {REQUEST_TABLE}")


def missing(connection: Connection) -> list[str]:
    """Procedures that a dump has left out. The server shows them to accounts that may make some, and not to others."""
    if not privileges.may_make_procedures(connection):
        return []
    found = connection.exec_driver_sql(
        "SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE()"
    )
    present = {inspect.text(name) for (name,) in found}
    return sorted(_procedures().keys() - present)


def advice(connection: Connection, role: str) -> Advice:
    taken = _taken(connection)
    if taken:
        return Advice(
            text=f"there is already something named {', '.join(taken)} in this database, which is not Lapse's, so the"
            " procedures for the mariadb and mysql programs are missing",
            statement="rename it, then run `lapse doctor URL` again",
        )
    where = f"{quote(inspect.current_database(connection))}.*"
    return Advice(
        text="the procedures for the mariadb and mysql programs are missing, or those of an older version: this account"
        " may not make them",
        statement=f"GRANT {', '.join(_TO_INSTALL)} ON {where} TO {Account.read(role)};"
        " then run `lapse doctor URL` again",
    )


def requests_sql(connection: Connection) -> str | None:
    """None where the table is missing or locked, or this account may not read it."""
    try:
        connection.exec_driver_sql(f"SELECT state, claimed_at FROM {REQUEST_TABLE} LIMIT 0")
    except DBAPIError as error:
        if errors.is_denied(error) or errors.is_missing(error) or errors.is_lock_wait(error):
            return None
        raise
    return f"SELECT count(*) FROM {REQUEST_TABLE} WHERE {_FREE}"


def waiting(connection: Connection) -> list[ClientRequest]:
    """None where the table is missing, or this account may not read it: `lapse doctor` says so."""
    try:
        found = connection.exec_driver_sql(
            f"SELECT request_id, command, table_name, arguments, requested_by FROM {REQUEST_TABLE}"
            f" WHERE {_FREE} ORDER BY request_id LIMIT 50"
        ).all()
    except DBAPIError as error:
        if errors.is_denied(error) or errors.is_missing(error):
            return []
        raise
    return [
        ClientRequest(
            id=number, command=command, relation=table, arguments=_arguments(text), requested_by=by, requester=by
        )
        for number, command, table, text, by in found
    ]


def _arguments(text: str) -> dict[str, Any]:
    """What no procedure has written is kept as it is, to be refused."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {"unreadable": text}
    return read if isinstance(read, dict) else {"unreadable": text}


def claim(connection: Connection, request: ClientRequest) -> bool:
    """False if another worker was faster."""
    changed = connection.exec_driver_sql(
        f"UPDATE {REQUEST_TABLE} SET state = 'working', claimed_at = utc_timestamp(6)"
        f" WHERE request_id = %s AND {_FREE}",
        (request.id,),
    )
    return changed.rowcount == 1


def finish(connection: Connection, request: ClientRequest, state: str, answer: str) -> None:
    written = answer[:_LONGEST_ANSWER].encode("utf-8", "replace").decode()
    connection.exec_driver_sql(
        f"UPDATE {REQUEST_TABLE} SET state = %s, answer = %s, finished_at = utc_timestamp(6) WHERE request_id = %s",
        (state, written, request.id),
    )
    connection.exec_driver_sql(
        f"DELETE FROM {REQUEST_TABLE} WHERE requested_at < utc_timestamp(6) - INTERVAL 30 DAY"
        " AND state NOT IN ('waiting', 'working')"
    )


def requested_table(
    connection: Connection, request: ClientRequest, known: grants.Grants, role: str
) -> tuple[TableName, str]:
    """The table, if the account that asked has all rights on it now and no account with fewer could have forged it."""
    name = inspect.full_name(connection, TableName(str(request.relation)))
    asked, worker = Account.read(str(request.requested_by)), Account.read(role)
    for other in known.writers():
        if other not in (asked, worker) and known.lacking(other, name.name):
            raise NotPermitted(
                f"{other} may write table {REQUEST_TABLE} and has not all rights on {name}, so it could have asked in"
                f" the name of {asked}",
                hint=f"give {other} rights on single tables: it needs none on {REQUEST_TABLE}; docs/clients.md",
            )
    if asked != worker:
        _require(known, asked, name, grants.OWNER)
        if any("hide" in str(option).lower() for option in dict(request.arguments.get("options") or {})):
            _require(known, asked, live_view(name), ("CREATE VIEW", "DROP"))
    return name, role


def _require(known: grants.Grants, asked: Account, name: TableName, wanted: tuple[str, ...]) -> None:
    missing = known.lacking(asked, name.name, wanted)
    if missing:
        raise NotPermitted(
            f"{asked} has not the rights on {name} that asking takes: {', '.join(missing)} are not given to it by name",
            hint=f"GRANT {', '.join(missing)} ON {qualified(TableName(name.name, known.database))} TO {asked};",
        )
