"""What the preview draws, and what a run says about a table that waits for a word."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

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
    assert "Steady state: about" in text
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
    assert "events: skipped, waiting for confirmation: the first run would delete 2,948 of 3,000 rows (98%)" in ran.out
    assert "would delete  2,948 of 3,000 rows" in ran.out
    assert "lapse run --yes" in ran.err
    assert "waiting for confirmation: the first run" in cli("status", declared.url).out
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


# Before a policy is declared, and as soon as it is


def test_a_policy_is_tried_and_nothing_changes(cli: Cli, database: Database) -> None:
    before = database.everything()
    tried = cli("preview", database.url, "events", "--column", "at", "--after", "30 days")
    assert tried.code == 0
    assert "Table events: if rows expired 30 days after at (not declared)" in tried.out
    assert "would delete  2 of 4 rows (50%)" in tried.out
    assert "time range    2020-01-31 00:00:00 to 2021-01-31 00:00:00 UTC" in tried.out
    assert cli("preview", database.url, "events", "--column", "at", "--ttl", "30 days").out.startswith(
        tried.out.splitlines()[0]
    )
    (record,) = cli("preview", database.url, "events", "--expression", "at", "--json").json
    assert (record["candidate"], record["would_delete"], record["held"], record["touched"]) == (True, 2, 0, [])
    assert "deletes nothing now" in cli("preview", database.url, "events", "--after", "30 days").out
    refused = cli("preview", database.url, "events")
    assert refused.code == 1
    assert "--column created_at --after '30 days'" in refused.err
    assert cli("preview", database.url, "events", "--column", "nope", "--after", "1 day").code == 2
    assert cli("preview", database.url, "nope").code == 1
    assert database.everything() == before


def test_rows_that_go_with_others_are_told(cli: Cli, database: Database) -> None:
    database.run(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, event INTEGER REFERENCES events ON DELETE CASCADE);"
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, o INTEGER REFERENCES orders ON DELETE SET NULL);"
        "CREATE TABLE invoices (id INTEGER PRIMARY KEY, event INTEGER REFERENCES events);"
        "INSERT INTO orders VALUES (1, 1), (2, 1), (3, 2); INSERT INTO notes VALUES (1, 1), (2, 3);"
        "INSERT INTO invoices VALUES (1, 2)"
    )
    text = cli("preview", database.url, "events", "--column", "at", "--after", "1 day").out
    assert "would delete  1 of 4 rows (25%)" in text
    assert "held          1 expired row stays: rows of invoices refer to it" in text
    assert "with them     2 rows of orders, by ON DELETE CASCADE" in text
    assert "with them     1 row of notes lose" in text
    said = cli("sql", database.url, "-c", "ALTER TABLE events TTL = `at` + INTERVAL 1 DAY").err
    assert "notice: events: would delete 1 of 4 rows (25%) at the first run; 1 more has expired and stays" in said
    assert "workers wait until" in said


def test_the_grace_period_is_counted_down(cli: Cli, declared: Database) -> None:
    shown = cli("status", declared.url).out
    assert "on time, grace" in shown
    assert "events: deletes nothing for another 10 min, until " in shown
    (record,) = cli("status", declared.url, "--json").json
    assert record["state"] == "grace"
    assert datetime.fromisoformat(record["grace_until"]) > datetime.now(UTC)
    assert "grace         a worker deletes nothing for another 10 min" in cli("preview", declared.url, "events").out
    assert cli("preview", declared.url, "events", "--json").json[0]["grace_until"] == record["grace_until"]


def test_apply_says_what_the_first_run_will_do(cli: Cli, database: Database, tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text("[tables.events]\ncolumn = 'at'\nafter = '1 day'\n", encoding="utf-8")
    said = cli("apply", database.url, "--file", str(file)).err
    assert "notice: events: would delete 2 of 4 rows (50%) at the first run; workers wait until" in said
    assert cli("apply", database.url, "--file", str(file)).err == ""
    file.write_text("[tables.events]\ncolumn = 'at'\nafter = '1 day'\nttl_job_cron = '@daily'\n", encoding="utf-8")
    assert "would delete" not in cli("apply", database.url, "--file", str(file)).err
