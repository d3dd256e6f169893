"""Statements of three dialects, on every engine; the rest byte for byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl import parse, parse_one
from lapse.ddl.lexer import DIALECTS, tokenize
from lapse.ddl.script import split
from lapse.errors import InvalidValue, LapseError, TtlSyntaxError
from lapse.model.statement import (
    AlterTable,
    CatalogQuery,
    ControlJob,
    DropTable,
    JobAction,
    PassThrough,
    RelOptions,
    RenameTable,
    SetGlobal,
    Show,
    ShowCreateTable,
    ShowList,
    Variable,
)
from lapse.model.table import TableName

ORDINARY = [
    "INSERT INTO t (a) VALUES ('ttl = x; -- no')",
    "SELECT ttl FROM sessions WHERE ttl > 5",
    "select * from t where a[1] = 'show'",
    "UPDATE ttl SET ttl = ttl + interval '1 day'",
    "DELETE FROM t WHERE ttl_expire_after < 5",
    "CREATE INDEX ttl ON t (ttl)",
    "CREATE TABLE t (ttl int, ttl_enable text DEFAULT 'OFF')",
    "CREATE TABLE x (LIKE ttl)",
    "CREATE TABLE x (a int) TABLESPACE ttl",
    "CREATE TABLE t (a int) WITH (fillfactor=70, toast.autovacuum_enabled = false)",
    "CREATE TABLE t (a int COMMENT 'ttl_duration=5;') COMMENT = 'the ttl of things'",
    "CREATE VIEW v AS SELECT ttl FROM t",
    "CREATE TABLE t PARTITION OF ttl FOR VALUES WITH (modulus 4, remainder 0)",
    "CREATE TABLE a AS SELECT 1 AS ttl",
    "ALTER TABLE t ADD COLUMN ttl int",
    "ALTER TABLE t ADD ttl int COMMENT 'ttl_duration=5;'",
    "ALTER TABLE t SET (fillfactor = 70)",
    "ALTER TABLE t ALTER COLUMN a SET DEFAULT 5",
    "ALTER TABLE t DROP CONSTRAINT c, DROP INDEX i",
    "ALTER TABLE t COMMENT = 'new'",
    "ALTER TABLE t RENAME CONSTRAINT a TO b",
    "ALTER VIEW v RENAME TO w",
    "COMMENT ON TABLE t IS 'We tried ttl_duration=5;ttl_col=ts;'",
    "COMMENT ON TABLE t IS 'ttl_duration=5' || 'x'",
    "COMMENT ON COLUMN t.a IS 'ttl_duration=5;ttl_col=ts;'",
    "DROP TEMPORARY TABLE t",
    "DROP INDEX i",
    "SET GLOBAL max_connections = 5",
    "SET ttl = 5",
    "SHOW TABLES",
    "SHOW CREATE VIEW v",
    "EXPLAIN ALTER TABLE t SET (ttl_pause = 'on')",
    "SELECT 1 /* trailing */",
    "/*T![ttl] only a comment */",
    "(SELECT 1)",
    "ALTER TABLE",
    "CREATE TABLE ttl (",
    "'",
    "PRAGMA user_version",
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", ORDINARY)
def test_the_rest_passes_byte_for_byte(text: str, dialect: str) -> None:
    statement = parse_one(text, dialect)
    assert isinstance(statement, PassThrough)
    assert statement.text == text


@given(text=st.text(alphabet=" \n'\"`()[],.;=+-/*ABCTLR_abe1", min_size=1), dialect=st.sampled_from(DIALECTS))
def test_arbitrary_text_is_never_changed(text: str, dialect: str) -> None:
    for statement in parse(text, dialect):
        assert statement.text in text


@given(text=st.text(alphabet=" \n'\"`;$-/*#[]\\\\ab"), dialect=st.sampled_from(DIALECTS))
def test_a_glance_sees_what_the_tokens_say(text: str, dialect: str) -> None:
    glance = parse(f"INSERT {text}", dialect)
    careful = [piece.text for piece in split(f"INSERT {text}", dialect)]
    assert [statement.text for statement in glance] == careful


def test_verbs() -> None:
    verbs = [
        (" \n insert into t values (1)", "INSERT"),
        ("-- c\nupdate t set a=1", "UPDATE"),
        ("-- c", ""),
        ("(select 1)", "SELECT"),
    ]
    for text, verb in verbs:
        statement = parse_one(text, "sqlite")
        assert isinstance(statement, PassThrough)
        assert statement.verb == verb


def test_places_in_a_script() -> None:
    statements = parse("SELECT 1;\n  ALTER TABLE t REMOVE TTL;\n\nSELECT ';' ; DROP TABLE t", "sqlite")
    assert [(s.line, s.column) for s in statements] == [(1, 1), (2, 3), (4, 1), (4, 14)]
    assert [type(s) for s in statements] == [PassThrough, AlterTable, PassThrough, DropTable]


def test_exactly_one() -> None:
    with pytest.raises(TtlSyntaxError, match="found 2 statements") as caught:
        parse_one("SELECT 1;\nSELECT 2", "sqlite")
    assert (caught.value.line, caught.value.column) == (2, 1)
    with pytest.raises(TtlSyntaxError, match="no statement"):
        parse_one(" ; ", "sqlite")
    with pytest.raises(InvalidValue):
        parse("SELECT 1", "oracle")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DROP TABLE a", DropTable(text="", tables=(TableName("a"),))),
        ("drop table if exists a.b, c cascade", DropTable(text="", tables=(TableName("b", "a"), TableName("c")))),
        ("RENAME TABLE a TO b, c TO d.e", RenameTable(
            text="", renames=((TableName("a"), TableName("b")), (TableName("c"), TableName("e", "d"))))),
        ("SHOW CREATE TABLE events", ShowCreateTable(text="", table=TableName("events"))),
        ("show create table s.events;", ShowCreateTable(text="", table=TableName("events", "s"))),
        ("SHOW SCHEDULES", ShowList(text="", what=Show.SCHEDULES)),
        ("show jobs ;", ShowList(text="", what=Show.JOBS)),
        ("PAUSE JOB 7", ControlJob(text="", action=JobAction.PAUSE, job_id=7)),
        ("RESUME JOB '7'", ControlJob(text="", action=JobAction.RESUME, job_id=7)),
        ("CANCEL JOB 7", ControlJob(text="", action=JobAction.CANCEL, job_id=7)),
        ("ADMIN CANCEL TTL JOB 7", ControlJob(text="", action=JobAction.CANCEL, job_id=7)),
        ("SET GLOBAL tidb_ttl_job_enable = OFF", SetGlobal(text="", name="tidb_ttl_job_enable", value="OFF")),
        ("SET @@global.TIDB_TTL_JOB_ENABLE := 'ON'", SetGlobal(text="", name="tidb_ttl_job_enable", value="ON")),
        ("SET GLOBAL tidb_ttl_running_tasks = -1", SetGlobal(text="", name="tidb_ttl_running_tasks", value="-1")),
        ("SET GLOBAL tidb_ttl_scan_batch_size = DEFAULT",
         SetGlobal(text="", name="tidb_ttl_scan_batch_size", value="500")),
        ("SET GLOBAL lapse_job_timeout = '2 hours'", SetGlobal(text="", name="lapse_job_timeout", value="2 hours")),
    ],
)  # fmt: skip
def test_control(text: str, expected: Any, dialect: str) -> None:
    statement = parse_one(text, dialect)
    assert type(statement) is type(expected)
    fields = [name for name in expected.__slots__ if name not in ("text", "line", "column")]
    assert [getattr(statement, name) for name in fields] == [getattr(expected, name) for name in fields]
    assert statement.text == text.rstrip("; ")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("PAUSE JOB seven", "number of a job"),
        ("CANCEL JOB", "number of a job"),
        ("CANCEL JOB 1 2", "nothing after"),
        ("SET tidb_ttl_job_enable = 'ON'", "global variable"),
        ("SET GLOBAL tidb_ttl_job_enable", "expected ="),
        ("SET GLOBAL max_connections = 5, GLOBAL tidb_ttl_job_enable = 'ON'", "in one statement"),
    ],
)
def test_control_refused(text: str, match: str) -> None:
    with pytest.raises(LapseError, match=match):
        parse(text, "mysql")


def test_several_settings_at_once() -> None:
    statements = parse("SET GLOBAL tidb_ttl_job_enable = 0, @@global.tidb_ttl_delete_rate_limit = 10", "mysql")
    assert [(s.name, s.value) for s in statements if isinstance(s, SetGlobal)] == [
        ("tidb_ttl_job_enable", "0"),
        ("tidb_ttl_delete_rate_limit", "10"),
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("SELECT * FROM [SHOW SCHEDULES] WHERE a", ("SELECT * FROM ", Show.SCHEDULES, " AS schedules WHERE a")),
        ("SELECT * FROM [show  jobs] j;", ("SELECT * FROM ", Show.JOBS, " j")),
        ("SELECT [SHOW JOBS].id FROM t", None),
        ("SELECT reloptions FROM pg_class", ("SELECT reloptions FROM ", RelOptions(), " AS pg_class")),
        ("SELECT c.reloptions FROM pg_catalog.pg_class c ORDER BY c.relname",
         ("SELECT c.reloptions FROM ", RelOptions(), " c ORDER BY c.relname")),
        ("SELECT pg_class.relname FROM pg_class WHERE array_to_string(reloptions, ',') LIKE '%ttl%'",
         ("SELECT pg_class.relname FROM ", RelOptions(),
          " AS pg_class WHERE array_to_string(reloptions, ',') LIKE '%ttl%'")),
        ("SELECT relname FROM pg_class", None),
        ("SELECT 'reloptions' FROM pg_class", None),
        ("SELECT @@global.tidb_ttl_job_enable, 1", ("SELECT ", Variable("tidb_ttl_job_enable"), ", 1")),
        ("SELECT @@version", None),
    ],
)  # fmt: skip
def test_catalog_queries(text: str, pieces: tuple[object, ...] | None, dialect: str) -> None:
    statement = parse_one(text, dialect)
    if pieces is None:
        # A list that qualifies a column is odd, but where brackets quote it is the user's own table.
        assert isinstance(statement, PassThrough) or "[SHOW JOBS]." in text
    else:
        assert isinstance(statement, CatalogQuery)
        assert statement.pieces == pieces


def test_tools_that_read_postgresql_s_own_pg_class_are_left_alone() -> None:
    for text in (
        "SELECT c.relchecks, c.reloptions FROM pg_catalog.pg_class c WHERE c.oid = '16384'",
        "SELECT reloptions FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace",
    ):
        assert isinstance(parse_one(text, "postgres"), PassThrough)
        assert isinstance(parse_one(text, "sqlite"), CatalogQuery)


@pytest.mark.parametrize("value", ["'some text'", "'some; text'"])
def test_ordinary_statements_pass_at_a_glance(value: str) -> None:
    text = "INSERT INTO t (a, b, c) VALUES " + ", ".join(f"({value}, 12345, 'more text')" for _ in range(300))
    parse(text, "postgres")
    assert _best_seconds(lambda: parse(text, "postgres")) < _best_seconds(lambda: tokenize(text, "postgres")) / 3


def _best_seconds(action: Callable[[], object]) -> float:
    """Processor time of the quickest of several tries, so that a busy machine does not count."""
    best = float("inf")
    for _ in range(10):
        started = time.process_time()
        for _ in range(5):
            action()
        best = min(best, time.process_time() - started)
    return best
