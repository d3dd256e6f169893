"""Preview and forecast: what they say is what a run does, and what comes true."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.errors import InvalidValue, Unsupported
from tests.conformance.harness import Harness


def _fill(h: Harness, per_day: dict[int, int]) -> None:
    """So many rows, spread over the day, for each day relative to now."""
    rows: list[tuple[int, str]] = []
    for day, count in per_day.items():
        rows += [(len(rows) + i, h.at(days=day + i / count, minutes=1)) for i in range(count)]
    for start in range(0, len(rows), 500):
        h.insert(*rows[start : start + 500])


def test_the_preview_is_what_the_run_does(h: Harness) -> None:
    h.events()
    _fill(h, {-5: 30, -3: 20, -2: 7, -1: 10, 0: 10})
    (preview,) = h.db.preview("events", exact=True)
    assert (preview.survey.rows, preview.survey.expired, preview.survey.exact) == (77, 57, True)
    assert preview.survey.margin == 0
    # Only who owns the table is shown rows of it.
    assert len(preview.sample) == (5 if h.db is h.owner else 0)
    assert preview.seconds is None
    assert h.run_one().counts.deleted == 57
    again = h.db.preview("events")[0]
    assert again.seconds is None or again.seconds >= 0


def test_a_forecast_comes_true(h: Harness) -> None:
    h.events()
    _fill(h, {-3: 11, -1: 40, 0: 30, 1: 20, 2: 10, 7: 60, 50: 5})
    h.insert((9999, "NULL"))
    forecast = h.db.forecast("events", exact=True)
    assert (forecast.expired, forecast.rows, len(forecast.days)) == (11, 177, 30)
    assert [day.rows for day in forecast.days[:5]] == [40, 30, 20, 10, 0]
    assert forecast.total(7) == 100
    assert forecast.total(30) == 160
    assert forecast.days[0].end - forecast.days[0].start == timedelta(days=1)
    h.run()
    for day in forecast.days[:4]:
        h.advance(days=1)
        assert h.run_one().counts.deleted == day.rows


def test_the_steady_state_of_another_ttl(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 30 DAY")
    _fill(h, dict.fromkeys(range(-28, 0), 24))
    present = h.db.forecast("events", exact=True)
    assert present.steady is not None
    assert present.steady.rows_per_day == 24
    assert present.steady.rows == 720
    shorter = h.db.forecast("events", ttl="14 days", exact=True)
    assert shorter.steady is not None
    assert shorter.steady.rows == 14 * 24
    assert shorter.expired == 14 * 24
    assert [day.rows for day in shorter.days] == [24] * 14 + [0] * 16
    # Nothing has changed: the run still obeys the policy.
    assert h.run_one().counts.deleted == 0


def test_another_ttl_for_a_managed_column(h: Harness) -> None:
    h.sql(
        f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})"
        " WITH (ttl_expire_after = '10 days')"
    )
    columns = "id, crdb_internal_expiration"
    for number in range(20):
        h.sql(f"INSERT INTO events ({columns}) VALUES ({number}, {h.at(days=number - 10, hours=1)})")
    assert h.db.forecast("events", exact=True).expired == 10
    assert h.db.forecast("events", ttl="5 days", exact=True).expired == 15


def test_there_is_no_other_ttl_for_an_expression(h: Harness) -> None:
    h.events(ttl="WITH (ttl_expiration_expression = 'CASE WHEN id > 5 THEN ts END')")
    h.insert((1, h.at(days=-1)), (6, h.at(days=-1)), (7, h.at(hours=30)))
    forecast = h.db.forecast("events", exact=True)
    assert (forecast.expired, forecast.days[1].rows, forecast.steady) == (1, 1, None)
    with pytest.raises(Unsupported, match="expression"):
        h.db.forecast("events", ttl="1 day")


def test_a_forecast_of_nothing(h: Harness) -> None:
    h.events()
    forecast = h.db.forecast("events", days=7)
    assert (forecast.rows, forecast.expired, forecast.total(7), forecast.steady) == (0, 0, 0, None)
    with pytest.raises(InvalidValue):
        h.db.forecast("events", days=0)
    with pytest.raises(InvalidValue):
        h.db.forecast("events", ttl="14")


def test_foreign_keys_have_a_fan_out(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    big = h.backend.bigint
    h.sql(
        f"CREATE TABLE child (id {big} PRIMARY KEY, event {big}, "
        "FOREIGN KEY (event) REFERENCES events (id) ON DELETE CASCADE)"
    )
    h.sql("INSERT INTO child (id, event) VALUES (1, 1), (2, 1), (3, 1), (4, 1)")
    (child,) = h.db.preview("events")[0].children
    assert child.reference.table.name == "child"
    assert child.per_row is not None
