"""Can another session hold a row of a table now? TiDB's answer, for a DELETE that cannot refuse to wait for one.

TiDB lists the transactions of all its servers, each with the tables that it has touched, whether it holds locks or not.
Two kinds do not say which: one that has only begun, and all of them while metadata locks are off. A row that a foreign
key points at is locked by statements on the other table, which name that one alone.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.mysql import tidb_jobs
from lapse.model.table import Table

Quiet = Callable[[Connection], bool]
"""True where no session but those of this process has a transaction that may have locked a row of the table."""


def quiet(connection: Connection, table: Table, own: set[int]) -> Quiet | None:
    """`own` are the sessions of this process, whose tasks never work on the same rows. None for an account that would
    not see the transactions of others."""
    number = tidb_jobs.table_id(connection, table.name.whole)
    if number is None or not _sees_others(connection):
        return None
    among = (
        "" if table.referenced_by else f" AND (RELATED_TABLE_IDS = '' OR find_in_set('{number}', RELATED_TABLE_IDS))"
    )

    def is_quiet(connection: Connection) -> bool:
        mine = ", ".join(map(str, sorted(own.copy())))
        sql = f"SELECT 1 FROM information_schema.CLUSTER_TIDB_TRX WHERE SESSION_ID NOT IN ({mine}){among} LIMIT 1"
        try:
            return connection.exec_driver_sql(sql).first() is None
        except DBAPIError:
            if connection.invalidated:
                raise
            return False

    return is_quiet


def _sees_others(connection: Connection) -> bool:
    """Has this account the privilege PROCESS, by a role or by itself? Without it the list is short, and this one is
    refused."""
    try:
        connection.exec_driver_sql("SELECT 1 FROM information_schema.DATA_LOCK_WAITS LIMIT 1").first()
    except DBAPIError:
        if connection.invalidated:
            raise
        return False
    return True
