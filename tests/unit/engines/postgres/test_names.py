"""Quoting, and values that no session setting can change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lapse.engines.postgres import names, times
from lapse.errors import Unsupported
from lapse.model.interval import Interval
from lapse.model.table import TableName


def test_identifiers_and_texts() -> None:
    assert names.quote('a"b') == '"a""b"'
    assert names.literal("it's") == "'it''s'"
    assert names.literal("back\\slash'") == " E'back\\\\slash'''"
    for make in (names.quote, names.literal):
        with pytest.raises(Unsupported):
            make("a\0b")


@pytest.mark.parametrize(
    ("leaf", "schema"),
    [
        ("p1", "public"),
        ('"p" . 1', "public"),
        ("p1", "other"),
        ('a"b.c', 'd".e'),
        ("a.b", "x"),
        ('"public"."orders"', "public"),
    ],
)
def test_a_leaf_is_never_parsed_out_of_its_name(leaf: str, schema: str) -> None:
    name = TableName("events", "public", leaf, None if schema == "public" else schema)
    assert names.own_name(name) == TableName(leaf, schema)
    assert names.relation(name) == f"{names.quote(schema)}.{names.quote(leaf)}"


def test_times_carry_their_zone() -> None:
    moment = datetime(2026, 3, 15, 7, 0, 0, 5, tzinfo=timezone(timedelta(hours=-5)))
    assert times.instant(moment) == "pg_catalog.timestamptz '2026-03-15 12:00:00.000005+00'"
    assert times.wall_clock(datetime(1, 2, 3)) == "TIMESTAMP '0001-02-03 00:00:00.000000'"  # noqa: DTZ001
    assert times.day(datetime(2026, 3, 15, tzinfo=UTC).date()) == "pg_catalog.date '2026-03-15'"


def test_intervals_never_speak_of_days() -> None:
    assert times.micros(86_400_000_000) == "INTERVAL '86400 seconds'"
    assert times.micros(1_500_000) == "INTERVAL '1.500000 seconds'"
    assert times.micros(31_622_400_000_500_000) == "INTERVAL '8784000 hours 0.500000 seconds'"
    assert times.shifted("x", Interval(months=1), "+") == (
        "(((x AT TIME ZONE 'UTC') OPERATOR(pg_catalog.+) INTERVAL '1 months') AT TIME ZONE 'UTC')"
    )
