"""The statements of the reference documents, in every dialect, and what each declares."""

from __future__ import annotations

import sqlite3

import pytest

from lapse.ddl import parse
from lapse.ddl.lexer import DIALECTS
from lapse.errors import TtlSyntaxError
from lapse.model.interval import DAY, MINUTE, SECOND, Interval
from lapse.model.policy import PartitionRule
from lapse.model.statement import AlterTable, CreateTable, PassThrough
from tests.references import REFERENCE_STATEMENTS, ReferenceStatement

MINUTES_5, MINUTES_10, MINUTES_15 = (Interval(micros=count * MINUTE) for count in (5, 10, 15))
MONTHS_3 = Interval(months=3)
BY_MONTHS: dict[str, object] = {"column": "created_at", "interval": MONTHS_3}
SHORT: dict[str, object] = {"expire_after": MINUTES_5, "delete_batch_size": 1, "job_cron": "* * 1 * *"}
CONDITION: dict[str, object] = {"expression": "if(should_delete, expiration, NULL)"}
BOTH: dict[str, object] = {
    "expression": "if(should_delete, crdb_internal_expiration, NULL)",
    "expire_after": MINUTES_10,
}

DECLARES: dict[str, dict[str, object]] = {
    "docs-create-expire-after": {"expire_after": Interval(micros=3 * MINUTE)},
    "docs-shown-create-statement": {"expire_after": Interval(micros=3 * MINUTE)},
    "docs-create-fifteen-minutes": {"expire_after": MINUTES_15},
    "docs-alter-set": {"expire_after": MINUTES_15},
    "docs-create-job-cron": {"job_cron": "@daily"},
    "docs-alter-job-cron": {"job_cron": "@weekly"},
    "docs-reset-job-cron": {},
    "rfc-create-expire-after-summary": {"expire_after": MINUTES_5},
    "rfc-create-expression-summary": CONDITION,
    "rfc-create-expression-without-the-last-comma": CONDITION,
    "rfc-create-expire-after": {"expire_after": MINUTES_5},
    "rfc-create-with-hidden-column": {"expire_after": MINUTES_5},
    "rfc-create-ttl-on-and-expression": CONDITION,
    "rfc-create-both": BOTH,
    "rfc-create-both-without-the-last-comma": BOTH,
    "rfc-alter-expire-after": {"expire_after": MINUTES_5},
    "rfc-alter-batch-size": {"select_batch_size": 200},
    "rfc-reset-batch-size": {},
    "rfc-from-column-to-expression": {"column": "other_column", "interval": Interval()},
    "rfc-reset-expire-after": {},
    "rfc-from-expression-to-column": {"expire_after": MINUTES_10},
    "rfc-reset-expression": {},
    "rfc-reset-ttl": {},
    "rfc-other-syntax-create": {"expire_after": Interval(micros=30 * DAY)},
    "rfc-other-syntax-create-options": SHORT,
    "rfc-other-syntax-set": {"expire_after": Interval(micros=30 * DAY)},
    "rfc-other-syntax-set-options": SHORT,
    "tidb-create": BY_MONTHS,
    "tidb-create-disabled": BY_MONTHS | {"pause": True},
    "tidb-create-comment-form": BY_MONTHS | {"pause": True},
    "tidb-alter": BY_MONTHS,
    "tidb-alter-job-interval": {"job_interval": Interval(micros=DAY)},
    "tidb-remove": {},
    "tidb-cockroach-example": {"expire_after": MONTHS_3},
    "myrocks-column": {"column": "ts", "interval": Interval(micros=SECOND)},
    "myrocks-implicit": {"expire_after": Interval(micros=SECOND)},
    "myrocks-partitions": {
        "expire_after": Interval(micros=SECOND),
        "partitions": (
            PartitionRule(partition="custom_p1", after=Interval(micros=100 * SECOND), column="c2"),
            PartitionRule(partition="custom_p2", after=Interval(micros=5000 * SECOND)),
        ),
    },
}

FOR_SQLITE = [
    reference
    for reference in REFERENCE_STATEMENTS
    if "sqlite" in reference.engines and reference.kind in ("CreateTable", "PassThrough")
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("reference", REFERENCE_STATEMENTS, ids=lambda reference: reference.name)
def test_each_is_understood(reference: ReferenceStatement, dialect: str) -> None:
    if reference.kind == "refused":
        with pytest.raises(TtlSyntaxError):
            parse(reference.sql, dialect)
        return
    statement, *comments = parse(reference.sql, dialect)
    assert type(statement).__name__ == reference.kind
    assert all(isinstance(comment, PassThrough) and comment.verb == "" for comment in comments)
    if isinstance(statement, CreateTable | AlterTable):
        assert statement.change.set == DECLARES[reference.name]
        assert statement.change.remove == (reference.name in ("rfc-reset-ttl", "tidb-remove"))
    if isinstance(statement, PassThrough):
        assert statement.text == reference.sql.removesuffix(";")


def test_nothing_is_expected_of_statements_that_are_not_there() -> None:
    names = [reference.name for reference in REFERENCE_STATEMENTS]
    assert len(set(names)) == len(names)
    assert set(DECLARES) <= set(names)


@pytest.mark.parametrize("reference", FOR_SQLITE, ids=lambda reference: reference.name)
def test_what_is_left_is_valid_sqlite_where_it_is_said_to_be(reference: ReferenceStatement) -> None:
    connection = sqlite3.connect(":memory:")
    for text in (*reference.setup, reference.sql):
        for statement in parse(text, "sqlite"):
            if statement.text:
                connection.execute(statement.text)
    connection.close()
