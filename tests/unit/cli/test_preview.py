"""What the preview draws, and what a run says about a table that waits for a word."""

from __future__ import annotations

import pytest

from lapse.cli import chart
from lapse.cli.output import duration
from lapse.runner import guard
from tests.unit.cli.conftest import Cli, Database

FILL = """WITH RECURSIVE n (i) AS (SELECT 5 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
 INSERT INTO events SELECT i, 'old', datetime('now', '-' || (i % 60) || ' days') FROM n"""


def test_a_chart() -> None:
    assert chart.columns([4, 0, 2, 1], height=2) == ["4 ┤██", "0 ┤██  ██▄▄"]
    assert chart.columns([0, 0], height=2) == ["0 ┤", "0 ┤"]
    assert chart.columns([1000, 1], height=1) == ["1,000 ┤██▁▁"]
    assert chart.axis(4, [(0, "a"), (2, "c")], indent=2) == "  a   c"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "less than a second"),
        (12.4, "12 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_forecast_is_drawn_and_offered_as_data(cli: Cli, declared: Database) -> None:
    declared.run(FILL.format(rows=3000))
    assert cli("sql", declared.url, "-c", "ALTER TABLE events TTL = `at` + INTERVAL 30 DAY").code == 0
    text = cli("preview", declared.url, "events").out
    assert "Forecast: " in text
    assert "┤████" in text
    assert "In the long run about" in text
    (record,) = cli("preview", declared.url, "events", "--ttl", "14 days", "--exact", "--json").json
    forecast = record["forecast"]
    assert (forecast["ttl"], len(forecast["days"]), forecast["exact"]) == ("14 days", 30, True)
    assert sum(day["rows"] for day in forecast["days"]) == pytest.approx(14 * 50, abs=60)
    assert forecast["steady_state"]["rows_per_day"] == pytest.approx(50, abs=5)
    assert "if rows lived for 14 days" in cli("preview", declared.url, "events", "--ttl", "14 days").out
    assert cli("preview", declared.url, "events", "--ttl", "14").code == 2


def test_a_held_run_shows_the_preview(cli: Cli, declared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SMALL_TABLE_ROWS", 100)
    declared.run(FILL.format(rows=3000))
    ran = cli("run", declared.url)
    assert ran.code == 3
    assert "events: skipped, held for confirmation: the first run would delete 2,948 of 3,000 rows (98%)" in ran.out
    assert "would delete  2,948 of 3,000 rows" in ran.out
    assert "lapse run --yes" in ran.err
    assert "held for confirmation: the first run" in cli("status", declared.url).out
    [skip] = cli("run", declared.url, "--json").json["skipped"]
    assert skip["held"]
    assert declared.query("SELECT count(*) FROM events") == [(3000,)]
    assert cli("run", declared.url, "--yes").code == 0
    assert declared.query("SELECT count(*) FROM events") == [(52,)]


def test_resume_confirms(cli: Cli, declared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SMALL_TABLE_ROWS", 100)
    declared.run(FILL.format(rows=3000))
    assert cli("run", declared.url).code == 3
    assert cli("resume", declared.url, "events").code == 0
    assert cli("run", declared.url).code == 0
