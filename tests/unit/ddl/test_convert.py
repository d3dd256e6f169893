"""Scripts from one dialect to another."""

from __future__ import annotations

import pytest

from lapse.ddl.convert import CONVERT_TARGETS, convert
from lapse.errors import InvalidValue, Unsupported

COMMON = "-- it's a script\nINSERT INTO t VALUES (';');\n"


@pytest.mark.parametrize(
    ("source", "to", "text", "expected"),
    [
        (
            "tidb",
            "cockroach",
            "CREATE TABLE t (c date) TTL = `c` + INTERVAL 3 MONTH TTL_ENABLE = 'OFF'",
            "CREATE TABLE t (c date) WITH (ttl_expiration_expression = 'c + INTERVAL ''3 months''', ttl_pause = 'on')",
        ),
        (
            "cockroach",
            "tidb",
            "CREATE TABLE t (c date) WITH (ttl_expiration_expression = 'c + ''90 days''', ttl_job_cron = '@daily')",
            "CREATE TABLE t (c date) TTL = `c` + INTERVAL 90 DAY TTL_JOB_INTERVAL = '1d'",
        ),
        (
            "cockroach",
            "myrocks",
            "CREATE TABLE t (a int) WITH (ttl_expire_after = '1 hour') TABLESPACE x",
            "CREATE TABLE t (a int) COMMENT = 'ttl_duration=3600;' TABLESPACE x",
        ),
        (
            "myrocks",
            "cockroach",
            "CREATE TABLE t (ts bigint) ENGINE=rocksdb COMMENT='ttl_duration=60;ttl_col=ts;'",
            "CREATE TABLE t (ts bigint) ENGINE=rocksdb WITH "
            "(ttl_expiration_expression = 'to_timestamp(ts) + INTERVAL ''1 minute''')",
        ),
        (
            "myrocks",
            "tidb",
            "CREATE TABLE t (ts datetime) COMMENT='ttl_duration=60;ttl_col=ts;' PARTITION BY HASH (a)",
            "CREATE TABLE t (ts datetime) TTL = `ts` + INTERVAL 1 MINUTE PARTITION BY HASH (a)",
        ),
        (
            "tidb",
            "cockroach",
            "CREATE TABLE t (c date) WITH (fillfactor=70) TTL = c + INTERVAL 1 DAY",
            "CREATE TABLE t (c date) WITH (ttl_expiration_expression = 'c + INTERVAL ''1 day''', fillfactor=70)",
        ),
        ("tidb", "cockroach", "ALTER TABLE `T x` REMOVE TTL", 'ALTER TABLE "T x" RESET (ttl)'),
        ("cockroach", "tidb", "ALTER TABLE t RESET (ttl)", "ALTER TABLE `t` REMOVE TTL"),
        ("cockroach", "myrocks", "ALTER TABLE t RESET (ttl)", "ALTER TABLE `t` COMMENT = ''"),
        ("cockroach", "tidb", "ALTER TABLE t RESET (ttl_pause)", "ALTER TABLE `t` TTL_ENABLE = 'ON'"),
        ("tidb", "cockroach", "ALTER TABLE t TTL_ENABLE = 'ON'", "ALTER TABLE t SET (ttl_pause = 'off')"),
        (
            "tidb",
            "cockroach",
            "ALTER TABLE t ADD COLUMN x int, TTL = c + INTERVAL 1 DAY",
            "ALTER TABLE t ADD COLUMN x int;\nALTER TABLE t SET (ttl_expiration_expression = 'c + INTERVAL ''1 day''')",
        ),
    ],
)
def test_converted(source: str, to: str, text: str, expected: str) -> None:
    for guess in (source, None):
        assert convert(f"{COMMON}{text} ;\n-- end\n", guess, to).text == f"{COMMON}{expected} ;\n-- end\n"


@pytest.mark.parametrize("to", CONVERT_TARGETS)
def test_what_is_not_ttl_stays(to: str) -> None:
    text = "CREATE TABLE t (ttl int);;\n ALTER TABLE t DROP COLUMN ttl;\nSELECT ';' -- x\n"
    assert convert(text, None, to).text == text


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("cockroach", "CREATE TABLE t (a int) WITH (ttl_expire_after='5 minutes',ttl_pause = on);"),
        ("tidb", "CREATE TABLE t (a int) ttl=a+interval 3 month;"),
        ("myrocks", "CREATE TABLE t (a int) COMMENT='hello;ttl_duration=5;'"),
    ],
)
def test_what_is_already_in_the_dialect_stays(dialect: str, text: str) -> None:
    assert convert(text, None, dialect).text == text


def test_parameters_without_a_counterpart_are_left_out_with_a_notice() -> None:
    result = convert(
        "\nCREATE TABLE t (c date) WITH (ttl_expiration_expression = 'c', ttl_select_batch_size = 5)", None, "tidb"
    )
    assert result.text == "\nCREATE TABLE t (c date) TTL = `c` + INTERVAL 0 DAY"
    assert result.notices == ("line 2: ttl_select_batch_size was left out: tidb has no such parameter",)
    result = convert("ALTER TABLE t RESET (ttl_select_batch_size)", None, "tidb")
    assert "left out" in result.notices[0]


@pytest.mark.parametrize(
    ("to", "text", "match"),
    [
        ("tidb", "CREATE TABLE t (a int) WITH (ttl_expire_after = '5m')", "line 1, column 1: ttl_expire_after"),
        ("tidb", "CREATE TABLE t (a int) WITH (ttl_expiration_expression = 'if(a,b,c)')", "ttl_expiration_expression"),
        ("myrocks", "CREATE TABLE t (a int) TTL = c + INTERVAL 3 MONTH", "ttl_duration"),
        ("myrocks", "CREATE TABLE t (a int) TTL = c + INTERVAL 3 DAY COMMENT 'x'", "comment already"),
        ("cockroach", "CREATE TABLE t (a int) COMMENT='ttl_duration=5;p_ttl_duration=6;'", "p_ttl_duration"),
    ],
)
def test_another_expiry_is_refused(to: str, text: str, match: str) -> None:
    with pytest.raises(Unsupported, match=match):
        convert(text, None, to)


def test_unknown_target() -> None:
    with pytest.raises(InvalidValue):
        convert("SELECT 1", None, "oracle")
