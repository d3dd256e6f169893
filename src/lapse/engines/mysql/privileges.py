"""What the account of a worker lacks, with the GRANT that mends it."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from lapse.engines.base import Advice, Declared
from lapse.engines.mysql import inspect, parts
from lapse.engines.mysql.names import qualified, quote
from lapse.model.table import TableName

_ON_TABLE = ("SELECT", "DELETE")
_ON_CATALOG = ("SELECT", "INSERT", "UPDATE", "DELETE")


def lacking(connection: Connection, declared: Declared, *, binlog_privilege: str | None) -> list[Advice]:
    """Declaring a policy takes more (ALTER, TRIGGER, CREATE VIEW); a worker never declares.

    `binlog_privilege` is what keeping deletes out of the binary log takes, where that is wanted.
    """
    if connection.exec_driver_sql("SELECT CURRENT_ROLE()").scalar() not in (None, "NONE"):
        # What a role gives cannot be told from these views.
        return []
    user, host = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()).rsplit("@", 1)
    grantee, account = f"'{user}'@'{host}'", f"{quote(user)}@{quote(host)}"
    found = []
    wanted = [*_ON_TABLE, *(("ALTER", "DROP") if declared.policy.partition_drop else ())]
    name = declared.table.name
    schema = name.schema or inspect.current_database(connection)
    missing = _missing(connection, grantee, schema, name.name, wanted)
    if missing:
        found.append(_advice(missing, qualified(TableName(name.name, schema)), account))
    own = inspect.current_database(connection)
    missing = _missing(connection, grantee, own, "lapse_task", _ON_CATALOG)
    if missing:
        found.append(_advice(missing, f"{quote(own)}.*", account))
    if binlog_privilege and len(_missing(connection, grantee, None, None, (binlog_privilege, "SUPER"))) == 2:
        found.append(
            Advice(
                text=f"{account} may not keep deletes out of the binary log, as lapse_binlog=off in the URL asks",
                statement=f"GRANT {binlog_privilege} ON *.* TO {account};",
            )
        )
    if parts.is_native(connection, declared.table) and _missing(connection, grantee, None, None, ("SUPER",)):
        found.append(
            Advice(
                text=f"{account} may not start a compaction, so expired rows leave their files when MyRocks likes",
                statement=f"GRANT SUPER ON *.* TO {account};",
            )
        )
    return found


def _advice(missing: list[str], where: str, account: str) -> Advice:
    return Advice(
        text=f"{account} lacks {', '.join(missing)} on {where}",
        statement=f"GRANT {', '.join(missing)} ON {where} TO {account};",
    )


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
