"""CREATE TABLE: the TTL part is cut out wherever it may stand, the rest is left as typed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl import parse_one
from lapse.ddl.lexer import DIALECTS
from lapse.errors import InvalidValue, LapseError, PolicyConflict, TtlSyntaxError
from lapse.model.interval import DAY, HOUR, MINUTE, SECOND, Interval
from lapse.model.policy import PartitionRule
from lapse.model.statement import CreateTable, DropTable, PassThrough
from lapse.model.table import TableName

MANAGED = {"expire_after": Interval(micros=5 * MINUTE)}
COLUMN = {"column": "c", "interval": Interval(months=3)}
TTL = "TTL = `c` + INTERVAL 3 MONTH"


def created(text: str, dialect: str = "sqlite") -> CreateTable:
    statement = parse_one(text, dialect)
    assert isinstance(statement, CreateTable)
    return statement


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("options", "left", "expected"),
    [
        (" WITH (ttl_expire_after = '5 minutes')", "", MANAGED),
        ("WITH(ttl_expire_after='5 minutes');", "", MANAGED),
        ("\nWITH (ttl_expire_after = '5 minutes', fillfactor=70)", "\nWITH (fillfactor=70)", MANAGED),
        (" WITH (fillfactor=70, ttl_expire_after = '5 minutes')", " WITH (fillfactor=70)", MANAGED),
        (" WITH (a=1,ttl_expire_after='5m' , b = 2)", " WITH (a=1 , b = 2)", MANAGED),
        (" WITH (ttl='on', a=(1,2), ttl_expire_after='5m')", " WITH (a=(1,2))", MANAGED),
        (" WITH (ttl_expire_after='5m') TABLESPACE x", " TABLESPACE x", MANAGED),
        (" with (\"TTL_Expire_After\" = '5m', ttl_pause)", "", MANAGED | {"pause": True}),
        (" WITH (ttl_expire_after = '00:05:00':::INTERVAL)", "", MANAGED),
        (" WITH (ttl_expire_after = '5 minutes'::interval)", "", MANAGED),
        (" WITH (ttl_expire_after = INTERVAL '5 minutes')", "", MANAGED),
        (" WITH (ttl_expire_after = INTERVAL 5 MINUTE)", "", MANAGED),
        (" WITH (ttl_expire_after = ('5 minutes'))", "", MANAGED),
        (" WITH (ttl_expire_after = '1 day', ttl_expire_after = '5m')", "", MANAGED),
        (" WITH (ttl_expire_after = '5m', ttl_delete_batch_size = 7)", "", MANAGED | {"delete_batch_size": 7}),
        (" WITH (ttl_expire_after = '5m', ttl_label_metrics = true)", "", MANAGED | {"label_metrics": True}),
        (" WITH (ttl_expire_after = '5m') AS SELECT 1 AS ttl", " AS SELECT 1 AS ttl", MANAGED),
        (" WITH (ttl_expiration_expression = 'c + ''3 months''')", "", COLUMN),
        (" WITH (ttl_expiration_expression = 'a', ttl_expiration_expression = 'c + INTERVAL 3 MONTH')", "", COLUMN),
        (" WITH (ttl_expiration_expression = 'if(a, b, NULL)', ttl_expire_after = '5m')", "",
         MANAGED | {"expression": "if(a, b, NULL)"}),
        (f" {TTL}", "", COLUMN),
        (f"{TTL};", "", COLUMN),
        (" TTL c + INTERVAL 3 MONTH", "", COLUMN),
        (" ttl=c+interval '3' month", "", COLUMN),
        (" TTL = c + INTERVAL '3 months'", "", COLUMN),
        (f" {TTL} TTL_ENABLE = 'OFF'", "", COLUMN | {"pause": True}),
        (f" TTL_ENABLE='ON' {TTL}", "", COLUMN | {"pause": False}),
        (f" TTL_ENABLE OFF, {TTL}, TTL_JOB_INTERVAL '1h30m'", "",
         COLUMN | {"pause": True, "job_interval": Interval(micros=90 * MINUTE)}),
        (f" {TTL} TTL_JOB_INTERVAL = '1m'", "", COLUMN | {"job_interval": Interval(micros=MINUTE)}),
        (f" {TTL} TTL_JOB_INTERVAL='24h'", "", COLUMN | {"job_interval": Interval(micros=DAY)}),
        (f" ENGINE=InnoDB {TTL} CHARSET=utf8", " ENGINE=InnoDB CHARSET=utf8", COLUMN),
        (f" ENGINE=InnoDB, {TTL}, CHARSET=utf8", " ENGINE=InnoDB, CHARSET=utf8", COLUMN),
        (f" {TTL}, ENGINE=InnoDB", " ENGINE=InnoDB", COLUMN),
        (f" STRICT, {TTL}", " STRICT", COLUMN),
        (f" WITHOUT ROWID {TTL} -- kept", " WITHOUT ROWID -- kept", COLUMN),
        (f" -- kept\n{TTL} STRICT", " -- kept\n STRICT", COLUMN),
        (f" {TTL} PARTITION BY HASH (ttl) PARTITIONS 4", " PARTITION BY HASH (ttl) PARTITIONS 4", COLUMN),
        (f" /*T![ttl] {TTL} TTL_ENABLE = 'OFF'*/", "", COLUMN | {"pause": True}),
        (f" /*T![ttl] {TTL} */ /*T![ttl] TTL_ENABLE='ON' */ ENGINE=x", " ENGINE=x", COLUMN | {"pause": False}),
        (f" {TTL}, TTL = d + INTERVAL 1 DAY", "", {"column": "d", "interval": Interval(micros=DAY)}),
        (" TTL = c + INTERVAL '1:30' HOUR_MINUTE", "", {"column": "c", "interval": Interval(micros=90 * MINUTE)}),
        (" TTL", "", {"expire_after": Interval(micros=30 * DAY)}),
        (" TTL (expire_after = '5 mins', delete_batch_size = 1)", "", MANAGED | {"delete_batch_size": 1}),
    ],
)  # fmt: skip
def test_options(options: str, left: str, expected: dict[str, Any], dialect: str) -> None:
    head = "CREATE TABLE t (id int, -- ttl = 'x'\n ttl text DEFAULT 'TTL = a; ''')"
    statement = created(head + options, dialect)
    assert statement.text == head + left
    assert statement.change.set == expected
    assert not statement.change.reset
    assert not statement.change.remove


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("'ttl_duration=1;ttl_col=ts;'", {"column": "ts", "interval": Interval(micros=SECOND)}),
        ("'ttl_duration=3600'", {"expire_after": Interval(micros=HOUR)}),
        ("'cfname=a; ttl_duration = 60 ;'", {"expire_after": Interval(micros=MINUTE)}),
        (
            '"ttl_duration=1;p1_ttl_duration=100;p1_ttl_col=c2;my_p_ttl_duration=5000;"',
            {
                "expire_after": Interval(micros=SECOND),
                "partitions": (
                    PartitionRule(partition="p1", after=Interval(micros=100 * SECOND), column="c2"),
                    PartitionRule(partition="my_p", after=Interval(micros=5000 * SECOND)),
                ),
            },
        ),
        (
            "'p1_ttl_duration=100;p1_ttl_col=c2;'",
            {
                "expression": "NULL",
                "partitions": (PartitionRule(partition="p1", after=Interval(micros=100 * SECOND), column="c2"),),
            },
        ),
    ],
)
def test_comments(comment: str, expected: dict[str, Any], dialect: str) -> None:
    for form in (f"COMMENT={comment}", f"COMMENT {comment}", f"comment = {comment}"):
        text = f"CREATE TABLE t (a int, PRIMARY KEY (a)) ENGINE=x {form} PARTITION BY LIST (a)"
        statement = created(text, dialect)
        assert statement.change.set == expected
        assert statement.text == (text if dialect == "mysql" else text.replace(f" {form}", ""))
        statement.change.apply_to(None, "t")


@pytest.mark.parametrize(
    ("text", "table", "dialect"),
    [
        ('CREATE TABLE "odd ""names" (a int)', TableName('odd "names'), "sqlite"),
        ("CREATE TABLE `a``b` (a int)", TableName("a`b"), "mysql"),
        ("CREATE TABLE `a``b` (a int)", TableName("a`b"), "sqlite"),
        ("CREATE TABLE [x y] (a int)", TableName("x y"), "sqlite"),
        ("CREATE TABLE main.[x;--'/* y] (a int)", TableName("x;--'/* y", "main"), "sqlite"),
        ('CREATE TABLE "a;--/*\'" (a int)', TableName("a;--/*'"), "postgres"),
        ('CREATE TABLE Größe."Tabelle" (a int)', TableName("Tabelle", "größe"), "postgres"),
        ("CREATE TABLE Events (a int)", TableName("events"), "postgres"),
        ("CREATE TABLE ÄRGER (a int)", TableName("Ärger"), "postgres"),
        ("CREATE TABLE Events (a int)", TableName("Events"), "mysql"),
        ("CREATE TABLE db.public.Events (a int)", TableName("events", "public"), "postgres"),
        ("CREATE TABLE 日本 (a int)", TableName("日本"), "sqlite"),
    ],
)
def test_names(text: str, table: TableName, dialect: str) -> None:
    statement = created(f"{text} WITH (ttl_expire_after = '5m')", dialect)
    assert statement.table == table
    assert statement.text == text


@pytest.mark.parametrize(
    ("head", "if_not_exists", "temporary"),
    [
        ("CREATE TABLE IF NOT EXISTS t", True, False),
        ("CREATE TEMP TABLE t", False, True),
        ("create temporary table if not exists t", True, True),
        ("CREATE UNLOGGED TABLE t", False, False),
        ("CREATE GLOBAL TEMPORARY TABLE t", False, True),
        ("CREATE OR REPLACE TABLE t", False, False),
    ],
)
def test_heads(head: str, if_not_exists: bool, temporary: bool) -> None:
    statement = created(f"{head} (a int) {TTL}", "mysql")
    assert (statement.if_not_exists, statement.temporary) == (if_not_exists, temporary)


REFUSED: list[tuple[str, type[LapseError], str]] = [
    ("WITH (ttl_expire_after = '5m') TTL = c + INTERVAL 1 DAY", PolicyConflict, "both say when rows expire"),
    ("TTL = c + INTERVAL 1 DAY COMMENT='ttl_duration=5;'", PolicyConflict, "both say when rows expire"),
    ("TTL = c + INTERVAL 1 DAY COMMENT='ttl_duration=5;ttl_col=d;'", PolicyConflict, "TTL and COMMENT"),
    (f"{TTL} TTL_ENABLE='ON' WITH (ttl_pause='on')", PolicyConflict, "TTL_ENABLE and ttl_pause"),
    (f"{TTL} TTL_JOB_INTERVAL='1d' WITH (ttl_job_cron='@daily')", PolicyConflict, "TTL_JOB_INTERVAL"),
    ("WITH (ttl_expire_afer = '5m')", InvalidValue, "did you mean ttl_expire_after"),
    ("WITH (ttl_zzz = 1)", InvalidValue, "'ttl_zzz': is not known"),
    ("WITH (ttl_expire_after = 'nonsense')", InvalidValue, "ttl_expire_after = 'nonsense'"),
    ("WITH (ttl_expire_after = '-10 minutes')", InvalidValue, "must not be negative"),
    ("WITH (ttl_expire_after = 30)", InvalidValue, "has no unit"),
    ("WITH (ttl_expire_after = 'a' || 'b')", TtlSyntaxError, "expected one value"),
    ("WITH (ttl_expire_after = )", InvalidValue, "ttl_expire_after"),
    ("WITH (ttl_expire_after = '5m'", TtlSyntaxError, "to end the list"),
    ("WITH (ttl = 'off')", InvalidValue, "RESET"),
    ("WITH (ttl_select_batch_size = -1)", InvalidValue, "ttl_select_batch_size"),
    ("WITH (ttl_job_cron = 'bad expr')", InvalidValue, "cron expression"),
    ("WITH (ttl_expiration_expression = 0)", InvalidValue, "must be a string"),
    ("WITH (ttl_expiration_expression = '; DROP DATABASE x')", TtlSyntaxError, "second statement"),
    ("WITH (ttl_expiration_expression = 'now(), now()')", TtlSyntaxError, "found 2"),
    ("WITH (ttl_expiration_expression = '')", InvalidValue, "must be an SQL expression"),
    ("TTL = c", TtlSyntaxError, "expected \\+ INTERVAL"),
    ("TTL = 5 + INTERVAL 1 DAY", TtlSyntaxError, "expected a column"),
    ("TTL = c + 5", TtlSyntaxError, "expected INTERVAL"),
    ("TTL = c + INTERVAL DAY", TtlSyntaxError, "expected a number"),
    ("TTL = c + INTERVAL 1", InvalidValue, "has no unit"),
    ("TTL = c + INTERVAL 1 FORTNIGHT", InvalidValue, "has no unit"),
    ("TTL = c + INTERVAL -1 DAY", InvalidValue, "must not be negative"),
    (f"{TTL} TTL_ENABLE = 'test_case'", InvalidValue, "'ON' or 'OFF'"),
    (f"{TTL} TTL_JOB_INTERVAL = '@monthly'", InvalidValue, "TTL_JOB_INTERVAL"),
    (f"{TTL} TTL_JOB_INTERVAL = '10hourxx'", InvalidValue, "TTL_JOB_INTERVAL"),
    ("COMMENT='ttl_col=ts;'", InvalidValue, "needs ttl_duration"),
    ("COMMENT='ttl_duration=abc;'", InvalidValue, "whole number of seconds"),
    ("COMMENT='ttl_duration=0;'", InvalidValue, "whole number of seconds"),
    ("COMMENT='p1_ttl_duration=5;'", InvalidValue, "needs p1_ttl_col"),
    ("COMMENT='ttl_duration=5;ttl_col=;'", InvalidValue, "must name a column"),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("options", "error", "match"), REFUSED)
def test_refused(options: str, error: type[LapseError], match: str, dialect: str) -> None:
    with pytest.raises(error, match=match):
        parse_one(f"CREATE TABLE t (a int)\n  {options}", dialect)


def test_errors_have_a_place_in_the_whole_text() -> None:
    with pytest.raises(TtlSyntaxError) as caught:
        parse_one("\n-- c\nCREATE TABLE t (a int)\n  TTL = c + 5", "sqlite")
    assert (caught.value.line, caught.value.column) == (4, 13)
    with pytest.raises(PolicyConflict, match="line 2, column 33"):
        parse_one("CREATE TABLE t (a int)\nWITH (ttl_expire_after = '5m')  TTL = c + INTERVAL 1 DAY", "sqlite")


def test_ttl_on_alone_says_nothing() -> None:
    statement = created("CREATE TABLE t (a int) WITH (ttl = 'on')")
    with pytest.raises(PolicyConflict, match="so ttl cannot be set"):
        statement.change.apply_to(None, "t")


def test_notices() -> None:
    statement = created("CREATE TABLE t (a int) WITH (ttl_expire_after = '5m', ttl_range_concurrency = 2)")
    assert any("ttl_range_concurrency" in notice for notice in statement.change.notices)


OURS = [TTL, "TTL_ENABLE = 'OFF'", "TTL_JOB_INTERVAL '2h'", "/*T![ttl] TTL_ENABLE='OFF' */"]
THEIRS = ["ENGINE = InnoDB", "CHARSET utf8", "COMMENT 'ttl'"]


@given(options=st.lists(st.sampled_from(OURS + THEIRS)), commas=st.booleans(), dialect=st.sampled_from(DIALECTS))
def test_options_between_others(options: list[str], commas: bool, dialect: str) -> None:
    separator = ", " if commas else " "
    statement = parse_one(f"CREATE TABLE t (a int) {separator.join(options)}", dialect)
    kept = separator.join(option for option in options if option in THEIRS)
    assert statement.text == f"CREATE TABLE t (a int) {kept}".rstrip()


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("CREATE TABLE t(a DATETIME)ENGINE=InnoDB/*T![ttl] TTL=a+INTERVAL 1 DAY*/COMMENT='x'", None),
        ("CREATE TABLE t(a DATETIME)COMMENT 'x'/*T![ttl] TTL=a+INTERVAL 1 DAY*/ENGINE InnoDB", None),
        (
            "CREATE TABLE t(a DATETIME)/*T![ttl] TTL=a+INTERVAL 1 DAY*/ENGINE=InnoDB",
            "CREATE TABLE t(a DATETIME)ENGINE=InnoDB",
        ),
    ],
)
def test_a_cut_never_joins_two_words(text: str, rest: str | None) -> None:
    start, end = text.index("/*"), text.index("*/") + 2
    found = parse_one(text, "mysql")
    assert isinstance(found, CreateTable)
    assert found.text == (rest or f"{text[:start]} {text[end:]}")


def test_create_or_replace() -> None:
    replaced = parse_one("CREATE OR REPLACE TABLE s.t (a INT)", "mysql")
    assert isinstance(replaced, DropTable)
    assert (replaced.tables, replaced.replaced) == ((TableName("t", "s"),), True)
    assert replaced.text == "CREATE OR REPLACE TABLE s.t (a INT)"
    with_ttl = parse_one("CREATE OR REPLACE TABLE t (a DATETIME) TTL = a + INTERVAL 1 DAY", "mysql")
    assert isinstance(with_ttl, CreateTable) and with_ttl.replaces
    for other in ("CREATE OR REPLACE VIEW v AS TABLE t", "CREATE OR REPLACE TEMPORARY TABLE t (a INT)"):
        assert isinstance(parse_one(other, "mysql"), PassThrough)
