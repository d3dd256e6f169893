"""Times of MySQL's columns as ranges, moments and steps; how a key is cut; which zone a server has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import zones
from lapse.engines.mysql.keys import Form
from lapse.engines.mysql.split import Stretch, _merged, between
from lapse.engines.mysql.times import (
    TimeKind,
    fraction_digits,
    instant_literal,
    kind_of,
    require_kind,
    shifted,
    threshold,
)
from lapse.errors import Unsupported
from lapse.model import interval
from lapse.model.policy import Policy
from lapse.model.table import Column, Table, TableKind, TableName

NOON = datetime(2026, 7, 1, 12, 0, 0, 123_456, tzinfo=UTC)
DAY = interval.parse("1 day", name="x")
EVENTS = TableName("events")


def column(kind: str, name: str = "at") -> Column:
    return Column(name=name, type=kind)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("timestamp", TimeKind.INSTANT),
        ("TIMESTAMP(6)", TimeKind.INSTANT),
        ("datetime(3)", TimeKind.WALL_CLOCK),
        ("date", TimeKind.DAY),
        ("int(10) unsigned", TimeKind.SECONDS),
        ("bigint unsigned", TimeKind.SECONDS),
        ("varchar(20)", None),
        ("time", None),
        ("year", None),
        ("tinyint(1)", None),
    ],
)
def test_which_columns_hold_a_time(kind: str, found: TimeKind | None) -> None:
    assert kind_of(column(kind)) is found


def test_a_column_that_holds_none_is_refused_with_those_that_do() -> None:
    with pytest.raises(Unsupported, match=r"column at of events is varchar\(20\), which cannot hold an expiry") as no:
        require_kind(column("varchar(20)"), EVENTS)
    assert "use TIMESTAMP, DATETIME, DATE" in str(no.value.hint)


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("timestamp", "'2026-06-30 12:00:00'"),
        ("timestamp(3)", "'2026-06-30 12:00:00.123'"),
        ("datetime(6)", "'2026-06-30 14:00:00.123456'"),
        ("date", "'2026-06-30'"),
        ("bigint", str(int(datetime(2026, 6, 30, 12, tzinfo=UTC).timestamp()))),
    ],
)
def test_the_latest_value_that_has_expired_is_cut_to_what_the_column_can_hold(kind: str, last: str) -> None:
    known = kind_of(column(kind))
    assert known is not None
    found = threshold(column(kind), known, DAY, NOON, "Europe/Berlin")
    assert f"`at` <= {last}" in found.sql
    assert found.last.endswith(last)
    assert found.zone.key == ("UTC" if known in (TimeKind.INSTANT, TimeKind.SECONDS) else "Europe/Berlin")


@pytest.mark.parametrize(
    ("kind", "excludes"), [("timestamp", False), ("datetime", True), ("date", True), ("int", False)]
)
def test_half_dates_never_expire(kind: str, excludes: bool) -> None:
    known = kind_of(column(kind))
    assert known is not None
    assert ("month(`at`) > 0" in threshold(column(kind), known, DAY, NOON, "UTC").sql) is excludes


def test_the_zero_of_every_kind_is_no_time() -> None:
    for kind in ("timestamp", "datetime", "date", "int"):
        known = kind_of(column(kind))
        assert known is not None
        assert threshold(column(kind), known, DAY, NOON, "UTC").sql.startswith("(`at` >= ")


def test_a_hostile_name_is_quoted() -> None:
    found = threshold(column("datetime", "a`; DROP TABLE x"), TimeKind.WALL_CLOCK, DAY, NOON, "UTC")
    assert "`a``; DROP TABLE x` >= " in found.sql


@pytest.mark.parametrize(
    ("text", "sign", "sql"),
    [
        ("1 day", "+", "(at + INTERVAL 1 DAY)"),
        ("90 minutes", "-", "(at - INTERVAL 90 MINUTE)"),
        ("2 hours", "+", "(at + INTERVAL 2 HOUR)"),
        ("1.5 seconds", "+", "(at + INTERVAL 1500000 MICROSECOND)"),
        ("1 month 1 day", "+", "((at + INTERVAL 1 MONTH) + INTERVAL 1 DAY)"),
        ("1 month 1 day", "-", "((at - INTERVAL 1 DAY) - INTERVAL 1 MONTH)"),
        ("1 year", "-", "(at - INTERVAL 12 MONTH)"),
    ],
)
def test_steps_are_taken_back_in_the_other_order(text: str, sign: str, sql: str) -> None:
    assert shifted("at", interval.parse(text, name="x"), sign) == sql


def test_an_instant_is_written_in_utc() -> None:
    east = NOON.astimezone(timezone(timedelta(hours=9)))
    assert instant_literal(east) == "TIMESTAMP'2026-07-01 12:00:00.123456'"


@pytest.mark.parametrize(("kind", "digits"), [("datetime", 0), ("datetime(3)", 3), ("timestamp(6)", 6)])
def test_digits_of_a_fraction(kind: str, digits: int) -> None:
    assert fraction_digits(column(kind)) == digits


# Zones


def declared(kind: str, zone: str | None = None) -> BoundPolicy:
    table = Table(name=EVENTS, kind=TableKind.TABLE, columns=(column(kind),))
    return BoundPolicy(table=table, policy=Policy(column="at", interval=DAY, time_zone=zone))


@pytest.mark.parametrize(
    ("row", "zone"),
    [
        (("+00:00", "CET", 60, 120), None),
        (("UTC", "CET", 60, 120), None),
        (("Europe/Berlin", "UTC", 0, 0), "Europe/Berlin"),
        (("SYSTEM", "UTC", 0, 0), None),
        (("SYSTEM", "IST", 330, 330), "+05:30"),
        (("SYSTEM", "PST", -480, -420), "PST (-08:00 in January, -07:00 in July)"),
    ],
)
def test_which_zone_a_server_has(row: tuple[Any, ...], zone: str | None) -> None:
    assert zones.told(declared("datetime"), row) == zone


def test_a_zone_that_the_policy_names_or_that_no_column_needs_is_no_question() -> None:
    row = ("Europe/Berlin", "CET", 60, 120)
    assert zones.told(declared("datetime", "UTC"), row) is None
    assert zones.told(declared("timestamp"), row) is None


# Cutting a key


def test_numbers_are_cut_evenly_up_to_the_last() -> None:
    assert between(Form.NUMBER, 0, 100, 4) == [25, 50, 75, 100]
    assert between(Form.NUMBER, 100, 0, 4) == [75, 50, 25, 0]
    assert between(Form.NUMBER, 0, 2, 8) == [1, 2]
    assert between(Form.NUMBER, 5, 5, 8) == []
    assert between(Form.NUMBER, 2**63 - 3, 2**63 - 1, 2) == [2**63 - 2, 2**63 - 1]


def test_moments_are_cut_in_the_precision_of_the_column() -> None:
    assert between(Form.MOMENT, "2026-01-01 00:00:00", "2026-01-03 00:00:00", 2) == [
        "2026-01-02 00:00:00",
        "2026-01-03 00:00:00",
    ]
    assert between(Form.MOMENT, "2026-01-01", "2026-01-02", 4) == ["2026-01-02"]


@pytest.mark.parametrize(
    ("low", "high"), [("0000-00-00 00:00:00", "2026-01-01 00:00:00"), ("2026-02-30", "2026-03-01")]
)
def test_dates_that_no_calendar_has_are_not_cut(low: str, high: str) -> None:
    assert between(Form.MOMENT, low, high, 4) == []


def test_other_forms_are_not_cut() -> None:
    assert between(Form.DECIMAL, 1, 100, 4) == []


def stretches(*rows: int) -> list[Stretch]:
    edges: list[Any] = [None, *((number,) for number in range(1, len(rows))), None]
    return [Stretch(start=start, end=end, rows=n) for (start, end), n in zip(pairwise(edges), rows, strict=True)]


@pytest.mark.parametrize(
    ("rows", "pieces", "merged"),
    [
        ((10, 10, 10, 10), 2, [20, 20]),
        ((10, 10, 10, 10), 4, [10, 10, 10, 10]),
        ((10, 10, 10, 10, 60), 2, [100]),
        ((60, 10, 10, 10, 10), 2, [60, 40]),
        ((0, 0), 2, [0]),
    ],
)
def test_neighbours_are_put_together_where_they_share_a_piece(
    rows: tuple[int, ...], pieces: int, merged: list[int]
) -> None:
    found = _merged(stretches(*rows), pieces)
    assert [each.rows for each in found] == merged
    # Together they are the whole key, without a gap.
    assert (found[0].start, found[-1].end) == (None, None)
    assert all(before.end == after.start for before, after in pairwise(found))
