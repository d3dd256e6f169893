"""The one grammar of comments: items and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.ddl import parse_comment_policy, parse_one, without_policy
from lapse.errors import InvalidValue
from lapse.model.interval import SECOND, Interval
from lapse.model.policy import PartitionRule
from lapse.model.statement import AlterTable, PassThrough

MINUTE = Interval(micros=60 * SECOND)
BY_COLUMN = {"column": "ts", "interval": MINUTE}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttl_duration=60;ttl_col=ts;", BY_COLUMN),
        ("ttl_duration=60;ttl_col=ts", BY_COLUMN),
        (" ttl_col = ts ;\n ttl_duration = 60 ; ", BY_COLUMN),
        ("cfname=foo;ttl_duration=60;ttl_col=ts;owner=Ada & co;", BY_COLUMN),
        ("ttl_duration=60;ttl_col=ts;ttl_pause=on;", BY_COLUMN | {"pause": True}),
        ("ttl_duration=60;ttl_col=ts;ttl_job_cron='@daily';", BY_COLUMN | {"job_cron": "@daily"}),
        ("ttl_expiration_expression=ts + INTERVAL '60 seconds';", BY_COLUMN),
        ("ttl_expire_after=60 seconds", {"expire_after": MINUTE}),
        (
            "p1_ttl_duration=60;p1_ttl_col=ts;",
            {"expression": "NULL", "partitions": (PartitionRule(partition="p1", after=MINUTE, column="ts"),)},
        ),
        ("ttl=on;", None),
        ("retention=60;", None),
        ("", None),
        (";;", None),
        ("We tried ttl_col=at; and ttl_duration=60; in 2019 and do not do it any more", None),
        ("Events. ttl_duration=60;ttl_col=ts;", None),
        ("ttl_duration=60;ttl_col=ts; Ask Ada.", None),
        ("sessions;ttl_duration=60;ttl_col=ts;", None),
        ("see p1_ttl_duration=60;p1_ttl_col=ts;", None),
    ],
)
def test_what_declares_a_policy(text: str, expected: dict[str, Any] | None) -> None:
    assert parse_comment_policy(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttl_duration=60;ttl_duration=61;", "once only"),
        ("ttl_duration=60;ttl_pause=on;ttl_pause=off;", "once only"),
        ("TTL_DURATION=60;", "lower case: ttl_duration"),
        ("P1_TTL_COL=ts;ttl_duration=60;", "lower case: P1_ttl_col"),
        ("ttl_duration=60;ttl_Pause=on;", "lower case: ttl_pause"),
        ("ttl_duration=60;ttl_nonsense=1;", "not known"),
        ("ttl_duration=60;ttl_guard=off;", "may not say ttl_guard"),
        ("ttl_duration=60;ttl_grace=0 seconds;", "may not say ttl_grace"),
        ("ttl_duration=60;ttl_partition_drop=on;", "may not say ttl_partition_drop"),
        ("ttl_duration=60;ttl_replication_origin=x;", "may not say ttl_replication_origin"),
        ("ttl_duration=60;ttl_expire_after=1 day;", "more than once"),
        ("ttl_duration=60;ttl_col=ts;ttl_expiration_expression=x;", "more than once"),
        ("ttl_duration=60;ttl_col=ts;ttl_expiration_expression=coalesce(a, b);", "more than once"),
        ("ttl_duration=-1;", "whole number of seconds"),
        ("ttl_duration=;", "whole number of seconds"),
        ("ttl_col=ts;", "needs ttl_duration"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        parse_comment_policy(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("ttl_duration=60;ttl_col=ts;", ""),
        ("owner=ada; ttl_duration=60; ttl_col=ts;p1_ttl_duration=6;ttl_job_cron=@daily", "owner=ada;"),
        ("ttl_guard=off;owner=ada", "owner=ada;"),
        ("Prose about ttl_col=at; and more", "Prose about ttl_col=at; and more"),
        ("owner=ada", "owner=ada"),
    ],
)
def test_what_is_left_without_the_policy(text: str, left: str) -> None:
    assert without_policy(text) == left
    assert without_policy(left) == left


def test_comment_on_table_declares_on_postgresql() -> None:
    text = "COMMENT ON TABLE s.t IS 'ttl_duration=60;ttl_col=ts;'"
    statement = parse_one(text, "postgres")
    assert isinstance(statement, AlterTable)
    assert (statement.text, str(statement.table), dict(statement.change.set)) == (text, "s.t", BY_COLUMN)
    assert statement.change.comment == "ttl_duration=60;ttl_col=ts;"
    assert isinstance(parse_one(text, "mysql"), PassThrough)


def test_a_comment_that_the_table_keeps_is_told_from_one_that_is_cut() -> None:
    text = "ALTER TABLE t COMMENT = 'ttl_duration=60;ttl_col=ts;ttl_pause=on;'"
    kept, cut = parse_one(text, "mysql"), parse_one(text, "postgres")
    assert isinstance(kept, AlterTable)
    assert isinstance(cut, AlterTable)
    assert (kept.text, cut.text) == (text, "")
    assert (kept.change.comment, cut.change.comment) == ("ttl_duration=60;ttl_col=ts;ttl_pause=on;", None)
    assert kept.change.set["pause"] is cut.change.set["pause"] is True
