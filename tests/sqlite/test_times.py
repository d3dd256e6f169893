"""Time columns as SQLite people store them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.errors import Blocked, LapseError, Refused
from lapse.model.blocked import BlockCode
from lapse.model.interval import DAY, Interval
from lapse.model.job import JobStatus, KeyRange
from lapse.model.policy import Policy
from lapse.model.table import TableName
from lapse.runner.policy_manager import bind
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


def test_what_is_no_time_is_kept_and_a_mixture_of_times_stops_the_job(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)}), (2, 'yesterday')")
    h.run()
    assert h.ids() == [2]
    h.sql(f"INSERT INTO events VALUES (3, {h.at(days=-2)}), (4, x'00')")
    h.sql("CREATE TABLE mixed (id INTEGER PRIMARY KEY, ts) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO mixed VALUES (1, {h.at(days=-2)}), (2, {int(h.now.timestamp()) - 200_000})")
    job = h.run_one("mixed")
    assert job.status is JobStatus.FAILED
    assert "mixture" in (job.reason or "")
    assert h.ids("mixed") == [1, 2]


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


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("fmt", ["unix", "unix_ms", "julian", "iso"])
@pytest.mark.parametrize(
    "rule", ["ts", "ts + INTERVAL ''1 hour''", "CASE WHEN id > 0 THEN ts + INTERVAL ''1 hour'' END"]
)
def test_values_that_say_never_and_other_units_are_kept(h: Harness, fmt: str, rule: str, index: bool) -> None:
    """With the format that the policy names, as the hint of a mixture says."""
    old = {"iso": f"'{h.now - timedelta(days=2):%Y-%m-%d %H:%M:%S}'"}.get(fmt) or _value(h, fmt, -timedelta(days=2))
    ahead = int((h.now + timedelta(days=3650)).timestamp())
    values = [old, "0", "-1", str(ahead), str(ahead * 1000), "'0000-01-01'", "'9999-12-31'", "1e300", "2460000.5e3"]
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts)")
    if index:
        h.sql("CREATE INDEX events_ts ON events (ts)")
    for number, value in enumerate(values, start=1):
        h.sql(f"INSERT INTO events VALUES ({number}, {value})")
    h.sql(f"ALTER TABLE events SET (ttl_expiration_expression = '{rule}', ttl_time_format = '{fmt}')")
    h.db.preview("events")
    h.run()
    assert h.ids() == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_year_that_python_cannot_hold(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY")
    h.sql(
        "INSERT INTO events WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
        " SELECT i, '2026-03-15 11:00:00' FROM n"
    )
    h.sql("INSERT INTO events VALUES (20000, '0000-01-01'), (20001, '9999-12-31')")
    h.db.preview("events")
    assert h.db.run().deleted == 0
    h.db.doctor()


def test_a_column_that_is_renamed_during_a_job_blocks_the_table(h: Harness) -> None:
    """In double quotes the old name would be read as text, and every row as not expired."""
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)})")
    engine = h.db.engine
    with engine.connection() as connection:
        table = engine.describe(connection, TableName("events"))
        declared = bind(table, Policy(column="ts", interval=Interval(micros=DAY)))
        armed = h.db.policy("events").armed
        assert armed is not None
        target = engine.target(connection, declared, h.now, armed=armed)
        deleter = engine.deleter(target, KeyRange(start="0", end="10"), None)
        connection.exec_driver_sql("ALTER TABLE events RENAME COLUMN ts TO t2")
    with pytest.raises(Blocked, match="ts") as refusal:
        deleter.step(10, lambda connection, batch: None)
    assert refusal.value.code is BlockCode.COLUMN_CHANGED
    assert h.ids() == [1]
