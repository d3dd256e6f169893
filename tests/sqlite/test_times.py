"""Time columns as SQLite people store them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.errors import LapseError, Refused
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness


def _value(h: Harness, fmt: str, offset: timedelta) -> str:
    moment = h.now + offset
    if fmt == "unix":
        return str(int(moment.timestamp()))
    if fmt == "unix_ms":
        return str(int(moment.timestamp() * 1000))
    if fmt == "julian":
        return repr(moment.timestamp() / 86400 + 2440587.5)
    return (
        "'"
        + {
            "space": moment.strftime("%Y-%m-%d %H:%M:%S"),
            "t": moment.strftime("%Y-%m-%dT%H:%M:%S"),
            "z": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "offset": (moment + timedelta(hours=5)).strftime("%Y-%m-%d %H:%M:%S+05:00"),
            "date": moment.strftime("%Y-%m-%d"),
        }[fmt]
        + "'"
    )


CASES = [
    ("INTEGER", "unix"),
    ("INTEGER", "unix_ms"),
    ("BIGINT UNSIGNED", "unix"),
    ("REAL", "julian"),
    ("REAL", "unix"),
    ("TEXT", "space"),
    ("TEXT", "t"),
    ("TEXT", "z"),
    ("TIMESTAMP", "offset"),
    ("DATETIME", "space"),
    ("DATE", "date"),
    ("", "unix"),
    ("", "z"),
]


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize(("declared", "fmt"), CASES)
def test_every_format_is_recognised(h: Harness, declared: str, fmt: str, index: bool) -> None:
    h.sql(f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts {declared})")
    h.sql(
        f"INSERT INTO events VALUES (1, {_value(h, fmt, timedelta(days=-3))}), "
        f"(2, {_value(h, fmt, timedelta(days=2))}), (3, NULL), (4, {_value(h, fmt, timedelta(days=-400))})"
    )
    if index:
        h.sql("CREATE INDEX events_ts ON events (ts)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.run()
    assert h.ids() == [2, 3]


def test_the_boundary_of_unix_seconds(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts INTEGER) TTL = ts + INTERVAL 60 SECOND")
    now = int(h.now.timestamp())
    h.sql(f"INSERT INTO events VALUES (1, {now - 60}), (2, {now - 59})")
    h.run()
    assert h.ids() == [2]


def test_a_mixture_is_refused_at_declaration(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts INTEGER)")
    h.sql("INSERT INTO events VALUES (1, 1700000000), (2, 1700000000000)")
    with pytest.raises(Refused, match="mixture"):
        h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts', ttl_time_format = 'unix')")
    h.run()
    assert h.ids() == [2]


def test_a_mixture_that_comes_later_stops_the_job(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)}), (2, 'yesterday')")
    job = h.run_one()
    assert job.status is JobStatus.FAILED
    assert "mixture" in (job.reason or "")
    assert h.ids() == [1, 2]


@pytest.mark.parametrize("value", ["'soon'", "x'00ff'", "7", "'12:30'", "'now'"])
def test_values_that_are_no_time_are_refused(h: Harness, value: str) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts)")
    h.sql(f"INSERT INTO events VALUES (1, {value})")
    with pytest.raises(LapseError):
        h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    assert h.ids() == [1]


def test_an_empty_integer_column_is_taken_for_seconds(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts INTEGER) TTL = ts + INTERVAL 1 DAY")
    ms = int(h.now.timestamp() * 1000)
    h.sql(f"INSERT INTO events VALUES (1, {ms - 2 * 86400_000}), (2, {ms})")
    h.run()
    assert h.ids() == [2]


def test_a_wall_clock_row_is_never_deleted_early_when_clocks_go_back(h: Harness) -> None:
    from datetime import UTC, datetime

    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT)")
    h.sql("INSERT INTO events VALUES (1, '2026-10-25 02:30:00'), (2, '2026-10-25 01:30:00')")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts', ttl_time_zone = 'Europe/Berlin')")
    # 02:30 comes twice that night: at 00:30 and at 01:30 UTC.
    h.clock.set(datetime(2026, 10, 25, 0, 45, tzinfo=UTC))
    h.run()
    assert h.ids() == [1]
    h.clock.set(datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
    h.run()
    assert h.ids() == []


def test_json_expiry(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, doc TEXT) "
        "WITH (ttl_expiration_expression = '(doc->>''expires'')::timestamptz')"
    )
    h.sql(
        'INSERT INTO events VALUES (1, \'{"expires": "2026-03-15T11:59:59Z"}\'), '
        "(2, '{\"expires\": \"2026-03-15T12:00:01Z\"}'), (3, '{}')"
    )
    h.run()
    assert h.ids() == [2, 3]
