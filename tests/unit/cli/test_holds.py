"""`lapse hold`, `lapse holds`, `lapse release`, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lapse
from lapse.cli import main


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with lapse.open(url) as db:
        db.execute(
            "CREATE TABLE events (id INTEGER PRIMARY KEY, account INTEGER, at TIMESTAMP) TTL = at + INTERVAL 1 DAY"
        )
        db.execute("INSERT INTO events VALUES (1, 7, '2020-01-01 00:00:00'), (2, 8, '2020-01-01 00:00:00')")
    return url


def test_the_whole_story(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hold", url, "events", "--where", "account = 7", "--reason", "case 12"]) == 0
    assert capsys.readouterr().out == "Hold 1 keeps rows with account = 7 of table events.\n"
    assert main(["run", url, "--table", "events", "--yes"]) == 0
    capsys.readouterr()
    assert main(["holds", url]) == 0
    shown = capsys.readouterr().out
    assert "account = 7" in shown and "case 12" in shown
    assert main(["status", url]) == 0
    assert "1 day after at; hold 1" in capsys.readouterr().out
    assert main(["status", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["holds"] == [{"hold_id": 1, "where": "account = 7", "until": None}]
    assert main(["release", url, "1"]) == 0
    assert main(["holds", url]) == 0
    assert "Nothing is held." in capsys.readouterr().out
    assert main(["holds", url, "--all", "--json"]) == 0
    (ended,) = json.loads(capsys.readouterr().out)
    assert ended["released_at"] is not None and ended["table"] == "events"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hold"], "which table"),
        (["hold", "evnts"], "events"),
        (["hold", "events", "--until", "tomorrow"], "ISO 8601"),
        (["hold", "events", "--until", "2030-01-01"], "no zone"),
        (["hold", "events", "--until", "2001-01-01T00:00:00Z"], "is past"),
        (["hold", "events", "--where", "acount = 7"], "account"),
        (["release"], "which hold"),
        (["release", "events"], "not the number"),
        (["release", "12"], "no hold 12"),
    ],
)
def test_mistakes_are_told(url: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *rest = arguments
    assert main([command, url, *rest]) != 0
    assert words in capsys.readouterr().err
    with lapse.open(url) as db:
        assert db.holds(ended=True) == []
