"""Partition bounds: read by a grammar of constants, written anew, and nothing else gets through."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from lapse.engines.postgres import times
from lapse.engines.postgres.bounds import Value, read
from lapse.errors import Unsupported
from lapse.model import interval
from lapse.model.interval import Interval


@pytest.mark.parametrize(
    "text",
    [
        "DEFAULT",
        "FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-02-01 00:00:00+00')",
        "FOR VALUES FROM (MINVALUE) TO ('5')",
        "FOR VALUES FROM ('a', MINVALUE) TO ('b', MAXVALUE)",
        "FOR VALUES IN ('it''s', NULL, true)",
    ],
)
def test_what_the_server_writes_is_written_again(text: str) -> None:
    assert read(text).written == text


def test_numbers_are_quoted_and_hashes_spelled_in_capitals() -> None:
    assert read("FOR VALUES FROM (10) TO (-20.5)").written == "FOR VALUES FROM ('10') TO ('-20.5')"
    assert read("FOR VALUES WITH (modulus 4, remainder 1)").written == "FOR VALUES WITH (MODULUS 4, REMAINDER 1)"


def test_the_ends_of_a_range_are_told() -> None:
    bound = read("FOR VALUES FROM ('o''clock', MINVALUE) TO (7, MAXVALUE)")
    assert bound.low == (Value("o'clock"), Value("MINVALUE", word=True))
    assert bound.high == (Value("7"), Value("MAXVALUE", word=True))
    assert read("DEFAULT").low == ()


def test_a_backslash_stays_one() -> None:
    assert read(r"FOR VALUES FROM (E'a\\b') TO ('c')").low == (Value("a\\b"),)
    assert read(read(r"FOR VALUES FROM (E'a\\b') TO ('c')").written).low == (Value("a\\b"),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "default",
        "FOR VALUES FROM (now()) TO ('5')",
        "FOR VALUES FROM ('1') TO ('5'); DROP TABLE events",
        "FOR VALUES FROM ('1') TO ('5') --",
        "FOR VALUES FROM ('1' || current_user) TO ('5')",
        "FOR VALUES IN ((SELECT 1))",
        "FOR VALUES IN ('a' , 'b')",
        "FOR VALUES WITH (modulus 4, remainder x)",
        r"FOR VALUES FROM (E'\'') TO ('5')",
        "FOR VALUES FROM ('1'') TO ('5')",
        "FOR VALUES FROM () TO ()",
    ],
)
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="this is no partition bound"):
        read(text)


# Times


def test_instants_are_written_in_utc_and_wall_clock_times_as_they_are() -> None:
    noon = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert times.instant(east) == "pg_catalog.timestamptz '2026-03-01 12:00:00.000005+00'"
    assert times.wall_clock(east.replace(tzinfo=None)) == "TIMESTAMP '2026-03-01 17:30:00.000005'"
    assert times.day(date(987, 3, 1)) == "pg_catalog.date '0987-03-01'"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "INTERVAL '0 seconds'"),
        (1, "INTERVAL '0.000001 seconds'"),
        (86_400_000_000, "INTERVAL '86400 seconds'"),
        ((2**31 - 1) * 1_000_000, "INTERVAL '2147483647 seconds'"),
        (2**31 * 1_000_000, "INTERVAL '596523 hours 848 seconds'"),
    ],
)
def test_lengths_of_time_have_no_days_and_no_number_that_is_too_large(count: int, text: str) -> None:
    assert times.micros(count) == text


@pytest.mark.parametrize(
    ("text", "months", "seconds"), [("1 month", True, False), ("1 day", False, True), ("1 month 1 day", True, True)]
)
def test_months_are_counted_in_utc_and_first(text: str, months: bool, seconds: bool) -> None:
    found = times.shifted("at", interval.parse(text, name="x"), "+")
    assert ("AT TIME ZONE 'UTC'" in found, "seconds" in found) == (months, seconds)
    assert found.count("OPERATOR(pg_catalog.+)") == months + seconds
    if months and seconds:
        assert found.index("months") < found.index("seconds")


def test_no_time_at_all_leaves_the_moment_alone() -> None:
    assert times.shifted("at", Interval(), "+") == "at"
