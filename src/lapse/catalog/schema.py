"""Lapse's own tables, defined once for all engines.

Instants are stored in UTC. A physical table is a plain table or one leaf partition; `lapse_table` has a row for each.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
)
from sqlalchemy.event import listen

from lapse.model.ledger_keys import SECRET_BYTES

VERSION = 12
"""Grows with every change of these tables; see `migrations`."""

LARGEST_ID = 2**63 - 1
NAME_LENGTH = 255
WORD_LENGTH = 64


class Instant(TypeDecorator[datetime]):
    """An aware datetime, kept as UTC."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects.mysql import DATETIME

            return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


_Long = Text().with_variant(Text(2**24), "mysql", "mariadb")
"""Other than MySQL's TEXT, as long as what two columns of texts come to, with every character escaped."""
_Bytes = LargeBinary().with_variant(LargeBinary(2**24 - 1), "mysql", "mariadb")
_Id = BigInteger().with_variant(Integer, "sqlite")

_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_comment": "made by Lapse",
}
"""Whatever the database's defaults are: rows and catalog commit together, and names that differ in case differ. The
comment tells tables that an interrupted installation has left from those of the user's."""

metadata = MetaData()

meta = Table(
    "lapse_meta",
    metadata,
    Column("name", String(WORD_LENGTH), primary_key=True),
    Column("value", Text, nullable=False),
)

policy = Table(
    "lapse_policy",
    metadata,
    Column("policy_id", _Id, primary_key=True, autoincrement=True),
    Column("schema_name", String(NAME_LENGTH), nullable=False),
    Column("table_name", String(NAME_LENGTH), nullable=False),
    Column("version", Integer, nullable=False),
    Column("options", Text, nullable=False),
    Column("reloptions", Text, nullable=False),
    Column("recurrence", String(NAME_LENGTH), nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("source", String(WORD_LENGTH), nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("cleared_at", Instant),
    Column("held", Text),
    Column("armed", Text),
    # `suspended` in the code. Renaming a stored column fails on SQLite wherever a view of the user's is broken.
    Column("disarmed", String(WORD_LENGTH)),
    Column("grace_until", Instant),
    Column("declared_by", String(NAME_LENGTH)),
    Column("source_text", Text),
    Column("holds", Text),
    Column("hold_version", Integer, nullable=False, server_default="0"),
    UniqueConstraint("schema_name", "table_name", name="lapse_policy_of_table"),
    sqlite_autoincrement=True,
)

hold = Table(
    "lapse_hold",
    metadata,
    Column("hold_id", _Id, primary_key=True, autoincrement=True),
    Column("schema_name", String(NAME_LENGTH), nullable=False),
    Column("table_name", String(NAME_LENGTH), nullable=False),
    Column("expression", Text),
    Column("until_at", Instant),
    Column("reason", Text),
    Column("placed_at", Instant, nullable=False),
    Column("placed_by", String(NAME_LENGTH)),
    Column("released_at", Instant),
    Column("released_by", String(NAME_LENGTH)),
    sqlite_autoincrement=True,
)

archive_file = Table(
    "lapse_archive_file",
    metadata,
    Column("file_id", _Id, primary_key=True, autoincrement=True),
    Column("schema_name", String(NAME_LENGTH), nullable=False),
    Column("table_name", String(NAME_LENGTH), nullable=False),
    Column("outbox", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("path", Text),
    Column("row_count", BigInteger, nullable=False, server_default="0"),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("digest", String(NAME_LENGTH)),
    Column("first_at", Instant),
    Column("last_at", Instant),
    Column("state", String(WORD_LENGTH), nullable=False),
    Column("begun_at", Instant, nullable=False),
    Index("lapse_archive_file_by_job", "job_id"),
    sqlite_autoincrement=True,
)

policy_version = Table(
    "lapse_policy_version",
    metadata,
    Column("policy_id", _Id, primary_key=True, autoincrement=False),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("options", Text, nullable=False),
    Column("changed_at", Instant, nullable=False),
)

table = Table(
    "lapse_table",
    metadata,
    Column("table_id", _Id, primary_key=True, autoincrement=True),
    Column("policy_id", _Id, nullable=False),
    Column("partition_name", String(NAME_LENGTH), nullable=False),
    Column("partition_schema", String(NAME_LENGTH), nullable=False, server_default=""),
    Column("next_run_at", Instant),
    Column("clean_at", Instant),
    Column("bounds", String(WORD_LENGTH)),
    Column("statistics", Text),
    # `blocked_reason` in the code.
    Column("trouble", Text),
    Column("blocked", String(WORD_LENGTH)),
    Column("blocked_since", Instant),
    Column("failures", Integer, nullable=False, server_default="0"),
    UniqueConstraint("policy_id", "partition_schema", "partition_name", name="lapse_table_of_policy"),
    Index("lapse_table_by_next_run", "next_run_at"),
    sqlite_autoincrement=True,
)

job = Table(
    "lapse_job",
    metadata,
    Column("job_id", _Id, primary_key=True, autoincrement=True),
    Column("table_id", _Id, nullable=False),
    Column("active_table_id", _Id, unique=True),
    Column("policy_id", _Id, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("schema_name", String(NAME_LENGTH), nullable=False),
    Column("table_name", String(NAME_LENGTH), nullable=False),
    Column("partition_name", String(NAME_LENGTH), nullable=False),
    Column("partition_schema", String(NAME_LENGTH), nullable=False, server_default=""),
    Column("cutoff", Instant, nullable=False),
    Column("status", String(WORD_LENGTH), nullable=False),
    Column("control", String(WORD_LENGTH)),
    Column("reason", Text),
    Column("path_kind", String(WORD_LENGTH), nullable=False),
    Column("path_index", String(NAME_LENGTH)),
    Column("path_evidence", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("started_at", Instant),
    Column("finished_at", Instant),
    Column("changed_at", Instant, nullable=False),
    Column("owner_id", String(NAME_LENGTH)),
    Column("tasks_total", Integer, nullable=False),
    Column("behind", Float, nullable=False, default=0.0),
    Column("selected", BigInteger, nullable=False, default=0),
    Column("deleted", BigInteger, nullable=False, default=0),
    Column("held", BigInteger, nullable=False, default=0),
    Column("skipped", BigInteger, nullable=False, default=0),
    Column("errors", BigInteger, nullable=False, default=0),
    Column("batches", BigInteger, nullable=False, default=0),
    Column("summary", Text),
    Column("hold_version", Integer, nullable=False, server_default="0"),
    Column("archive", Text),
    Column("restored", BigInteger, nullable=False, server_default="0"),
    Column("ledger_keys", Boolean, nullable=False, server_default=false()),
    Index("lapse_job_by_table", "table_id", "job_id"),
    Index("lapse_job_by_end", "finished_at"),
    sqlite_autoincrement=True,
)

task = Table(
    "lapse_task",
    metadata,
    Column("task_id", _Id, primary_key=True, autoincrement=True),
    Column("job_id", _Id, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("range_start", Text),
    Column("range_end", Text),
    Column("position", Text),
    Column("sweep", Integer, nullable=False, default=0),
    Column("status", String(WORD_LENGTH), nullable=False),
    Column("owner_id", String(NAME_LENGTH)),
    Column("heartbeat_at", Instant),
    Column("fence", Integer, nullable=False, default=0),
    Column("selected", BigInteger, nullable=False, default=0),
    Column("deleted", BigInteger, nullable=False, default=0),
    Column("held", BigInteger, nullable=False, default=0),
    Column("skipped", BigInteger, nullable=False, default=0),
    Column("errors", BigInteger, nullable=False, default=0),
    Column("batches", BigInteger, nullable=False, default=0),
    Column("worked_seconds", Float, nullable=False, default=0.0),
    Column("locked_seconds", Float, nullable=False, default=0.0),
    Column("lasted_seconds", Float, nullable=False, default=0.0),
    Column("waited_seconds", Float, nullable=False, default=0.0),
    Column("pause_reason", Text),
    Column("waits", Text),
    Column("last_error", Text),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("not_before", Instant),
    UniqueConstraint("job_id", "ordinal", name="lapse_task_of_job"),
    sqlite_autoincrement=True,
)

leaving = Table(
    "lapse_leaving",
    metadata,
    Column("relation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schema_name", String(NAME_LENGTH), nullable=False),
    Column("relation_name", String(NAME_LENGTH), nullable=False),
    Column("policy_id", _Id, nullable=False),
    Column("parent_id", BigInteger, nullable=False),
    Column("bound", Text, nullable=False),
    Column("began_at", Instant, nullable=False),
)
"""Partitions that jobs have begun to detach and not yet dropped, by the database's own ids.

One that was renamed since is left alone: ids are used again, and a person may want to keep it.
"""

setting = Table(
    "lapse_setting",
    metadata,
    Column("name", String(WORD_LENGTH), primary_key=True),
    Column("value", Text, nullable=False),
    Column("changed_at", Instant, nullable=False),
)

worker = Table(
    "lapse_worker",
    metadata,
    Column("worker_id", String(NAME_LENGTH), primary_key=True),
    Column("address", String(NAME_LENGTH), nullable=False),
    Column("version", String(WORD_LENGTH), nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("heartbeat_at", Instant, nullable=False),
    Column("state", Text, nullable=False),
)

event = Table(
    "lapse_event",
    metadata,
    Column("event_id", String(WORD_LENGTH), primary_key=True),
    Column("open_key", String(NAME_LENGTH), unique=True),
    Column("kind", String(WORD_LENGTH), nullable=False),
    Column("policy_id", _Id),
    Column("table_name", Text),
    Column("code", String(WORD_LENGTH)),
    Column("reason", Text, nullable=False),
    Column("began_at", Instant, nullable=False),
    Column("cleared_at", Instant),
)
"""What people are told about; one that lasts has its key in `open_key`."""

notice = Table(
    "lapse_notice",
    metadata,
    Column("event_id", String(WORD_LENGTH), primary_key=True),
    Column("state", String(WORD_LENGTH), primary_key=True),
    Column("receiver", String(WORD_LENGTH), primary_key=True),
    Column("created_at", Instant, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("not_before", Instant, nullable=False),
    Column("sent_at", Instant),
    Column("last_error", Text),
)
"""One row per message and receiver. Where receivers are is known to workers alone, never to the database."""

ledger = Table(
    "lapse_ledger",
    metadata,
    Column("entry_id", _Id, primary_key=True, autoincrement=True),
    Column("sequence", _Id, unique=True),
    Column("recorded_at", String(WORD_LENGTH), nullable=False),
    Column("kind", String(WORD_LENGTH), nullable=False),
    Column("schema_name", String(NAME_LENGTH)),
    Column("table_name", String(NAME_LENGTH)),
    Column("role_name", String(NAME_LENGTH)),
    Column("user_name", String(NAME_LENGTH), nullable=False),
    Column("host", String(NAME_LENGTH), nullable=False),
    Column("program", String(NAME_LENGTH), nullable=False),
    Column("before_json", _Long),
    Column("after_json", _Long),
    Column("previous", String(WORD_LENGTH)),
    Column("hash", String(WORD_LENGTH)),
    Index("lapse_ledger_by_table", "table_name", "entry_id"),
    Index("lapse_ledger_by_time", "recorded_at"),
    sqlite_autoincrement=True,
)
"""Entries are added, sealed once and never changed. Everything that a hash covers is text, stored as it was hashed."""

ledger_key = Table(
    "lapse_ledger_key",
    metadata,
    Column("batch_id", _Id, primary_key=True, autoincrement=True),
    Column("job_id", BigInteger, nullable=False),
    Column("schema_name", String(NAME_LENGTH), nullable=False),
    Column("table_name", String(NAME_LENGTH), nullable=False),
    Column("secret_id", BigInteger, nullable=False),
    Column("deleted_at", String(WORD_LENGTH), nullable=False),
    Column("row_count", Integer, nullable=False),
    Column("digest", String(WORD_LENGTH), nullable=False),
    Column("hashes", _Bytes, nullable=False),
    Index("lapse_ledger_key_by_job", "job_id"),
    Index("lapse_ledger_key_by_table", "table_name", "batch_id"),
    sqlite_autoincrement=True,
)
"""One row per batch of a job whose policy has `ttl_ledger_keys`; `hashes` are those of its keys, end to end."""

secret = Table(
    "lapse_secret",
    metadata,
    Column("secret_id", _Id, primary_key=True, autoincrement=True),
    Column("role_name", String(WORD_LENGTH), nullable=False),
    Column("schema_name", String(NAME_LENGTH), nullable=False),
    Column("table_name", String(NAME_LENGTH), nullable=False),
    Column("value", LargeBinary(SECRET_BYTES), nullable=False),
    UniqueConstraint("table_name", "schema_name", "role_name", name="lapse_secret_of_table"),
    sqlite_autoincrement=True,
)
"""What keys of a table are hashed with. On PostgreSQL each belongs to the table's owner, `role_name`, and row security
shows it to no role that cannot act for that one; elsewhere `role_name` is empty."""

rate = Table(
    "lapse_rate",
    metadata,
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("free_at_us", BigInteger, nullable=False),
)
"""One row per rate limit: the microsecond of the epoch from which the next row may be taken."""


def _set_options(created: Table, connection: Connection, **_: object) -> None:
    # Options in the definitions would make SQLAlchemy load MySQL's dialect in every process, whatever the database is.
    if connection.dialect.name in ("mysql", "mariadb"):
        created.kwargs.update(_MYSQL)


_HIDE_SECRETS = (
    DDL("ALTER TABLE %(fullname)s ENABLE ROW LEVEL SECURITY"),  # type: ignore[no-untyped-call]
    # A role that is gone is the role of no session, and not an error.
    DDL(  # type: ignore[no-untyped-call]
        "CREATE POLICY lapse_secret_of_owner ON %(fullname)s USING (pg_catalog.pg_has_role("
        "pg_catalog.to_regrole(pg_catalog.quote_ident(role_name))::pg_catalog.oid, 'USAGE'))"
    ),
)
"""In the transaction that makes the table: no role can have read a secret before."""

for _each in metadata.tables.values():
    listen(_each, "before_create", _set_options)
for _statement in _HIDE_SECRETS:
    listen(secret, "after_create", _statement.execute_if(dialect="postgresql"))

VIEWS = {
    "lapse_schedules": """
        SELECT t.table_id AS id,
               'row-level-ttl-' || p.table_name AS label,
               CASE WHEN p.paused THEN 'PAUSED' ELSE 'ACTIVE' END AS schedule_status,
               t.next_run_at AS next_run,
               t.trouble AS state,
               p.recurrence AS recurrence,
               (SELECT count(*) FROM {job} j WHERE j.active_table_id = t.table_id) AS jobsrunning,
               p.created_at AS created,
               p.schema_name AS schema_name,
               p.table_name AS table_name,
               t.partition_name AS partition_name
          FROM {table} t JOIN {policy} p ON p.policy_id = t.policy_id""",
    "lapse_jobs": """
        SELECT j.job_id AS job_id,
               'ROW LEVEL TTL' AS job_type,
               'ttl for ' || j.table_name AS description,
               j.status AS status,
               j.reason AS running_status,
               j.created_at AS created,
               j.started_at AS started,
               j.finished_at AS finished,
               CASE WHEN j.finished_at IS NOT NULL OR j.tasks_total = 0 THEN 1.0
                    ELSE (SELECT count(*) FROM {task} k WHERE k.job_id = j.job_id AND k.status = 'finished') * 1.0
                         / j.tasks_total END AS fraction_completed,
               j.schema_name AS schema_name,
               j.table_name AS table_name,
               j.partition_name AS partition_name,
               j.cutoff AS cutoff,
               CASE WHEN j.finished_at IS NOT NULL THEN j.deleted
                    ELSE (SELECT coalesce(sum(k.deleted), 0) FROM {task} k WHERE k.job_id = j.job_id) END AS deleted
          FROM {job} j""",
    "lapse_table_status": """
        SELECT t.table_id AS table_id,
               CASE WHEN t.partition_name = '' THEN t.table_id ELSE t.policy_id END AS parent_table_id,
               t.statistics AS table_statistics,
               l.job_id AS last_job_id,
               l.created_at AS last_job_start_time,
               l.finished_at AS last_job_finish_time,
               l.cutoff AS last_job_ttl_expire,
               l.summary AS last_job_summary,
               c.job_id AS current_job_id,
               c.owner_id AS current_job_owner_id,
               w.address AS current_job_owner_addr,
               w.heartbeat_at AS current_job_owner_hb_time,
               c.created_at AS current_job_start_time,
               c.cutoff AS current_job_ttl_expire,
               c.reason AS current_job_state,
               c.status AS current_job_status,
               c.changed_at AS current_job_status_update_time
          FROM {table} t
          LEFT JOIN (SELECT table_id, max(job_id) AS job_id FROM {job} WHERE status = 'finished'
                      GROUP BY table_id) f ON f.table_id = t.table_id
          LEFT JOIN {job} l ON l.job_id = f.job_id
          LEFT JOIN (SELECT table_id, max(job_id) AS job_id FROM {job} WHERE status <> 'finished'
                      GROUP BY table_id) g ON g.table_id = t.table_id AND g.job_id > coalesce(f.job_id, 0)
          LEFT JOIN {job} c ON c.job_id = g.job_id
          LEFT JOIN {worker} w ON w.worker_id = c.owner_id""",
    "lapse_reloptions": "SELECT p.table_name AS relname, p.reloptions AS reloptions FROM {policy} p",
}
"""Read-only views; the braces are put in by `migrations`. `lapse_table_status` has the TiDB proposal's columns."""
