"""Every SQL statement printed in the design documents of CockroachDB, TiDB and MyRocks that Lapse answers to.

`sql` is the statement as printed. `engines` are those on which it is valid apart from its TTL part, so that suites can
run it there as it stands, after `setup`; both go through Lapse. `kind` is the statement that the parser makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL = ("sqlite", "postgres", "mysql")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceStatement:
    """`refused` tells why running it as printed must fail; `requires` names a storage engine it asks for."""

    name: str
    sql: str
    kind: str
    engines: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    refused: str | None = None
    requires: str | None = None


_EVENTS = "CREATE TABLE events (id INT PRIMARY KEY, description TEXT)"
_EVENTS_TTL = f"{_EVENTS} WITH (ttl_expire_after = '15 minutes')"
_TBL = "CREATE TABLE tbl (id INT PRIMARY KEY, value TEXT, other_column TIMESTAMP)"
_TBL_TTL = f"{_TBL} WITH (ttl_expire_after = '5 minutes')"
_T1 = "CREATE TABLE t1 (id int PRIMARY KEY, created_at TIMESTAMP)"
_T1_TTL = f"{_T1} TTL = `created_at` + INTERVAL 3 MONTH"

_DOCS = [
    ReferenceStatement(
        name="docs-create-expire-after",
        kind="CreateTable",
        sql="""CREATE TABLE events (
  id UUID PRIMARY KEY default gen_random_uuid(),
  description TEXT,
  inserted_at TIMESTAMP default current_timestamp()
) WITH (ttl_expire_after = '3 minutes');""",
    ),
    ReferenceStatement(
        name="docs-show-create-table",
        kind="ShowCreateTable",
        sql="SHOW CREATE TABLE events;",
        engines=ALL,
        setup=(_EVENTS_TTL,),
    ),
    ReferenceStatement(
        name="docs-shown-create-statement",
        kind="CreateTable",
        sql="""CREATE TABLE public.events (
    id UUID NOT NULL DEFAULT gen_random_uuid(),
    description STRING NULL,
    inserted_at TIMESTAMP NULL DEFAULT current_timestamp():::TIMESTAMP,
    crdb_internal_expiration TIMESTAMPTZ NOT VISIBLE NOT NULL DEFAULT current_timestamp():::TIMESTAMPTZ + """
        """'00:03:00':::INTERVAL ON UPDATE current_timestamp():::TIMESTAMPTZ + '00:03:00':::INTERVAL,
    CONSTRAINT events_pkey PRIMARY KEY (id ASC)
) WITH (ttl = 'on', ttl_automatic_column = 'on', ttl_expire_after = '00:03:00':::INTERVAL)""",
    ),
    ReferenceStatement(
        name="docs-create-fifteen-minutes",
        kind="CreateTable",
        sql="""CREATE TABLE events (
  id UUID PRIMARY KEY,
  description TEXT
) WITH (ttl_expire_after = '15 minutes');""",
        # The type UUID is MariaDB's from 10.7; MySQL has none.
        engines=ALL,
    ),
    ReferenceStatement(
        name="docs-alter-set",
        kind="AlterTable",
        sql="ALTER TABLE events SET (ttl_expire_after = '15 minutes');",
        engines=ALL,
        setup=(_EVENTS,),
    ),
    ReferenceStatement(
        name="docs-show-schedules",
        kind="CatalogQuery",
        sql="SELECT * FROM [SHOW SCHEDULES] WHERE label LIKE 'row-level-ttl-%';",
        engines=ALL,
        setup=(_EVENTS_TTL,),
    ),
    ReferenceStatement(
        name="docs-reloptions",
        kind="CatalogQuery",
        sql="SELECT relname, reloptions FROM pg_class WHERE relname = 'events';",
        engines=ALL,
        setup=(_EVENTS_TTL,),
    ),
    ReferenceStatement(
        name="docs-create-job-cron",
        kind="CreateTable",
        sql="""CREATE TABLE tbl (
  id UUID PRIMARY KEY default gen_random_uuid(),
  value TEXT
) WITH (ttl_job_cron = '@daily')""",
        engines=("postgres",),
        refused="it does not say when rows expire",
    ),
    ReferenceStatement(
        name="docs-alter-job-cron",
        kind="AlterTable",
        sql="ALTER TABLE tbl SET (ttl_job_cron = '@weekly')",
        engines=ALL,
        setup=(_TBL_TTL,),
    ),
    ReferenceStatement(
        name="docs-reset-job-cron",
        kind="AlterTable",
        sql="ALTER TABLE tbl RESET (ttl_job_cron)",
        engines=ALL,
        setup=(_TBL_TTL, "ALTER TABLE tbl SET (ttl_job_cron = '@weekly')"),
    ),
    ReferenceStatement(
        name="docs-naive-delete",
        kind="PassThrough",
        sql="DELETE FROM foo WHERE bar = 'baz'",
        engines=ALL,
        setup=("CREATE TABLE foo (bar VARCHAR(10))",),
    ),
]

_EXPRESSION_COLUMNS = """   id INT PRIMARY KEY,
   text TEXT,
   expiration TIMESTAMPTZ,
   should_delete BOOL"""

_RFC = [
    ReferenceStatement(
        name="rfc-create-expire-after-summary",
        kind="CreateTable",
        sql="""-- Using a database-managed column for TTL expiration.
CREATE TABLE tbl (
   id INT PRIMARY KEY,
   text TEXT
) WITH (ttl_expire_after = '5 minutes')""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="rfc-create-expression-summary",
        kind="CreateTable",
        # As printed, with a comma behind the last column, which no engine takes.
        sql=f"""-- Using custom logic for TTL expiration.
CREATE TABLE tbl (
{_EXPRESSION_COLUMNS},
) WITH (ttl_expiration_expression = 'if(should_delete, expiration, NULL)');""",
    ),
    ReferenceStatement(
        name="rfc-create-expression-without-the-last-comma",
        kind="CreateTable",
        sql=f"""CREATE TABLE tbl (
{_EXPRESSION_COLUMNS}
) WITH (ttl_expiration_expression = 'if(should_delete, expiration, NULL)');""",
        engines=("sqlite", "postgres"),
    ),
    ReferenceStatement(
        name="rfc-create-expire-after",
        kind="CreateTable",
        sql="""CREATE TABLE tbl (
  id   INT PRIMARY KEY,
  text TEXT
) WITH (ttl_expire_after = '5 minutes')""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="rfc-create-with-hidden-column",
        kind="CreateTable",
        sql="""CREATE TABLE tbl (
   id INT PRIMARY KEY,
   text TEXT,
   crdb_internal_expiration TIMESTAMPTZ
      NOT VISIBLE
      NOT NULL
      DEFAULT current_timestamp() + '5 minutes'
      ON UPDATE current_timestamp() + '5 minutes'
) WITH (ttl = 'on', ttl_expire_after = '5 minutes')""",
    ),
    ReferenceStatement(
        name="rfc-create-ttl-on-and-expression",
        kind="CreateTable",
        sql=f"""CREATE TABLE tbl (
{_EXPRESSION_COLUMNS},
) WITH (ttl = 'on', ttl_expiration_expression = 'if(should_delete, expiration, NULL)');""",
    ),
    ReferenceStatement(
        name="rfc-create-both",
        kind="CreateTable",
        sql="""CREATE TABLE tbl (
   id INT PRIMARY KEY,
   text TEXT,
   should_delete BOOL,
) WITH (ttl_expiration_expression = 'if(should_delete, crdb_internal_expiration, NULL)', """
        """ttl_expire_after = '10 mins');""",
    ),
    ReferenceStatement(
        name="rfc-create-both-without-the-last-comma",
        kind="CreateTable",
        sql="""CREATE TABLE tbl (
   id INT PRIMARY KEY,
   text TEXT,
   should_delete BOOL
) WITH (ttl_expiration_expression = 'if(should_delete, crdb_internal_expiration, NULL)', """
        """ttl_expire_after = '10 mins');""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="rfc-alter-expire-after",
        kind="AlterTable",
        sql="""-- Adding TTL for the first time with an automatic column, or changing the automatic TTL expiration.
ALTER TABLE tbl SET (ttl_expire_after = '5 minutes');""",
        engines=ALL,
        setup=(_TBL,),
    ),
    ReferenceStatement(
        name="rfc-alter-expression",
        kind="refused",
        sql="ALTER TABLE tbl SET (ttl_expiration_expression = '...');",
        engines=ALL,
        setup=(_TBL,),
        refused="the dots stand for an expression",
    ),
    ReferenceStatement(
        name="rfc-alter-batch-size",
        kind="AlterTable",
        sql="ALTER TABLE tbl SET (ttl_select_batch_size=200);",
        engines=ALL,
        setup=(_TBL_TTL,),
    ),
    ReferenceStatement(
        name="rfc-reset-batch-size",
        kind="AlterTable",
        sql="ALTER TABLE tbl RESET (ttl_select_batch_size);",
        engines=ALL,
        setup=(_TBL_TTL, "ALTER TABLE tbl SET (ttl_select_batch_size=200);"),
    ),
    ReferenceStatement(
        name="rfc-from-column-to-expression",
        kind="AlterTable",
        sql="ALTER TABLE tbl SET (ttl_expiration_expression = 'other_column');",
        engines=ALL,
        setup=(_TBL_TTL,),
    ),
    ReferenceStatement(
        name="rfc-reset-expire-after",
        kind="AlterTable",
        sql="ALTER TABLE tbl RESET (ttl_expire_after);",
        engines=ALL,
        setup=(_TBL_TTL, "ALTER TABLE tbl SET (ttl_expiration_expression = 'other_column');"),
    ),
    ReferenceStatement(
        name="rfc-from-expression-to-column",
        kind="AlterTable",
        sql="ALTER TABLE tbl SET (ttl_expire_after = '10 minutes');",
        engines=ALL,
        setup=(f"{_TBL} WITH (ttl_expiration_expression = 'other_column')",),
    ),
    ReferenceStatement(
        name="rfc-reset-expression",
        kind="AlterTable",
        sql="ALTER TABLE tbl RESET (ttl_expiration_expression);",
        engines=ALL,
        setup=(f"{_TBL} WITH (ttl_expiration_expression = 'other_column', ttl_expire_after = '10 minutes')",),
    ),
    ReferenceStatement(
        name="rfc-reset-ttl",
        kind="AlterTable",
        sql="ALTER TABLE tbl RESET (ttl)",
        engines=ALL,
        setup=(_TBL_TTL,),
    ),
    ReferenceStatement(
        name="rfc-select-batch",
        kind="PassThrough",
        sql="""SELECT pk_col_1, pk_col_2 FROM tbl
AS OF SYSTEM TIME '-30s'
WHERE crdb_internal_expiration >= '2022-01-02 01:02:03'
ORDER BY pk_col_1, pk_col_2""",
    ),
    ReferenceStatement(
        name="rfc-delete-batch",
        kind="PassThrough",
        sql="""DELETE FROM tbl
WHERE (pk_col_1, pk_col_2) IN  ((1, 2), (3, 4), (5, 6))
AND crdb_internal_expiration >= '2022-01-02 01:02:03'""",
        # SQLite has row values, but not in a list behind IN.
        engines=("postgres", "mysql"),
        setup=(
            "CREATE TABLE tbl (pk_col_1 INT, pk_col_2 INT, PRIMARY KEY (pk_col_1, pk_col_2)) "
            "WITH (ttl_expire_after = '5 minutes')",
        ),
    ),
    ReferenceStatement(
        name="rfc-other-syntax-create",
        kind="CreateTable",
        sql="""-- creating a table with TTL
CREATE TABLE tbl (
  id INT PRIMARY KEY,
  text TEXT
) TTL;""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="rfc-other-syntax-create-options",
        kind="CreateTable",
        sql="""-- creating a table with TTL options
CREATE TABLE tbl (
  id INT PRIMARY KEY,
  text TEXT
) TTL (ttl_expire_after = '5 mins', delete_batch_size = 1, job_cron = '* * 1 * *');""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="rfc-other-syntax-set",
        kind="AlterTable",
        sql="""-- adding a new TTL
ALTER TABLE ttl SET TTL; -- starts a TTL with a default of 30 days.""",
        engines=ALL,
        setup=("CREATE TABLE ttl (id INT PRIMARY KEY)",),
    ),
    ReferenceStatement(
        name="rfc-other-syntax-set-options",
        kind="AlterTable",
        sql="ALTER TABLE ttl SET TTL (ttl_expire_after = '5 mins', delete_batch_size = 1, job_cron = '* * 1 * *');",
        engines=ALL,
        setup=("CREATE TABLE ttl (id INT PRIMARY KEY)",),
    ),
    ReferenceStatement(
        name="rfc-other-syntax-drop",
        kind="AlterColumn",
        sql="""-- dropping a TTL
ALTER TABLE tbl DROP TTL;""",
        refused="on every engine this drops a column of that name",
    ),
]

_TIDB = [
    ReferenceStatement(
        name="tidb-create",
        kind="CreateTable",
        sql="""CREATE TABLE t1 (
    id int PRIMARY KEY,
    created_at TIMESTAMP
) TTL = `created_at` + INTERVAL 3 MONTH;""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="tidb-create-disabled",
        kind="CreateTable",
        sql="""CREATE TABLE t1 (
    id int PRIMARY KEY,
    created_at TIMESTAMP
) TTL = `created_at` + INTERVAL 3 MONTH TTL_ENABLE = 'OFF';""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="tidb-create-comment-form",
        kind="CreateTable",
        sql="""CREATE TABLE t1 (
    id int PRIMARY KEY,
    created_at TIMESTAMP
) /*T![ttl] TTL = `created_at` + INTERVAL 3 MONTH TTL_ENABLE = 'OFF'*/;""",
        engines=ALL,
    ),
    ReferenceStatement(
        name="tidb-alter",
        kind="AlterTable",
        sql="ALTER TABLE t1 TTL = `created_at` + INTERVAL 3 MONTH;",
        engines=ALL,
        setup=(_T1,),
    ),
    ReferenceStatement(
        name="tidb-alter-job-interval",
        kind="AlterTable",
        sql="ALTER TABLE t1 TTL_JOB_INTERVAL='1d';",
        engines=ALL,
        setup=(_T1_TTL,),
    ),
    ReferenceStatement(
        name="tidb-remove",
        kind="AlterTable",
        sql="ALTER TABLE t1 REMOVE TTL;",
        engines=ALL,
        setup=(_T1_TTL,),
    ),
    ReferenceStatement(
        name="tidb-remove-partitioning",
        kind="PassThrough",
        sql="ALTER TABLE t REMOVE PARTITIONING",
        engines=("mysql",),
        setup=("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",),
    ),
    ReferenceStatement(
        name="tidb-status-table",
        kind="PassThrough",
        sql="""CREATE TABLE `tidb_ttl_table_status` (
  `table_id` bigint(64) PRIMARY KEY,
  `parent_table_id` bigint(64),
  `table_statistics` TEXT DEFAULT NULL,
  `last_job_id` varchar(64) DEFAULT NULL,
  `last_job_start_time` timestamp NULL DEFAULT NULL,
  `last_job_finish_time` timestamp NULL DEFAULT NULL,
  `last_job_ttl_expire` timestamp NULL DEFAULT NULL,
  `last_job_summary` text DEFAULT NULL,
  `current_job_id` varchar(64) DEFAULT NULL,
  `current_job_owner_id` varchar(64) DEFAULT NULL,
  `current_job_owner_addr` varchar(256) DEFAULT NULL,
  `current_job_owner_hb_time` timestamp,
  `current_job_start_time` timestamp NULL DEFAULT NULL,
  `current_job_ttl_expire` timestamp NULL DEFAULT NULL,
  `current_job_state` text DEFAULT NULL,
  `current_job_status` varchar(64) DEFAULT NULL,
  `current_job_status_update_time` timestamp NULL DEFAULT NULL
);""",
        engines=("sqlite", "mysql"),
    ),
    ReferenceStatement(
        name="tidb-set-global",
        kind="SetGlobal",
        sql="set @@global.tidb_ttl_job_run_interval='1h'",
        engines=ALL,
    ),
    ReferenceStatement(
        name="tidb-cancel-job",
        kind="ControlJob",
        sql="ADMIN CANCEL TTL JOB 123456789",
        engines=ALL,
        setup=(_T1_TTL,),
        refused="there is no such job",
    ),
    ReferenceStatement(
        name="tidb-scan-first",
        kind="PassThrough",
        sql="""SELECT LOW_PRIORITY id FROM t1
WHERE create_time < '2022-01-01 00:00:00' AND id >= 12345 AND id < 45678
ORDER BY id ASC
LIMIT 500;""",
    ),
    ReferenceStatement(
        name="tidb-scan-next",
        kind="PassThrough",
        sql="""SELECT LOW_PRIORITY id FROM t1
WHERE create_time < '2022-01-01 00:00:00' AND id >= 23456 AND id < 45678
ORDER BY id ASC
LIMIT 500;""",
    ),
    ReferenceStatement(
        name="tidb-delete",
        kind="PassThrough",
        sql="""DELETE LOW_PRIORITY FROM t
WHERE id in (1, 2, 3, ...) AND create_time < '2022-01-01 00:00:00';""",
    ),
    ReferenceStatement(
        name="tidb-cockroach-example",
        kind="CreateTable",
        sql="""CREATE TABLE events (
  id UUID PRIMARY KEY default gen_random_uuid(),
  description TEXT,
  inserted_at TIMESTAMP default current_timestamp()
) WITH (ttl_expire_after = '3 months');""",
    ),
]

_MYROCKS = [
    ReferenceStatement(
        name="myrocks-column",
        kind="CreateTable",
        sql="""CREATE TABLE t1 (
  a bigint(20) NOT NULL,
  b int NOT NULL,
  ts bigint(20) UNSIGNED NOT NULL,
  PRIMARY KEY (a),
  KEY kb (b)
) ENGINE=rocksdb
COMMENT='ttl_duration=1;ttl_col=ts;';""",
        engines=("mysql",),
        requires="rocksdb",
    ),
    ReferenceStatement(
        name="myrocks-implicit",
        kind="CreateTable",
        sql="""CREATE TABLE t1 (
  a bigint(20) NOT NULL,
  PRIMARY KEY (a)
) ENGINE=rocksdb
COMMENT='ttl_duration=1;';""",
        engines=("mysql",),
        requires="rocksdb",
    ),
    ReferenceStatement(
        name="myrocks-partitions",
        kind="CreateTable",
        sql="""CREATE TABLE t1 (
    c1 BIGINT,
    c2 BIGINT UNSIGNED NOT NULL,
    name VARCHAR(25) NOT NULL,
    event DATE,
    PRIMARY KEY (`c1`) COMMENT 'custom_p0_cfname=foo;custom_p1_cfname=bar;custom_p2_cfname=baz;'
) ENGINE=ROCKSDB
COMMENT="ttl_duration=1;custom_p1_ttl_duration=100;custom_p1_ttl_col=c2;custom_p2_ttl_duration=5000;"
PARTITION BY LIST(c1) (
    PARTITION custom_p0 VALUES IN (1, 2, 3),
    PARTITION custom_p1 VALUES IN (4, 5, 6),
    PARTITION custom_p2 VALUES IN (7, 8, 9)
);""",
        engines=("mysql",),
        requires="rocksdb",
    ),
]

REFERENCE_STATEMENTS: list[ReferenceStatement] = [*_DOCS, *_RFC, *_TIDB, *_MYROCKS]
