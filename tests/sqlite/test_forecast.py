"""Forecasts of tables too large to scan for one: drawn from a sample, and close."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from lapse.app import Lapse
from lapse.clock import ManualClock
from lapse.engines.sqlite import forecast
from lapse.errors import LapseError
from tests.conformance.harness import Harness

NOW = datetime(2026, 3, 15, 12, 0, 0, tzinfo=UTC)
ROWS = 150_000


@pytest.fixture
def db() -> Iterator[Lapse]:
    with Lapse("sqlite://", clock=ManualClock(NOW)) as database:
        database.execute(
            "CREATE TABLE events (i INTEGER PRIMARY KEY, ts INTEGER, note TEXT) TTL = ts + INTERVAL 30 DAY"
        )
        yield database


def _insert(db: Lapse, moments: list[datetime], step: int = 1) -> None:
    with db.engine.connection() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.execute("BEGIN")
        raw.executemany(
            "INSERT INTO events VALUES (?, ?, 'some text')",
            [(number * step, int(moment.timestamp())) for number, moment in enumerate(moments)],
        )
        raw.execute("COMMIT")


def _moments(pattern: str) -> list[datetime]:
    """Two months of rows, in the order of their ids."""
    draw = random.Random(7)
    ages = {
        "in order": [60 * (1 - n / ROWS) for n in range(ROWS)],
        "shuffled": [draw.uniform(0, 60) for _ in range(ROWS)],
        "growing": [60 * (1 - (n / ROWS) ** 0.5) for n in range(ROWS)],
        "a rhythm in the ids": [(n * 7) % 60 + draw.random() for n in range(ROWS)],
        "days and nights": [60 * (1 - n / ROWS) + 0.3 * draw.random() ** 3 for n in range(ROWS)],
    }[pattern]
    return [NOW - timedelta(days=age) for age in ages]


@pytest.mark.parametrize("pattern", ["in order", "shuffled", "growing", "a rhythm in the ids", "days and nights"])
def test_seven_days_within_five_percent(db: Lapse, pattern: str) -> None:
    moments = _moments(pattern)
    _insert(db, moments)
    found = db.forecast("events")
    expiries = [moment + timedelta(days=30) for moment in moments]
    week = sum(NOW < moment <= NOW + timedelta(days=7) for moment in expiries)
    expired = sum(moment <= NOW for moment in expiries)
    assert not found.exact
    assert found.method.startswith("sample of ")
    assert abs(found.total(7) - week) <= 0.05 * week
    assert abs(found.expired - expired) <= found.margin
    assert found.rows == pytest.approx(ROWS, rel=0.01)
    exact = db.forecast("events", exact=True)
    assert (exact.exact, exact.total(7), exact.expired, exact.rows) == (True, week, expired, ROWS)


def test_gaps_in_the_row_ids_do_not_mislead(db: Lapse) -> None:
    _insert(db, _moments("in order"), step=3)
    found = db.forecast("events")
    assert not found.exact
    assert found.rows == pytest.approx(ROWS, rel=0.05)
    assert found.expired == pytest.approx(ROWS // 2, rel=0.05)


def test_row_ids_too_far_apart_for_a_sample_are_scanned(db: Lapse) -> None:
    _insert(db, [NOW - timedelta(days=40)] * 500, step=2**40)
    found = db.forecast("events")
    assert found.exact
    assert (found.rows, found.expired) == (500, 500)


def test_a_preview_of_a_large_table_does_not_scan_it(db: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    _insert(db, _moments("in order"))

    def refuse(*args: object, **kwargs: object) -> None:
        raise LapseError("scanned")

    monkeypatch.setattr(type(db.engine), "survey", refuse)
    monkeypatch.setattr(forecast, "table_bytes", refuse)
    (preview,) = db.preview("events")
    assert not preview.survey.exact
    assert preview.survey.margin > 0
    with pytest.raises(LapseError, match="scanned"):
        db.preview("events", exact=True)


@pytest.mark.parametrize("odd", ["0000-01-01", "0001-01-01", "9999-12-31 23:59:59.999"])
def test_an_odd_time_keeps_nothing_from_being_looked_at_or_deleted(h: Harness, odd: str) -> None:
    """Beyond the years that Python knows, or at their ends; in a table that the guard looks through first."""
    h.events()
    many = ", ".join(f"({number}, {h.at(days=-2)})" for number in range(2, 11_000))
    h.sql(f"INSERT INTO events (id, ts) VALUES (1, '{odd}'), {many}")
    h.insert(*((number, h.at()) for number in range(20_000, 31_000)))
    (found,) = h.db.preview("events")
    assert found.survey.rows == 21_999
    # Before anything is deleted, the guard wants a word about times of long ago.
    h.run()
    h.sql("ALTER TABLE events SET (ttl_guard = 'off')")
    h.run()
    assert set(h.ids()) >= set(range(20_000, 31_000))
    assert not set(h.ids()) & set(range(2, 11_000))
