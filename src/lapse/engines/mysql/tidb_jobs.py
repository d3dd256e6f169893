"""What TiDB tells about its own TTL: which jobs it has run, which is running, and in which zone it reads times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from lapse.engines.mysql import tidb
from lapse.engines.mysql.names import qualified
from lapse.engines.mysql.tidb import Ending, Report, Ttl
from lapse.model.job import Counts, Job, JobStatus, Path, PathKind
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


def incarnation(connection: Connection) -> tuple[str, datetime]:
    """A catalog that was restored has another number and another time. With it, the server's time."""
    row = connection.exec_driver_sql(
        "SELECT utc_timestamp(6), DATABASE(), TIDB_TABLE_ID, CREATE_TIME FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s",
        (CATALOG_TABLE.name,),
    ).first()
    now, *named = row or (connection.exec_driver_sql("SELECT utc_timestamp(6)").scalar_one(),)
    return "/".join(map(str, named)), now.replace(tzinfo=UTC)


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


_STATUSES = {
    Ending.FINISHED: JobStatus.FINISHED,
    Ending.CANCELLED: JobStatus.CANCELLED,
    Ending.FAILED: JobStatus.FAILED,
}


def recent(connection: Connection, name: TableName | None, limit: int) -> list[Job]:
    """TiDB's own jobs in this database, newest first. Its times are those of the session, which is in UTC."""
    only = "" if name is None else " AND table_name = %s"
    rows = connection.exec_driver_sql(
        "SELECT job_id, table_name, nullif(partition_name, '') AS part, create_time, ttl_expire,"
        " if(year(finish_time) < 1980, NULL, finish_time) AS finish_time, summary_text, expired_rows, deleted_rows,"
        f" error_delete_rows FROM mysql.tidb_ttl_job_history WHERE table_schema = DATABASE(){only}"
        f" ORDER BY create_time DESC LIMIT {int(limit)}",
        None if name is None else (name.name,),
    ).mappings()
    return [_job(dict(row)) for row in rows]


def _job(row: Mapping[str, Any]) -> Job:
    found = tidb.report(row["summary_text"], row["expired_rows"], row["deleted_rows"], row["error_delete_rows"])
    begun, ended = row["create_time"].replace(tzinfo=UTC), row["finish_time"]
    reason = f"TiDB: {found.message}; an unknown number of rows is gone" if found.message else None
    return Job(
        id=0,
        table_id=0,
        policy_id=0,
        policy_version=0,
        native_id=str(row["job_id"]),
        table=TableName(str(row["table_name"]), None, row["part"]),
        cutoff=(row["ttl_expire"] or row["create_time"]).replace(tzinfo=UTC),
        status=JobStatus.RUNNING if ended is None else _STATUSES[found.ending],
        control=None,
        reason=reason,
        fingerprint="",
        created_at=begun,
        started_at=begun,
        finished_at=None if ended is None else ended.replace(tzinfo=UTC),
        path=Path(kind=PathKind.NATIVE, evidence="a job of TiDB's own; its times are those of a tick of ten seconds"),
        tasks_total=1,
        tasks_finished=int(ended is not None),
        counts=Counts(selected=found.expired, deleted=found.deleted, held=found.errors),
    )


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
