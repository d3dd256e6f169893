"""What TiDB says about its own TTL, as its servers write it, and what it is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lapse.engines.mysql import tidb
from lapse.engines.mysql.session import Flavour
from lapse.engines.mysql.tidb import Ending
from lapse.errors import Unsupported, UnsupportedUrl
from lapse.model.interval import DAY, HOUR, MINUTE, Interval
from lapse.model.policy import PartitionRule, Policy
from lapse.model.table import Column, FkAction, Reference, Table, TableKind, TableName

OPTIONS = "/*T![ttl] TTL=`c` + INTERVAL 30 DAY */ /*T![ttl] TTL_ENABLE='ON' */ /*T![ttl] TTL_JOB_INTERVAL='1h' */"
CREATE = f"CREATE TABLE `t` (\n  `id` bigint NOT NULL,\n  `c` datetime\n) ENGINE=InnoDB {OPTIONS}"
TABLE = Table(
    name=TableName("t"),
    kind=TableKind.TABLE,
    columns=(Column(name="id", type="bigint(20)", nullable=False), Column(name="c", type="datetime", nullable=True)),
    primary_key=("id",),
)
POLICY = Policy(column="c", interval=Interval(micros=30 * DAY))


def test_its_version_follows_that_of_the_mysql_it_is_like() -> None:
    found = Flavour.from_text("8.0.11-TiDB-v8.5.0-alpha-ec8b81b98edc")
    assert (found.product, found.version, found.is_tidb) == ("TiDB", (8, 5, 0), True)
    assert not Flavour.from_text("8.0.36").is_tidb
    with pytest.raises(UnsupportedUrl, match=r"TiDB 6\.5\.0; Lapse needs 7\.1"):
        Flavour.from_text("5.7.25-TiDB-v6.5.0").check()


def test_the_three_comments_are_read() -> None:
    found = tidb.read(CREATE)
    assert found is not None and found.expires_like(POLICY)
    assert (found.enabled, found.every) == (True, Interval(micros=HOUR))


@pytest.mark.parametrize(
    ("written", "interval"),
    [
        ("3 MONTH", Interval(months=3)),
        ("0 SECOND", Interval()),
        ("'1:30' HOUR_MINUTE", Interval(micros=90 * MINUTE)),
        ("1 WEEK", Interval(micros=7 * DAY)),
    ],
)
def test_intervals_are_compared_by_value(written: str, interval: Interval) -> None:
    found = tidb.read(CREATE.replace("30 DAY", written))
    assert found is not None and found.expires_like(replace(POLICY, interval=interval))


def test_a_column_is_the_same_in_capitals() -> None:
    found = tidb.read(
        "CREATE TABLE `t` (`At` datetime) /*T![ttl] TTL=`at` + INTERVAL 30 DAY */ /*T![ttl] TTL_ENABLE='ON' */"
    )
    assert found is not None
    assert found.expires_like(replace(POLICY, column="At", interval=Interval(micros=30 * DAY)))
    assert not found.expires_like(replace(POLICY, column="other", interval=Interval(micros=30 * DAY)))


def test_an_interval_in_other_words_is_like_no_policy() -> None:
    found = tidb.read(CREATE.replace("30 DAY", "1.5 DAY"))
    assert found is not None and found.interval is None and not found.expires_like(POLICY)


@pytest.mark.parametrize("name", ["a` + INTERVAL 1 DAY */", "it''s", "ü *\u2603/", "/*T![ttl] TTL=x */"])
def test_a_column_may_be_called_anything(name: str) -> None:
    quoted = name.replace("`", "``")
    found = tidb.read(CREATE.replace("TTL=`c`", f"TTL=`{quoted}`"))
    assert found is not None and found.column == name and found.every == Interval(micros=HOUR)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE `t` (`c` datetime) COMMENT='/*T![ttl] TTL=`c` + INTERVAL 1 DAY */'",
        "CREATE TABLE `/*T![ttl] TTL=x + INTERVAL 1 DAY */` (`c` datetime)",
        "CREATE TABLE `t` (`c` datetime COMMENT 'it''s /*T![ttl] TTL=`c` + INTERVAL 1 DAY */')",
        r"CREATE TABLE `t` (`c` datetime COMMENT '\\\' /*T![ttl] TTL=`c` + INTERVAL 1 DAY */')",
        "CREATE TABLE `t` (`c` datetime) /*T![clustered_index] CLUSTERED */",
    ],
)
def test_what_only_looks_like_it_is_none(text: str) -> None:
    assert tidb.read(text) is None
    assert tidb.without_ttl(text) == text


def test_the_statement_without_it() -> None:
    assert tidb.without_ttl(CREATE) == CREATE.removesuffix(OPTIONS).rstrip()
    assert tidb.read(tidb.without_ttl(CREATE)) is None


def test_what_is_written_is_what_is_read() -> None:
    clause = tidb.clause(replace(POLICY, job_interval=Interval(micros=26 * HOUR)), enabled=False)
    assert clause == "TTL = `c` + INTERVAL 30 DAY TTL_ENABLE = 'OFF' TTL_JOB_INTERVAL = '1d2h'"
    # TiDB writes its options apart and without blanks.
    stored = CREATE.replace("'ON'", "'OFF'").replace("'1h'", "'1d2h'")
    found = tidb.read(stored)
    assert found is not None and not found.enabled and found.every == Interval(micros=26 * HOUR)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(expire_after=Interval(micros=DAY)), "ttl_expire_after"),
        (replace(POLICY, column="nope"), "no column nope"),
        (replace(POLICY, partition_drop=True), "cannot lock a table"),
    ],
)
def test_what_cannot_be_had_is_refused(policy: Policy, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        tidb.refuse(TABLE, policy)
    with pytest.raises(Unsupported, match="is a view"):
        tidb.refuse(replace(TABLE, kind=TableKind.VIEW), POLICY)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(expression="c + INTERVAL '1 day'"), "ttl_expiration_expression"),
        (replace(POLICY, interval=Interval(months=1, micros=DAY)), "whole months"),
        (replace(POLICY, interval=Interval(micros=1)), "whole seconds"),
        (replace(POLICY, column="id"), "id is bigint"),
        (replace(POLICY, job_cron="0 3 * * *"), "0 3 * * *"),
        (replace(POLICY, job_interval=Interval(micros=1_000_000)), "minutes"),
        (replace(POLICY, delete_rate_limit=5), "ttl_delete_rate_limit"),
        (replace(POLICY, delete_batch_size=5), "ttl_delete_batch_size"),
        (replace(POLICY, hide_expired="view"), "ttl_hide_expired"),
        (replace(POLICY, filter="id > 5"), "ttl_filter"),
        (replace(POLICY, partitions=(PartitionRule(partition="p", after=Interval(micros=DAY)),)), "ttl_partitions"),
    ],
)
def test_what_tidb_cannot_say_is_for_lapses_own_job(policy: Policy, words: str) -> None:
    tidb.refuse(TABLE, policy)
    assert words in str(tidb.why_not(TABLE, policy))


def test_tables_that_others_refer_to_or_that_have_partitions_are_for_lapses_own_job() -> None:
    child = Reference(table=TableName("child"), columns=("t",), referred=("id",), action=FkAction.CASCADE, indexed=True)
    assert "rows of child refer to it" in str(tidb.why_not(replace(TABLE, referenced_by=(child,)), POLICY))
    assert "partitions" in str(tidb.why_not(replace(TABLE, kind=TableKind.PARTITIONED), POLICY))


def test_a_plain_policy_is_tidbs_and_parameters_without_a_meaning_are_named() -> None:
    plain = replace(POLICY, pause=True, time_zone="UTC", guard=False)
    assert tidb.why_not(TABLE, plain) is None and tidb.without_effect(plain) == []
    (notice,) = tidb.without_effect(replace(POLICY, select_as_of_system_time=Interval(micros=DAY)))
    assert "ttl_select_as_of_system_time" in notice


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        ("", Ending.FINISHED),
        ("tidb_ttl_job_enable turned off", Ending.CANCELLED),
        ("TTL table has been removed or the TTL on this table has been stopped", Ending.CANCELLED),
        ("out of TTL job schedule window", Ending.CANCELLED),
        ("job is timeout", Ending.FAILED),
    ],
)
def test_how_a_job_ended_is_in_its_summary(error: str, ending: Ending) -> None:
    summary = json.dumps({"total_rows": 3, "success_rows": 3, "scan_task_err": error} if error else {"total_rows": 3})
    found = tidb.report(summary, 3, 2, 1)
    assert (found.ending, found.expired, found.deleted, found.errors) == (ending, 3, 2, 1)


def test_zones_agree_by_what_they_mean() -> None:
    assert tidb.is_zone(POLICY, "+00:00") and tidb.is_zone(replace(POLICY, time_zone="Etc/UTC"), "UTC")
    assert not tidb.is_zone(POLICY, "Asia/Tokyo")
    assert tidb.is_zone(replace(POLICY, time_zone="Asia/Tokyo"), "Asia/Tokyo")
