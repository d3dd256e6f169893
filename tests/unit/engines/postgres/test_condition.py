"""The condition: the bare column against a constant, whatever the type."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lapse.engines.base import BoundPolicy
from lapse.engines.postgres import condition
from lapse.errors import Drift, Unsupported
from lapse.model.expression import Binary, ColumnRef, Node, Now, Span
from lapse.model.interval import DAY, Interval
from lapse.model.policy import Policy
from lapse.model.table import Column, Table, TableKind, TableName, TimeFormat

CUTOFF = datetime(2026, 3, 31, 12, 0, tzinfo=UTC)


def declared(
    kind: str, *, zone: str = "UTC", fmt: TimeFormat | None = None, after: Interval | None = None
) -> BoundPolicy:
    table = Table(name=TableName("events", "public"), kind=TableKind.TABLE, columns=(Column(name="ts", type=kind),))
    policy = Policy(
        column="ts",
        interval=Interval(micros=DAY) if after is None else after,
        time_zone=zone,
        time_format=fmt,
    )
    return BoundPolicy(table=table, policy=policy)


def between(low: str, high: str) -> str:
    return f'(("ts" OPERATOR(pg_catalog.>=) {low}) AND ("ts" OPERATOR(pg_catalog.<=) {high}))'


INSTANTS = between(
    "pg_catalog.timestamptz '1000-01-01 00:00:00.000000+00'", "pg_catalog.timestamptz '2026-03-30 12:00:00.000000+00'"
)


@pytest.mark.parametrize(
    ("kind", "zone", "sql"),
    [
        ("timestamp with time zone", "Asia/Tokyo", INSTANTS),
        ("timestamp(3) with time zone", "UTC", INSTANTS),
        (
            "timestamp without time zone",
            "Asia/Tokyo",
            between("TIMESTAMP '1000-01-01 00:00:00.000000'", "TIMESTAMP '2026-03-30 21:00:00.000000'"),
        ),
        ("date", "Pacific/Auckland", between("pg_catalog.date '1000-01-01'", "pg_catalog.date '2026-03-31'")),
        ("bigint", "UTC", between("100000000", "1774872000")),
    ],
)
def test_thresholds(kind: str, zone: str, sql: str) -> None:
    assert condition.at(declared(kind, zone=zone), CUTOFF).sql == sql


def test_numbers_with_a_format() -> None:
    found = condition.at(declared("numeric(20,3)", fmt=TimeFormat.UNIX_MS), CUTOFF)
    assert found.sql == between("100000000000", "1774872000000")
    with pytest.raises(Unsupported, match="ttl_time_format"):
        condition.at(declared("bigint", fmt=TimeFormat.JULIAN), CUTOFF)
    with pytest.raises(Unsupported, match="is no time"):
        condition.at(declared("bigint", after=Interval()), CUTOFF)


def test_an_hour_that_comes_twice_is_waited_out() -> None:
    """Clocks in New York go back at 06:00 UTC on 1 November 2026; half an hour before, 01:30 is still to come again."""
    before = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
    found = condition.at(declared("timestamp without time zone", zone="America/New_York", after=Interval()), before)
    assert found.threshold == "TIMESTAMP '2026-11-01 00:59:59.999999'"


def test_the_end_of_a_short_month_is_early_never_late() -> None:
    found = condition.at(declared("timestamp with time zone", after=Interval(months=1)), CUTOFF)
    assert found.threshold == "pg_catalog.timestamptz '2026-02-28 12:00:00.000000+00'"


def test_what_cannot_be() -> None:
    with pytest.raises(Unsupported, match="is no time"):
        condition.at(declared("text"), CUTOFF)
    gone = BoundPolicy(
        table=Table(name=TableName("events"), kind=TableKind.TABLE, columns=()),
        policy=Policy(column="ts", interval=Interval()),
    )
    with pytest.raises(Drift):
        condition.at(gone, CUTOFF)


def test_the_form_that_no_index_serves_says_the_same() -> None:
    found = condition.at(declared("date"), CUTOFF)
    assert found.unindexed == f"({found.sql}) IS TRUE"


def expression(node: Node, kind: str = "timestamp with time zone", zone: str = "UTC") -> str:
    base = declared(kind, zone=zone)
    policy = Policy(expression="…", time_zone=zone)
    return condition.at(BoundPolicy(table=base.table, policy=policy, expression=node), CUTOFF).sql


def test_expressions_name_their_zone() -> None:
    later = Binary("+", ColumnRef("ts"), Span(Interval(months=1)))
    assert "AT TIME ZONE 'UTC'" in expression(later)
    wall = expression(later, "timestamp without time zone", "Asia/Tokyo")
    assert "OPERATOR(pg_catalog.+) INTERVAL '1 months') AT TIME ZONE 'Asia/Tokyo')" in wall


def test_now_is_the_cutoff() -> None:
    assert expression(Now()) == (
        "(pg_catalog.timestamptz '2026-03-31 12:00:00.000000+00' OPERATOR(pg_catalog.<=)"
        " pg_catalog.timestamptz '2026-03-31 12:00:00.000000+00')"
    )
