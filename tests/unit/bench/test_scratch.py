"""`lapse bench` leaves a database as it found it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from lapse.app import Lapse
from lapse.cli import main


def _tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")}


def test_nothing_is_left_where_lapse_was_not(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
    assert main(["bench", f"sqlite:///{path}", "--rows", "1000", "--rounds", "1", "--json"]) == 0
    assert _tables(path) == {"mine"}


def test_policies_that_were_there_stay(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    url = f"sqlite:///{path}"
    with Lapse(url) as database:
        database.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY) WITH (ttl_expire_after = '1 day')")
    before = _tables(path)
    assert main(["bench", url, "--rows", "1000", "--rounds", "1"]) == 0
    assert _tables(path) == before
    with Lapse(url) as database:
        assert [str(stored.table) for stored in database.policies()] == ["mine"]


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    assert main(["bench", f"sqlite:///{tmp_path / 'x.db'}", "--key", "text"]) == 2
