"""What TiDB tells about its own TTL: which jobs it has run, which is running, and in which zone it reads times."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.engines.mysql import tidb
from lapse.engines.mysql.names import qualified
from lapse.engines.mysql.tidb import Report, Ttl
from lapse.model.table import TableName

TABLES = ("tidb_ttl_table_status", "tidb_ttl_job_history")
"""In the schema mysql: who watches TiDB's jobs reads them."""
CATALOG_TABLE = TableName("lapse_meta")


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeJob:
    """`report` is None as long as it runs."""

    id: str
    report: Report | None


def read(connection: Connection, name: TableName) -> Ttl | None:
    row = connection.exec_driver_sql(f"SHOW CREATE TABLE {qualified(name.whole)}").one()
    return tidb.read(str(row[1]))


def table_id(connection: Connection, name: TableName) -> int | None:
    """Another one after DROP and CREATE, and after TRUNCATE."""
    found = connection.exec_driver_sql(
        "SELECT TIDB_TABLE_ID FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = coalesce(%s, DATABASE()) AND TABLE_NAME = %s",
        (name.schema, name.name),
    ).scalar()
    return None if found is None else int(found)


def incarnation(connection: Connection) -> str:
    """A catalog that was restored has another number and another time."""
    row = connection.exec_driver_sql(
        "SELECT DATABASE(), TIDB_TABLE_ID, CREATE_TIME FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s",
        (CATALOG_TABLE.name,),
    ).first()
    return "/".join(map(str, row)) if row is not None else ""


def newest(connection: Connection, table: int) -> NativeJob | None:
    """The last job of a table, as its number says. TiDB keeps ninety days of them."""
    row = connection.exec_driver_sql(
        "SELECT job_id, status, summary_text, expired_rows, deleted_rows, error_delete_rows, year(finish_time) < 1980"
        " FROM mysql.tidb_ttl_job_history WHERE table_id = %s ORDER BY create_time DESC LIMIT 1",
        (table,),
    ).first()
    if row is None:
        return None
    job, status, summary, expired, deleted, errors, unfinished = row
    runs = bool(unfinished) or str(status).lower() == "running"
    return NativeJob(id=str(job), report=None if runs else tidb.report(summary, expired, deleted, errors))


def served(connection: Connection) -> list[TableName]:
    """Tables of this database that TiDB has had a job for, which it has seconds after TTL was switched on."""
    rows = connection.exec_driver_sql(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TIDB_TABLE_ID IN"
        " (SELECT parent_table_id FROM mysql.tidb_ttl_table_status) ORDER BY TABLE_NAME"
    )
    return [TableName(str(row[0])) for row in rows]


def counters(connection: Connection) -> dict[str, int]:
    """Of the ninety days that TiDB keeps, for all databases."""
    jobs, rows = connection.exec_driver_sql(
        "SELECT count(*), coalesce(sum(deleted_rows), 0) FROM mysql.tidb_ttl_job_history"
    ).one()
    return {"tidb_ttl_jobs": int(jobs), "tidb_ttl_rows_sent_to_delete": int(rows)}


def is_switched_on(connection: Connection) -> bool:
    return bool(connection.exec_driver_sql("SELECT @@global.tidb_ttl_job_enable").scalar())


def zone(connection: Connection) -> str:
    """In which TiDB reads DATE and DATETIME."""
    own, system = connection.exec_driver_sql("SELECT @@global.time_zone, @@global.system_time_zone").one()
    return str(system if str(own).upper() == "SYSTEM" else own)
