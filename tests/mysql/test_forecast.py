"""Forecasts of tables too large to scan for one: from a sample of the keys."""

from __future__ import annotations

import pytest

from tests.conformance.harness import Harness

ROWS = 250_000


def _fill(h: Harness, key: str) -> None:
    """Two months of rows, more of them towards the end."""
    h.sql(
        f"INSERT INTO events (id, ts) SELECT {key},"
        f" {h.at()} - INTERVAL round(5184000 * (1 - sqrt(seq / {ROWS}))) SECOND FROM seq_1_to_{ROWS}"
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


def test_keys_that_are_no_numbers_are_counted(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 30 DAY", key="id CHAR(32) PRIMARY KEY")
    h.sql("CREATE INDEX events_ts ON events (ts)")
    _fill(h, "md5(seq)")
    found = h.db.forecast("events")
    assert (found.exact, found.expired, found.total(7)) == (True, *_truth(h))
