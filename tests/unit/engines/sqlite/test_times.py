"""Times in SQLite's columns: what the SQL that Lapse writes says about values of every format, right and wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from lapse.engines.sqlite.times import (
    clamped_date,
    column_milliseconds,
    from_milliseconds,
    milliseconds_of,
    months_later,
    text_milliseconds,
    threshold,
    to_text,
)
from lapse.model import interval
from lapse.model.interval import Interval
from lapse.model.table import TimeFormat

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = Interval()
JULIAN_NOON = 2_461_101.0
"""Julian days begin at noon: the number of 2026-03-01 12:00 is whole."""


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as found:
        found.execute("CREATE TABLE t (at)")
        yield found


def is_expired(
    database: sqlite3.Connection,
    value: object,
    fmt: TimeFormat,
    *,
    after: Interval = NOTHING,
    zone: str = "UTC",
    cutoff: datetime = NOON,
) -> bool:
    """What the exact condition says; its bound, which an index serves, must let every expired row through."""
    database.execute("DELETE FROM t")
    database.execute("INSERT INTO t VALUES (?)", (value,))
    found = threshold("at", fmt, after, cutoff, zone)
    (exact,) = database.execute(f"SELECT count(*) FROM t WHERE {found.sql}").fetchone()
    (bound,) = database.execute(f"SELECT count(*) FROM t WHERE {found.bound}").fetchone()
    assert bound >= exact
    return bool(exact)


@pytest.mark.parametrize(
    ("value", "fmt"),
    [
        ("2026-03-01 12:00:00", TimeFormat.ISO),
        ("2026-03-01T12:00:00Z", TimeFormat.ISO),
        ("2026-03-01 14:00:00+02:00", TimeFormat.ISO),
        ("2026-03-01 12:00:00.000", TimeFormat.ISO),
        ("2026-03-01", TimeFormat.ISO),
        (int(NOON.timestamp()), TimeFormat.UNIX),
        (float(NOON.timestamp()), TimeFormat.UNIX),
        (int(NOON.timestamp()) * 1000, TimeFormat.UNIX_MS),
        (JULIAN_NOON, TimeFormat.JULIAN),
    ],
)
def test_a_time_that_is_not_after_the_cutoff_has_expired(
    database: sqlite3.Connection, value: object, fmt: TimeFormat
) -> None:
    assert is_expired(database, value, fmt)
    assert not is_expired(database, value, fmt, cutoff=NOON - timedelta(days=1))
    assert not is_expired(database, value, fmt, after=interval.parse("1 day", name="x"))


@pytest.mark.parametrize(
    ("value", "fmt"),
    [
        ("2026-03-01 12:00:00.001", TimeFormat.ISO),
        ("2026-03-01T12:00:00-00:01", TimeFormat.ISO),
        (NOON.timestamp() + 0.001, TimeFormat.UNIX),
        (int(NOON.timestamp()) * 1000 + 1, TimeFormat.UNIX_MS),
        (JULIAN_NOON + 0.0001, TimeFormat.JULIAN),
    ],
)
def test_a_moment_later_has_not(database: sqlite3.Connection, value: object, fmt: TimeFormat) -> None:
    assert not is_expired(database, value, fmt)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "never",
        "0000-00-00",
        "2026-02-30 12:00:00",
        "2025-02-29",
        "2026-01-01 24:30:00",
        "2026-13-01",
        "2026-01-01 12:00:00 or so",
        "20260101",
        "12:00:00",
        "now",
        20_260_101,
        2_451_545.0,
        b"2020-01-01",
        -1,
        0,
    ],
)
def test_what_is_no_iso_time_never_expires(database: sqlite3.Connection, value: object) -> None:
    assert not is_expired(database, value, TimeFormat.ISO)


@pytest.mark.parametrize("fmt", [TimeFormat.UNIX, TimeFormat.UNIX_MS, TimeFormat.JULIAN])
@pytest.mark.parametrize("value", [None, 0, -1, "2020-01-01", "1", b"1", ""])
def test_what_is_no_number_of_a_time_never_expires(
    database: sqlite3.Connection, fmt: TimeFormat, value: object
) -> None:
    assert not is_expired(database, value, fmt)


def test_numbers_of_another_unit_do_not_expire(database: sqlite3.Connection) -> None:
    """Seconds read as milliseconds would be times of 1970."""
    assert not is_expired(database, int(NOON.timestamp()), TimeFormat.UNIX_MS)
    assert not is_expired(database, int(NOON.timestamp()), TimeFormat.JULIAN)


def test_wall_clock_times_are_read_in_the_policy_s_zone_and_instants_are_not(database: sqlite3.Connection) -> None:
    assert is_expired(database, "2026-03-01 13:00:00", TimeFormat.ISO, zone="Europe/Berlin")
    assert not is_expired(database, "2026-03-01 13:00:00", TimeFormat.ISO, zone="UTC")
    assert not is_expired(database, "2026-03-01 13:00:00Z", TimeFormat.ISO, zone="Europe/Berlin")
    assert not is_expired(database, "2026-03-01 12:00:00", TimeFormat.ISO, zone="America/New_York")
    assert is_expired(database, "2026-03-01 12:00:00Z", TimeFormat.ISO, zone="America/New_York")


def test_the_bound_lets_the_largest_offsets_through(database: sqlite3.Connection) -> None:
    assert is_expired(database, "2026-03-02 02:00:00+14:00", TimeFormat.ISO)


@pytest.mark.parametrize("affinity", ["TEXT", "INTEGER", "NUMERIC", "REAL", "DATETIME"])
def test_the_affinity_of_the_column_changes_nothing(affinity: str) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE TABLE t (at {affinity})")
        assert is_expired(database, "2020-01-01 00:00:00", TimeFormat.ISO)
        assert not is_expired(database, "2030-01-01 00:00:00", TimeFormat.ISO)


def value_of(database: sqlite3.Connection, sql: str, value: object) -> int | None:
    database.execute("DELETE FROM t")
    database.execute("INSERT INTO t VALUES (?)", (value,))
    found: int | None = database.execute(f"SELECT {sql} FROM t").fetchone()[0]
    return found


@pytest.mark.parametrize(
    ("value", "fmt"),
    [
        ("2026-03-01 12:00:00", TimeFormat.ISO),
        ("2026-03-01 14:00:00+02", TimeFormat.ISO),
        ("2026-03-01 14:00:00+0200", TimeFormat.ISO),
        (int(NOON.timestamp()), TimeFormat.UNIX),
        (int(NOON.timestamp()) * 1000, TimeFormat.UNIX_MS),
        (JULIAN_NOON, TimeFormat.JULIAN),
    ],
)
def test_a_column_in_milliseconds(database: sqlite3.Connection, value: object, fmt: TimeFormat) -> None:
    assert value_of(database, column_milliseconds("at", fmt), value) == milliseconds_of(NOON)


def test_never_is_nothing_or_far_ahead(database: sqlite3.Connection) -> None:
    far = "9999-12-31 00:00:00"
    assert value_of(database, column_milliseconds("at", TimeFormat.ISO), far) is None
    ahead = value_of(database, column_milliseconds("at", TimeFormat.ISO, never=True), far)
    assert ahead is not None and ahead > milliseconds_of(NOON + timedelta(days=36_500))
    as_it_is = value_of(database, text_milliseconds("at", compared=True), far)
    assert as_it_is is not None and from_milliseconds(as_it_is) == datetime(9999, 12, 31, tzinfo=UTC)
    assert value_of(database, column_milliseconds("at", TimeFormat.ISO, never=True), "rubbish") is None


@pytest.mark.parametrize(
    ("day", "months", "found"),
    [
        ("2026-01-31", 1, "2026-02-28"),
        ("2028-01-31", 1, "2028-02-29"),
        ("2026-03-31", -1, "2026-02-28"),
        ("2026-01-15", 1, "2026-02-15"),
        ("2026-12-31", 2, "2027-02-28"),
        ("2028-02-29", 12, "2029-02-28"),
    ],
)
def test_months_end_where_a_shorter_month_ends(database: sqlite3.Connection, day: str, months: int, found: str) -> None:
    assert database.execute(f"SELECT {clamped_date(repr(day), months)}").fetchone() == (found,)
    start = milliseconds_of(datetime.fromisoformat(f"{day} 10:30:00.250+00:00"))
    (later,) = database.execute(f"SELECT {months_later(str(start), months)}").fetchone()
    assert from_milliseconds(later) == datetime.fromisoformat(f"{found} 10:30:00.250+00:00")


def test_instants_are_stored_as_text_in_utc_and_read_back() -> None:
    assert to_text(NOON) == "2026-03-01 12:00:00.000"
    assert from_milliseconds(milliseconds_of(NOON)) == NOON
    assert from_milliseconds(None) is None
    assert from_milliseconds(10**18) is None
