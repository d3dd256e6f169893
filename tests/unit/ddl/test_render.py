"""What is rendered reads back as the same policy; what cannot be said is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl import parse_expression, parse_one
from lapse.ddl.literal import RESERVED, quote_if_needed
from lapse.ddl.render import render, render_options
from lapse.errors import InvalidValue, Unsupported
from lapse.model.expression import ColumnRef
from lapse.model.interval import DAY, HOUR, MINUTE, SECOND, Interval
from lapse.model.policy import PartitionRule, Policy
from lapse.model.statement import AlterTable, CreateTable
from lapse.model.table import TableName, TimeFormat

DIALECT_OF = {"cockroach": "postgres", "lapse": "postgres", "tidb": "mysql", "myrocks": "mysql"}

names = st.one_of(
    st.sampled_from(
        ["events", 'odd "name', "a`b", "x y", "semi;colon", "-- c", "/* c */", "it's", "Größe", "select", "\\"]
    ),
    st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=12),
)
tables = st.builds(TableName, names, st.none() | names)
intervals = st.builds(
    Interval, months=st.integers(0, 100), micros=st.integers(0, 1000 * DAY)
)  # fmt: skip
positive = intervals.filter(bool)
fixed = st.integers(1, 1000 * DAY).map(lambda micros: Interval(micros=micros))
minutes = st.integers(1, 10_000).map(lambda count: Interval(micros=count * MINUTE))
seconds = st.integers(1, 2**31).map(lambda count: Interval(micros=count * SECOND))
single_unit = st.one_of(st.integers(0, 500).map(lambda count: Interval(months=count)), fixed)
expressions = st.sampled_from(
    ["if(should_delete, expiration, NULL)", "now() + '5 minutes'", "coalesce(a, b) + INTERVAL '1 day'", "NULL"]
)


def expiry(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["managed", "expression", "column"]))
    values: dict[str, Any] = {}
    if kind == "managed" or draw(st.booleans()):
        values["expire_after"] = draw(positive)
    if kind == "expression":
        values["expression"] = draw(expressions)
    if kind == "column":
        values |= {"column": draw(names), "interval": draw(intervals)}
    return values


PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "select_batch_size": st.integers(1, 1000),
    "delete_batch_size": st.integers(1, 1000),
    "select_rate_limit": st.integers(0, 1000),
    "delete_rate_limit": st.integers(0, 1000),
    "row_stats_poll_interval": seconds,
    "pause": st.booleans(),
    "job_cron": st.sampled_from(["@daily", "*/5 * * * *"]),
    "label_metrics": st.booleans(),
    "select_as_of_system_time": fixed,
}
LAPSE_PARAMETERS = PARAMETERS | {
    "adaptive": st.booleans(),
    "time_zone": st.sampled_from(["UTC", "Europe/Berlin"]),
    "time_format": st.none() | st.sampled_from(list(TimeFormat)),
    "hide_expired": st.sampled_from(["off", "view", "policy"]),
    "partition_drop": st.booleans(),
    "replication_origin": st.sampled_from(["lapse", "it's"]),
    "filter": st.sampled_from(["status = 'done'", "NOT keep"]),
    "delete_within": positive,
}


@st.composite
def cockroach_policies(draw: st.DrawFn, parameters: dict[str, st.SearchStrategy[Any]]) -> Policy:
    return Policy(**expiry(draw), **draw(st.fixed_dictionaries({}, optional=parameters)))


tidb_policies = st.builds(
    Policy,
    column=names,
    interval=single_unit,
    pause=st.booleans(),
    job_interval=st.none() | minutes,
)
comment_names = names.filter(lambda name: ";" not in name and name == name.strip())
partition_names = comment_names.filter(lambda name: not re.search(r"[\s=]", name))


@st.composite
def myrocks_policies(draw: st.DrawFn) -> Policy:
    partitions = draw(st.lists(partition_names, unique=True, max_size=3))
    whole = draw(st.sampled_from(["managed", "column", "partitions"]))
    required = whole == "partitions"
    rules = tuple(
        PartitionRule(
            partition=name,
            after=draw(seconds),
            column=draw(comment_names if required else st.none() | comment_names),
        )
        for name in partitions
    )
    if whole == "managed" or not rules:
        return Policy(expire_after=draw(seconds), partitions=rules)
    if whole == "column":
        return Policy(column=draw(comment_names), interval=draw(seconds), partitions=rules)
    return Policy(expression="NULL", partitions=rules)


def reads_back(policy: Policy, table: TableName, dialect: str) -> None:
    altered = parse_one(render(policy, table, dialect), DIALECT_OF[dialect])
    assert isinstance(altered, AlterTable)
    assert altered.table == table
    assert altered.text == "" or dialect == "myrocks"
    assert altered.change.apply_to(None, str(table)) == policy
    created = parse_one(
        f"CREATE TABLE t (a int) {render(policy, table, dialect, kind='create-suffix')}", DIALECT_OF[dialect]
    )
    assert isinstance(created, CreateTable)
    assert created.change.apply_to(None, "t") == policy
    assert dialect == "myrocks" or created.text == "CREATE TABLE t (a int)"


@given(policy=cockroach_policies(PARAMETERS), table=tables)
def test_cockroach_reads_back(policy: Policy, table: TableName) -> None:
    reads_back(policy, table, "cockroach")


@given(policy=cockroach_policies(LAPSE_PARAMETERS), table=tables)
def test_lapse_reads_back(policy: Policy, table: TableName) -> None:
    reads_back(policy, table, "lapse")


@given(policy=tidb_policies, table=tables)
def test_tidb_reads_back(policy: Policy, table: TableName) -> None:
    reads_back(policy, table, "tidb")


@given(policy=myrocks_policies(), table=tables)
def test_myrocks_reads_back(policy: Policy, table: TableName) -> None:
    reads_back(policy, table, "myrocks")


@given(policy=myrocks_policies(), paused=st.booleans(), table=tables)
def test_rules_of_partitions_read_back(policy: Policy, paused: bool, table: TableName) -> None:
    if policy.partitions:
        reads_back(replace(policy, pause=paused, hide_expired="view"), table, "lapse")


MONTHS = Interval(months=3)
COLUMN = Policy(column="created_at", interval=MONTHS, pause=True, job_interval=Interval(micros=DAY))


def test_what_is_written() -> None:
    table = TableName("events", "public")
    assert render(COLUMN, table, "tidb") == (
        "ALTER TABLE `public`.`events` TTL = `created_at` + INTERVAL 3 MONTH TTL_ENABLE = 'OFF' TTL_JOB_INTERVAL = '1d'"
    )
    managed = Policy(expire_after=Interval(micros=5 * MINUTE), select_batch_size=200)
    assert render(managed, table, "cockroach") == (
        "ALTER TABLE public.events SET (ttl_expire_after = '5 minutes', ttl_select_batch_size = 200)"
    )
    assert render(managed, table, "lapse", kind="create-suffix").startswith("WITH (ttl_expire_after = '5 minutes'")
    assert render(Policy(expire_after=Interval(micros=HOUR)), table, "myrocks", kind="create-suffix") == (
        "COMMENT = 'ttl_duration=3600;'"
    )


def test_options_are_listed_as_in_reloptions() -> None:
    assert render_options(COLUMN) == [
        "ttl='on'",
        "ttl_expiration_expression='created_at + INTERVAL ''3 months'''",
        "ttl_pause='on'",
        "ttl_job_interval='1 day'",
    ]
    rule = PartitionRule(partition="p1", after=Interval(micros=SECOND), column="c2")
    assert render_options(Policy(expire_after=Interval(micros=MINUTE), partitions=(rule,)))[-2:] == [
        "p1_ttl_duration='1 second'",
        "p1_ttl_col='c2'",
    ]


@pytest.mark.parametrize(
    ("policy", "dialect", "name"),
    [
        (Policy(expire_after=MONTHS), "tidb", "ttl_expire_after"),
        (Policy(expression="a + b"), "tidb", "ttl_expiration_expression"),
        (Policy(column="a", interval=MONTHS, hide_expired="view"), "tidb", "ttl_hide_expired"),
        (Policy(column="a", interval=MONTHS, job_cron="@daily"), "tidb", "ttl_job_cron"),
        (Policy(column="a", interval=Interval(months=1, micros=DAY)), "tidb", "TTL"),
        (Policy(column="a", interval=MONTHS, job_interval=Interval(micros=SECOND)), "tidb", "ttl_job_interval"),
        (Policy(expire_after=MONTHS), "myrocks", "ttl_duration"),
        (Policy(expire_after=Interval(micros=1)), "myrocks", "ttl_duration"),
        (Policy(column="a", interval=Interval()), "myrocks", "ttl_duration"),
        (Policy(column="a;b", interval=Interval(micros=SECOND)), "myrocks", "ttl_col"),
        (Policy(expression="a + b"), "myrocks", "ttl_expiration_expression"),
        (Policy(expire_after=Interval(micros=SECOND), pause=True), "myrocks", "ttl_pause"),
        (Policy(expire_after=MONTHS, adaptive=False), "cockroach", "ttl_adaptive"),
        (Policy(expire_after=MONTHS, job_interval=Interval(micros=DAY)), "cockroach", "ttl_job_interval"),
        (
            Policy(expire_after=MONTHS, partitions=(PartitionRule(partition="p1", after=MONTHS),)),
            "cockroach",
            "p1_ttl_duration",
        ),
    ],
)
def test_what_a_dialect_cannot_say_is_refused(policy: Policy, dialect: str, name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        render(policy, TableName("t"), dialect)


def test_unknown_dialect_and_kind() -> None:
    with pytest.raises(InvalidValue):
        render(COLUMN, TableName("t"), "oracle")
    with pytest.raises(InvalidValue):
        render(COLUMN, TableName("t"), "tidb", kind="drop")


def test_no_keyword_is_written_bare_that_does_not_read_back() -> None:
    from sqlglot import TokenType
    from sqlglot.dialects.postgres import Postgres

    words = {word.lower() for word in (*Postgres.Tokenizer.KEYWORDS, *RESERVED, *(t.name for t in TokenType))}
    for word in sorted(words):
        assert parse_expression(quote_if_needed(word), columns=None) == ColumnRef(word)
