"""What the account of a worker lacks, with the GRANT that gives it, and what it has beyond that."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.archive import archive_of
from lapse.engines.base import Advice, BoundPolicy
from lapse.engines.mysql import definers, inspect, tidb_jobs
from lapse.engines.mysql.names import qualified, quote
from lapse.model.archive import file_url
from lapse.model.table import CATALOG_TABLES, MANAGED_COLUMN, REQUEST_TABLE, TableName

_ON_TABLE = ("SELECT", "DELETE")
_ON_CATALOG = ("SELECT", "INSERT", "UPDATE", "DELETE")
_ON_REQUESTS = ("SELECT", "UPDATE", "DELETE")
_OF_DECLARER = ("SELECT", "INSERT", "UPDATE", "ALTER", "CREATE", "TRIGGER")
_OF_INSTALLER = (*_ON_CATALOG, "CREATE", "CREATE VIEW", "DROP", "INDEX")
_OF_DEFINER = ("TRIGGER", "SELECT", "UPDATE")
_ON_DATABASE = frozenset({"SELECT", "LOCK TABLES", "SHOW VIEW"})
_ON_SERVER = frozenset(
    {"USAGE", "PROCESS", "REPLICA MONITOR", "SLAVE MONITOR", "REPLICATION CLIENT", "BINLOG MONITOR", "BINLOG ADMIN"}
    | {"SESSION_VARIABLES_ADMIN", "CONNECTION ADMIN", "SHOW DATABASES"}
)
"""What a worker may be given for a whole database and for the server: nothing that changes a row or a right."""
_RISKY = ("SUPER", "FILE", "CREATE USER", "DROP", "DELETE", "UPDATE")
"""Named first."""


def lacking(connection: Connection, declared: BoundPolicy, *, binlog_privilege: str | None) -> list[Advice]:
    """Declaring a policy takes more (ALTER, TRIGGER, CREATE VIEW); a worker never declares.

    `binlog_privilege` is what keeping deletes out of the binary log takes, where that is wanted.
    """
    known = _account(connection)
    if known is None:
        return []
    grantee, account = known
    found = []
    wanted = [*_ON_TABLE, *(("ALTER", "DROP") if declared.policy.partition_drop else ())]
    if _is_renewed(declared):
        # Who has it not is not shown any trigger, and cannot tell whether rows are still renewed.
        wanted.append("TRIGGER")
    name = declared.table.name
    schema = name.schema or inspect.current_database(connection)
    missing = _missing(connection, grantee, schema, name.name, wanted)
    if missing:
        found.append(_advice(missing, qualified(TableName(name.name, schema)), account))
    place = archive_of(declared)
    if place is not None:
        # TRIGGER shows those that would change what is archived.
        at = place.schema or inspect.current_database(connection)
        exports = ("DELETE",) if file_url(declared.policy.archive or "") else ()
        missing = _missing(connection, grantee, at, place.name, ("SELECT", "INSERT", *exports, "TRIGGER"))
        if missing:
            found.append(_advice(missing, qualified(TableName(place.name, at)), account))
    if declared.policy.partition_drop and _missing(connection, grantee, schema, None, ("LOCK TABLES",)):
        # The server gives this one for whole databases only.
        found.append(_advice(["LOCK TABLES"], f"{quote(schema)}.*", account))
    own = inspect.current_database(connection)
    for table in sorted(CATALOG_TABLES):
        missing = _missing(connection, grantee, own, table, _ON_CATALOG)
        if missing:
            found.append(_advice(missing, qualified(TableName(table, own)), account))
    missing = _missing(connection, grantee, own, REQUEST_TABLE, _ON_REQUESTS)
    if missing and inspect.storage_engine(connection, TableName(REQUEST_TABLE)):
        found.append(_advice(missing, qualified(TableName(REQUEST_TABLE, own)), account))
    if binlog_privilege and len(_missing(connection, grantee, None, None, (binlog_privilege, "SUPER"))) == 2:
        found.append(
            Advice(
                text=f"{account} may not keep deletes out of the binary log, as lapse_binlog=off in the URL asks",
                statement=f"GRANT {binlog_privilege} ON *.* TO {account};",
            )
        )
    return found


def _is_renewed(declared: BoundPolicy) -> bool:
    """Does a trigger renew the managed column? One that the database fills by itself has none."""
    column = declared.table.column(MANAGED_COLUMN)
    return declared.policy.expire_after is not None and not (column is not None and column.generated)


def may_make_procedures(connection: Connection) -> bool:
    known = _account(connection)
    own = inspect.current_database(connection)
    return known is not None and not _missing(connection, known[0], own, None, ("CREATE ROUTINE",))


def lacking_for_compaction(connection: Connection) -> list[Advice]:
    known = _account(connection)
    if known is None or not _missing(connection, known[0], None, None, ("SUPER",)):
        return []
    return [
        Advice(
            text=f"{known[1]} may not start a compaction, so space is freed at MyRocks's next compaction",
            statement=f"GRANT SUPER ON *.* TO {known[1]};",
        )
    ]


def lacking_for_tidb(connection: Connection) -> list[Advice]:
    """TiDB's own jobs are seen in its system tables alone. It is tried: its views tell no rights on single tables."""
    found = []
    for name in tidb_jobs.TABLES:
        try:
            connection.exec_driver_sql(f"SELECT 1 FROM mysql.{name} LIMIT 0")
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            user, host = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()).rsplit("@", 1)
            found.append(_advice(["SELECT"], f"mysql.{name}", f"{quote(user)}@{quote(host)}"))
    return found


def lacking_on_tidb(connection: Connection, name: TableName) -> list[Advice]:
    """What Lapse's own jobs need there, tried as well; nothing is executed."""
    try:
        connection.exec_driver_sql(f"EXPLAIN DELETE FROM {qualified(name)} WHERE 1 = 0")
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        user, host = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()).rsplit("@", 1)
        return [_advice(list(_ON_TABLE), qualified(name), f"{quote(user)}@{quote(host)}")]
    return []


def declarer_grants(connection: Connection, name: TableName) -> str | None:
    """What an account lacks on a table and on Lapse's own, whether or not these can be seen; None where the server does
    not tell."""
    known = _account(connection)
    if known is None:
        return None
    grantee, account = known
    own = inspect.current_database(connection)
    wanted: list[tuple[str, str | None, tuple[str, ...]]] = [(name.schema or own, name.name, _OF_DECLARER)]
    if inspect.storage_engine(connection, TableName("lapse_meta")):
        wanted += [(own, table, _ON_CATALOG) for table in sorted(CATALOG_TABLES)]
    else:
        wanted.append((own, None, _OF_INSTALLER))
    grants = []
    for schema, table, privileges in wanted:
        missing = _missing(connection, grantee, schema, table, privileges)
        if missing:
            where = f"{quote(schema)}.*" if table is None else qualified(TableName(table, schema))
            grants.append(_grant(missing, where, account))
    return " ".join(grants) or None


def lacking_of_definer(connection: Connection, declared: BoundPolicy) -> list[Advice]:
    """The trigger of a managed column runs with the rights of the account that declared the policy."""
    name = declared.table.name
    account = definers.definer(connection, name) if declared.policy.expire_after is not None else None
    if account is None or definers.is_gone(connection, account) or not _sees_grants(connection):
        return []
    user, _, host = account.rpartition("@")
    schema = name.schema or inspect.current_database(connection)
    missing = _missing(connection, f"'{user}'@'{host}'", schema, name.name, _OF_DEFINER) if host else []
    if not missing:
        return []
    where, grantee = qualified(TableName(name.name, schema)), f"{quote(user)}@{quote(host)}"
    return [
        Advice(
            text=f"the trigger that renews rows of {name} runs as {grantee}, which lacks {', '.join(missing)} on it:"
            " updates of the table may fail",
            statement=f"GRANT {', '.join(missing)} ON {where} TO {grantee};",
        )
    ]


def _sees_grants(connection: Connection) -> bool:
    """Of other accounts."""
    try:
        connection.exec_driver_sql("SELECT 1 FROM mysql.user LIMIT 1")
    except DBAPIError:
        return False
    return True


def excess(connection: Connection) -> list[Advice]:
    """A stolen password can do what the account can. Deleting expired rows takes little."""
    known = _account(connection)
    if known is None:
        return []
    grantee, account = known
    rows = connection.exec_driver_sql(
        "SELECT '*.*', PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = %s"
        " UNION ALL SELECT concat(TABLE_SCHEMA, '.*'), PRIVILEGE_TYPE FROM information_schema.SCHEMA_PRIVILEGES"
        " WHERE GRANTEE = %s",
        (grantee, grantee),
    ).all()
    more: dict[str, list[str]] = {}
    for where, privilege in rows:
        if privilege not in _ON_SERVER | _ON_DATABASE:
            more.setdefault(str(where), []).append(str(privilege))
    if not more:
        return []
    what = "; ".join(f"{_some(privileges)} on {where}" for where, privileges in more.items())
    return [
        Advice(
            text=f"{account} may do more than a worker needs: {what}",
            statement="run workers as an account of their own with the GRANTs that `lapse doctor` prints for it",
        )
    ]


def _some(privileges: list[str], most: int = 4) -> str:
    ranked = [*(each for each in _RISKY if each in privileges), *(each for each in privileges if each not in _RISKY)]
    return ", ".join(ranked[:most]) + (f" and {len(ranked) - most} more" if len(ranked) > most else "")


def _account(connection: Connection) -> tuple[str, str] | None:
    """As the server's views name it, and as GRANT does; None under a role, whose rights these views do not tell."""
    if connection.exec_driver_sql("SELECT CURRENT_ROLE()").scalar() not in (None, "NONE"):
        return None
    user, host = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()).rsplit("@", 1)
    return f"'{user}'@'{host}'", f"{quote(user)}@{quote(host)}"


def _advice(missing: list[str], where: str, account: str) -> Advice:
    return Advice(text=f"{account} lacks {', '.join(missing)} on {where}", statement=_grant(missing, where, account))


def _grant(missing: list[str], where: str, account: str) -> str:
    return f"GRANT {', '.join(missing)} ON {where} TO {account};"


def _missing(
    connection: Connection, grantee: str, schema: str | None, table: str | None, wanted: Iterable[str]
) -> list[str]:
    rows = connection.exec_driver_sql(
        "SELECT PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = %s"
        " UNION SELECT PRIVILEGE_TYPE FROM information_schema.SCHEMA_PRIVILEGES"
        " WHERE GRANTEE = %s AND %s LIKE TABLE_SCHEMA"
        " UNION SELECT PRIVILEGE_TYPE FROM information_schema.TABLE_PRIVILEGES"
        " WHERE GRANTEE = %s AND TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (grantee, grantee, schema, grantee, schema, table),
    )
    have = {str(row[0]) for row in rows}
    return [privilege for privilege in wanted if privilege not in have]
