"""Forecasts of tables too large to scan for one: from a sample of the keys."""

from __future__ import annotations

import pytest

from lapse.engines.base import BoundPolicy
from lapse.model.interval import DAY, Interval
from lapse.model.policy import Policy
from lapse.model.table import TableName
from tests.conformance.harness import Harness
from tests.mysql.numbers import numbers

ROWS = 250_000


def _fill(h: Harness, key: str) -> None:
    """Two months of rows, more of them towards the end."""
    h.sql(
        f"INSERT INTO events (id, ts) SELECT {key},"
        f" {h.at()} - INTERVAL round(5184000 * (1 - sqrt(seq / {ROWS}))) SECOND FROM {numbers(ROWS)}"
    )
    h.sql("ANALYZE TABLE events")


def _truth(h: Harness) -> tuple[int, int]:
    ((expired, week),) = h.rows(
        f"SELECT sum(ts + INTERVAL 30 DAY <= {h.at()}),"
        f" sum(ts + INTERVAL 30 DAY > {h.at()} AND ts + INTERVAL 30 DAY <= {h.at(days=7)}) FROM events"
    )
    return int(expired), int(week)


def test_seven_days_within_five_percent_by_a_sample(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 30 DAY")
    _fill(h, "seq * 2")
    expired, week = _truth(h)
    found = h.db.forecast("events")
    assert not found.exact
    assert found.method.startswith("sample of ")
    assert abs(found.total(7) - week) <= 0.05 * week
    assert abs(found.expired - expired) <= found.margin
    assert found.rows == pytest.approx(ROWS, rel=0.02)
    exact = h.db.forecast("events", exact=True)
    assert (exact.expired, exact.total(7), exact.rows, exact.exact) == (expired, week, ROWS, True)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("CHAR(32)", "left(sha2(seq, 256), 32)"),
        ("BINARY(16)", "unhex(left(sha2(seq, 256), 32))"),
        # Keys and expiry go hand in hand, and there are more and more of them.
        ("DATETIME(6)", "'2020-01-01' + INTERVAL sqrt(seq) * 1000 SECOND"),
    ],
)
def test_keys_that_are_no_numbers_are_looked_at_in_many_places(h: Harness, kind: str, key: str) -> None:
    h.events(ttl="TTL = ts + INTERVAL 30 DAY", key=f"id {kind} PRIMARY KEY")
    _fill(h, key)
    expired, week = _truth(h)
    found = h.db.forecast("events")
    assert "places" in found.method
    # The sample tells shares; how many rows there are the server guesses.
    assert found.rows == pytest.approx(ROWS, rel=0.25)
    assert found.expired / found.rows == pytest.approx(expired / ROWS, rel=0.1)
    assert found.total(7) / found.rows == pytest.approx(week / ROWS, rel=0.15)
    assert found.margin < 0.05 * ROWS
    preview = h.db.preview("events")[0]
    assert (preview.survey.exact, preview.survey.method) == (False, found.method)
    exact = h.db.preview("events", exact=True)[0].survey
    assert (exact.exact, exact.rows, exact.expired) == (True, ROWS, expired)


def test_a_key_that_tells_too_little_makes_the_rows_be_counted(h: Harness) -> None:
    """It cannot be cut, and begins with what has expired: both ends of the table say nothing about the middle."""
    h.events(ttl="TTL = ts + INTERVAL 30 DAY", key="id DECIMAL(12, 1) PRIMARY KEY")
    _fill(h, "seq / 2")
    expired, week = _truth(h)
    found = h.db.forecast("events")
    assert (found.exact, found.expired, found.total(7)) == (True, expired, week)


def test_statistics_of_a_large_table_do_not_scan_it(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 30 DAY")
    _fill(h, "seq")
    engine = h.db.engine
    policy = Policy(column="ts", interval=Interval(micros=30 * DAY))
    with engine.connection() as connection:
        declared = BoundPolicy(table=engine.describe(connection, TableName("events")), policy=policy)
        survey = engine.survey(connection, engine.target(connection, declared, h.now))
    expired, _ = _truth(h)
    assert (survey.exact, survey.newest) == (False, None)
    assert abs(survey.expired - expired) <= survey.margin
