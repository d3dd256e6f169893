"""A connection of the user's is as SQLite makes it, and stays so whatever Lapse does on it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lapse
from lapse.app import Lapse

PRAGMAS = (
    "foreign_keys busy_timeout synchronous cache_size temp_store recursive_triggers wal_autocheckpoint journal_mode"
    " defer_foreign_keys legacy_alter_table query_only automatic_index cell_size_check ignore_check_constraints"
    " locking_mode mmap_size read_uncommitted reverse_unordered_selects secure_delete trusted_schema"
).split()


def pragmas(connection: Any) -> dict[str, Any]:
    return {name: connection.execute(f"PRAGMA {name}").fetchone() for name in PRAGMAS}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def test_a_connection_is_as_sqlite_makes_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as plain:
        expected = pragmas(plain)
    assert expected["foreign_keys"] == (0,)
    with closing(lapse.connect(f"sqlite:///{path}")) as connection:
        assert pragmas(connection) == expected
    with Lapse(f"sqlite:///{path}") as db:
        assert {name: db.execute(f"PRAGMA {name}").rows[0] for name in PRAGMAS} == expected


@pytest.mark.parametrize("own", ["", "PRAGMA foreign_keys = ON", "PRAGMA legacy_alter_table = ON"])
def test_declaring_changes_no_setting(path: Path, own: str) -> None:
    with closing(lapse.connect(f"sqlite:///{path}", autocommit=True)) as connection:
        connection.execute(own)
        before = pragmas(connection)
        for statement in (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY",
            "CREATE TABLE m (id INTEGER PRIMARY KEY) WITH (ttl_expire_after = '1 hour')",
            "ALTER TABLE m RENAME TO n",
            "ALTER TABLE n RESET (ttl)",
            "DROP TABLE n",
        ):
            connection.execute(statement)
            assert pragmas(connection) == before, statement


def test_a_table_of_an_attached_file_is_the_users_business(path: Path) -> None:
    with closing(lapse.connect(f"sqlite:///{path}", autocommit=True)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
        connection.execute(f"ATTACH '{path}.other' AS other")
        connection.execute("CREATE TABLE other.t (id INTEGER PRIMARY KEY, at TEXT)")
        connection.execute("ALTER TABLE other.t RENAME TO u")
        connection.execute("ALTER TABLE other.u DROP COLUMN at")
        connection.execute("DROP TABLE other.u")
    with Lapse(f"sqlite:///{path}") as db:
        assert [str(stored.table) for stored in db.policies()] == ["t"]
