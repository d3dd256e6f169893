"""`lapse ledger`: for people, for programs, and as a check that fails."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from lapse.cli import main


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    declared = "CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY"
    assert main(["sql", url, "-c", declared]) == 0
    assert main(["settings", url, "lapse_mode", "fast"]) == 0
    return url


def test_entries_for_people(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["ledger", url]) == 0
    out = capsys.readouterr().out
    assert "lapse_mode: the default → fast" in out and "declared" in out and "Head: 3:" in out
    assert main(["ledger", url, "events", "--limit", "1"]) == 0
    assert "lapse_mode" not in capsys.readouterr().out


def test_entries_for_programs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["ledger", url, "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[0]
    assert (newest["sequence"], newest["kind"], newest["after"]["value"]) == (3, "setting", "fast")


def test_a_ledger_that_was_tampered_with(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["ledger", url, "--verify"]) == 0
    head = capsys.readouterr().out.split("Head: ")[1].strip()
    assert main(["ledger", url, "--verify", "--head", head]) == 0
    with sqlite3.connect(tmp_path / "app.db") as connection:
        connection.execute("UPDATE lapse_ledger SET recorded_at = X'00' WHERE sequence = 2")
    assert main(["ledger", url, "--verify"]) == 1
    assert "entry 2 was changed" in capsys.readouterr().err
    assert main(["ledger", url, "--verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["broken_at"] == 2
    with sqlite3.connect(tmp_path / "app.db") as connection:
        connection.execute("UPDATE lapse_ledger SET after_json = '[', kind = 'run' WHERE sequence > 1")
    assert main(["ledger", url]) == 0 and main(["ledger", url, "--json"]) == 0


@pytest.mark.parametrize("arguments", [
    ["--head", "1:abc"], ["--verify", "--head", "x"], ["--verify", "--head", "1:" + "G" * 64], ["events", "--verify"],
    ["evnets"], ["--limit", "0"],
])  # fmt: skip
def test_what_is_refused(url: str, arguments: list[str]) -> None:
    assert main(["ledger", url, *arguments]) in (1, 2)


def test_was_this_row_deleted(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", url, "-c", "ALTER TABLE events SET (ttl_ledger_keys = 'on', ttl_guard = 'off')"]) == 0
    assert main(["sql", url, "-c", "INSERT INTO events VALUES (4711, '2020-01-01'), (5, '2999-01-01')"]) == 0
    assert main(["run", url, "--table", "events"]) == 0
    capsys.readouterr()
    assert main(["ledger", url, "events", "--key", "4711"]) == 0
    out = capsys.readouterr().out
    assert "policy version" in out and "Keys of events on record: 1, of rows" in out
    assert main(["ledger", url, "events", "--key", "5"]) == 0
    assert "No row of events with the key 5 is on record as deleted" in capsys.readouterr().out
    assert main(["ledger", url, "events", "--key", "4711", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["keys_on_record"], found["deleted"][0]["policy_version"]) == (1, 2)
    assert main(["ledger", url, "events"]) == 0
    assert "keys recorded: 1" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--key", "1"], ["--verify", "--key", "1"], ["events", "--key", "1"]])
def test_keys_that_cannot_be_asked_for(url: str, arguments: list[str]) -> None:
    assert main(["ledger", url, *arguments]) in (1, 2)
