"""The forecast: rows that expire on each coming day, and what the table settles at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lapse.app import Forecast, Lapse
from lapse.app.forecast import ForecastDay, together
from lapse.clock import ManualClock
from lapse.errors import Unsupported
from lapse.model.policy import Policy
from lapse.model.table import TableName
from tests.unit.runner.build import NOW


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Lapse]:
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=ManualClock(NOW)) as found:
        found.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT)")
        yield found


def arrive(database: Lapse, *hours_ago: float) -> None:
    for hours in hours_ago:
        at = NOW - timedelta(hours=hours)
        database.execute(f"INSERT INTO events (at) VALUES ('{at:%Y-%m-%d %H:%M:%S}')")


def days(forecast: Forecast) -> list[int]:
    return [day.rows for day in forecast.days]


def test_rows_are_counted_on_the_day_on_which_they_expire(database: Lapse) -> None:
    database.execute("ALTER TABLE events TTL = `at` + INTERVAL 3 DAY")
    arrive(database, 100, 73, 71, 49, 47, 1)
    forecast = database.forecast("events", days=3)
    assert (forecast.expired, forecast.rows, days(forecast)) == (2, 6, [2, 1, 1])
    assert [(day.start, day.end) for day in forecast.days[:2]] == [
        (NOW, NOW + timedelta(days=1)),
        (NOW + timedelta(days=1), NOW + timedelta(days=2)),
    ]
    assert (forecast.total(2), forecast.exact, forecast.ttl) == (3, True, None)


def test_a_row_that_expires_at_this_very_moment_has_expired(database: Lapse) -> None:
    database.execute("ALTER TABLE events TTL = `at` + INTERVAL 1 DAY")
    arrive(database, 24, 0)
    forecast = database.forecast("events", days=1)
    assert (forecast.expired, days(forecast)) == (1, [1])


def test_the_steady_state_is_what_arrives_in_a_lifetime(database: Lapse) -> None:
    database.execute("ALTER TABLE events TTL = `at` + INTERVAL 30 DAY")
    arrive(database, *(12 * number + 6 for number in range(14)))
    steady = database.forecast("events", days=1).steady
    assert steady is not None
    assert (steady.rows_per_day, steady.rows) == (2.0, 60)


def test_a_young_table_is_measured_from_its_first_rows_on(database: Lapse) -> None:
    database.execute("ALTER TABLE events TTL = `at` + INTERVAL 30 DAY")
    arrive(database, *(number for number in range(1, 24)))
    steady = database.forecast("events", days=1).steady
    assert steady is not None
    assert steady.rows_per_day == 23.0


def test_rows_that_never_expire_stay(database: Lapse) -> None:
    database.execute("ALTER TABLE events TTL = `at` + INTERVAL 2 DAY")
    arrive(database, 36, 12)
    database.execute("INSERT INTO events (at) VALUES (NULL), ('9999-01-01 00:00:00')")
    forecast = database.forecast("events", days=2)
    assert forecast.steady is not None
    assert (days(forecast), forecast.steady.rows) == ([1, 1], 4)


def test_without_arrivals_there_is_no_steady_state(database: Lapse) -> None:
    database.execute("ALTER TABLE events TTL = `at` + INTERVAL 30 DAY")
    assert database.forecast("events", days=1).steady is None
    arrive(database, 24 * 20)
    assert database.forecast("events", days=1).steady is None


def test_another_ttl_can_be_tried_and_changes_nothing(database: Lapse) -> None:
    database.execute("ALTER TABLE events TTL = `at` + INTERVAL 30 DAY")
    arrive(database, 30, 20, 1)
    before = database.policies()
    forecast = database.forecast("events", days=1, ttl="1 day")
    assert (forecast.expired, days(forecast), str(forecast.ttl)) == (1, [2], "1 day")
    assert (forecast.steady and str(forecast.steady.ttl)) == "1 day"
    assert database.policies() == before
    assert database.forecast("events", days=1).expired == 0


def test_another_ttl_of_a_managed_column_is_counted_from_what_is_stamped(database: Lapse) -> None:
    database.execute("ALTER TABLE events SET (ttl_expire_after = '10 days')")
    database.execute("INSERT INTO events (id, crdb_internal_expiration) VALUES (1, '2026-03-11 12:00:00')")
    assert days(database.forecast("events", days=3, ttl="2 days")) == [0, 1, 0]


def test_an_expression_has_no_ttl_to_try_another_for(database: Lapse) -> None:
    database.execute("ALTER TABLE events SET (ttl_expiration_expression = 'coalesce(at, ''2030-01-01'')')")
    with pytest.raises(Unsupported, match="expire by an expression"):
        database.forecast("events", days=1, ttl="1 day")
    assert database.forecast("events", days=1).steady is None


def part(rows: int, size: int | None) -> Forecast:
    one = ForecastDay(start=NOW, end=NOW + timedelta(days=1), rows=rows, bytes=size)
    return Forecast(
        table=TableName("events"),
        policy=Policy(expression="at"),
        at=NOW,
        ttl=None,
        rows=10 * rows,
        bytes=size,
        expired=rows,
        days=(one, replace(one, rows=2 * rows)),
        steady=None,
        exact=True,
        method="scan",
        margin=rows,
    )


def test_forecasts_of_several_tables_add_up() -> None:
    found = together([part(1, 100), replace(part(2, 200), exact=False, method="sample")])
    assert (found.rows, found.bytes, found.expired, days(found)) == (30, 300, 3, [3, 6])
    assert (found.exact, found.method, found.margin) == (False, "sample, scan", 3)


def test_a_size_that_is_unknown_for_one_is_unknown_for_all() -> None:
    assert together([part(1, 100), part(2, None)]).bytes is None
