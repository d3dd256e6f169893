"""Forecasts of tables too large to scan for one: from the planner's statistics, or a sample where it has none."""

from __future__ import annotations

import psycopg
import pytest

from lapse.engines.postgres import forecast
from tests.conformance.harness import Harness

ROWS = 250_000
# Two months of rows; more of them towards the end, and none at night.
FILL = f"""INSERT INTO events (id, ts)
SELECT n, day + interval '6 hours' + (n %% 1440) * interval '45 seconds'
  FROM (SELECT n, date_trunc('day', %(now)s - make_interval(days => (60 * (1 - sqrt(n / {ROWS}.0)))::int)) AS day
          FROM generate_series(1, {ROWS}) n) days"""


def _week(client: psycopg.Connection, h: Harness) -> tuple[int, int]:
    row = client.execute(
        "SELECT count(*) FILTER (WHERE ts + interval '30 days' <= %(now)s),"
        " count(*) FILTER (WHERE ts + interval '30 days' > %(now)s AND ts + interval '23 days' <= %(now)s) FROM events",
        {"now": h.now},
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def test_seven_days_within_five_percent_from_statistics(h: Harness, client: psycopg.Connection) -> None:
    h.events(ttl="TTL = ts + INTERVAL 30 DAY")
    client.execute(FILL, {"now": h.now})
    client.execute("ANALYZE events")
    expired, week = _week(client, h)
    found = h.db.forecast("events")
    assert not found.exact
    assert found.method.startswith("planner statistics")
    assert abs(found.total(7) - week) <= 0.05 * week
    assert abs(found.expired - expired) <= found.margin
    assert found.rows == pytest.approx(ROWS, rel=0.01)
    assert h.db.preview("events")[0].survey.oldest is not None
    exact = h.db.forecast("events", exact=True)
    assert (exact.expired, exact.total(7), exact.rows, exact.exact) == (expired, week, ROWS, True)


def test_an_expression_is_sampled(h: Harness, client: psycopg.Connection) -> None:
    h.events(ttl="WITH (ttl_expiration_expression = 'CASE WHEN id > 0 THEN ts + INTERVAL ''30 days'' END')")
    client.execute(FILL, {"now": h.now})
    client.execute("ANALYZE events")
    expired, _ = _week(client, h)
    found = h.db.forecast("events")
    assert found.method.startswith("sample of ")
    assert abs(found.expired - expired) <= found.margin


def test_a_small_table_is_counted(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    found = h.db.forecast("events")
    assert (found.exact, found.rows, found.expired) == (True, 2, 1)
    assert found.rows < forecast.SCANNED_ROWS


@pytest.mark.parametrize("scanned", [0, 1_000_000])
@pytest.mark.parametrize("index", [False, True])
def test_odd_times_neither_fail_nor_hide_what_is_implausible(
    h: Harness, client: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, scanned: int, index: bool
) -> None:
    """Infinity and years that Python does not know mean "never"; a time of 1985 is a mistake, and is still seen."""
    monkeypatch.setattr(forecast, "SCANNED_ROWS", scanned)
    h.events(ttl="TTL = ts + INTERVAL 30 DAY")
    client.execute(f"INSERT INTO events SELECT n, {h.at()} FROM generate_series(1, 12000) n")
    odd = ("-infinity", "infinity", "294276-12-31", "4713-01-01 BC", "0001-01-01", "9999-12-31")
    for number, moment in enumerate(odd):
        client.execute("INSERT INTO events VALUES (%s, %s)", (20_000 + number, moment))
    client.execute("INSERT INTO events VALUES (30000, '1985-01-01')")
    if index:
        client.execute("CREATE INDEX ON events (ts)")
    client.execute("ANALYZE events")
    found = h.db.preview("events")[0]
    assert found.survey.expired <= 1 + found.survey.margin
    (skip,) = h.run().skipped
    assert "1985" in skip.reason
