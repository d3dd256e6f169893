"""`lapse archive`, `lapse restore`, `lapse undo`, as a person types them."""

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
        db.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at TIMESTAMP) TTL = at + INTERVAL 1 DAY")
        db.execute("ALTER TABLE events SET (ttl_archive = 'table:', ttl_archive_keep = '7 days')")
        db.execute("INSERT INTO events VALUES (1, '2020-01-01 00:00:00'), (2, '2020-01-02 00:00:00')")
    return url


def test_the_whole_story(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archive", url]) == 0
    assert capsys.readouterr().out == "Nothing is archived.\n"
    assert main(["preview", url, "events"]) == 0
    assert "rows move to table:events_archive, and are kept there for 7 days" in capsys.readouterr().out
    assert main(["run", url, "--table", "events", "--yes"]) == 0
    capsys.readouterr()
    assert main(["archive", url, "events", "--verify", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["rows"], listed["moved"], listed["restored"], listed["state"]) == (2, 2, 0, "complete")
    assert main(["restore", url, "events", "--where", "id = 1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "1 row of events_archive would be restored into table events.\n"
    assert main(["restore", url, "events", "--where", "id = 1", "--keep", "1 day"]) == 0
    shown = capsys.readouterr().out
    assert "1 row restored from events_archive into table events." in shown
    assert "Hold 1 keeps rows with \"at\" >= '2020-01-01 00:00:00' AND \"at\" <= '2020-01-01 00:00:00'" in shown
    assert main(["undo", url, str(listed["job_id"]), "--json"]) == 0
    undone = json.loads(capsys.readouterr().out)
    assert (undone["rows"], undone["restored"], undone["hold"]["hold_id"]) == (1, 1, 2)
    assert main(["undo", url, str(listed["job_id"])]) == 0
    assert capsys.readouterr().out == "There is nothing to restore in events_archive.\n"
    assert main(["ledger", url, "events"]) == 0
    assert "rows from events_archive: 1 of job 1" in capsys.readouterr().out


def test_the_list_fits_a_narrow_terminal(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["run", url, "--table", "events", "--yes"])
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["archive", url]) == 0
    title, *table = capsys.readouterr().out.splitlines()
    assert title == "Table events, archived in events_archive"
    header, _, row = table
    assert header.split() == "job ┃ rows ┃ restored ┃ size ┃ archived (UTC) ┃ state".split()
    assert row.split()[0] == "1" and row.split()[-1] == "complete"


def test_what_is_missing_is_told_with_exit_code_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", url, "--table", "events", "--yes"])
    with lapse.open(url) as db:
        db.execute("DELETE FROM events_archive WHERE id = 1")
    assert main(["archive", url, "--verify"]) == 1
    assert "job 1: 2 rows should be in events_archive, and 1 are" in capsys.readouterr().err


def test_rows_that_are_refused_make_it_incomplete(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", url, "--table", "events", "--yes"])
    with lapse.open(url) as db:
        db.execute("CREATE TRIGGER no BEFORE INSERT ON events WHEN NEW.id = 1 BEGIN SELECT RAISE(ABORT, 'never'); END")
    assert main(["restore", url, "events"]) == 3
    told = capsys.readouterr()
    assert "1 row restored" in told.out and "never" in told.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["undo"], 2, "which job"),
        (["undo", "x"], 2, "not the number of a job"),
        (["undo", "99"], 1, "no job 99"),
        (["restore"], 2, "which table"),
        (["restore", "event"], 1, "events"),
        (["restore", "events", "--where", "nothing = 1"], 2, "nothing"),
        (["restore", "events", "--where", " "], 2, "empty"),
        (["restore", "events", "--from", "yesterday"], 2, "ISO 8601"),
        (["restore", "events", "--to", "2030-01-01"], 2, "no zone"),
        (["restore", "events", "--keep", "7"], 2, "keep"),
        (["restore", "events", "--into", "nowhere"], 1, "nowhere"),
        (["restore", "events", "--job", "99"], 1, "no job 99"),
    ],
)
def test_bad_input(url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str) -> None:
    assert main([arguments[0], url, *arguments[1:]]) == code
    assert said in capsys.readouterr().err
