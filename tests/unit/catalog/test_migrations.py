"""A catalog written by an older Lapse is brought up to date when it is first used."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import lapse
from lapse.catalog import schema
from lapse.errors import PolicyConflict, Retryable
from lapse.model.job import JobStatus
from lapse.model.table import CATALOG_TABLES

VERSION_2 = Path(__file__).with_name("version-2.sql")
"""A file of that version: a managed column, a column with an interval, a paused expression, one job."""
VERSION_1 = """
    ALTER TABLE lapse_policy DROP COLUMN cleared_at;
    ALTER TABLE lapse_policy DROP COLUMN held;
    UPDATE lapse_meta SET value = '1' WHERE name = 'catalog_version';
"""
"""What has to go from it for the version before."""


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(VERSION_2.read_text())
    yield path


def test_upgrade_from_version_2(saved: Path) -> None:
    with lapse.open(f"sqlite:///{saved}") as db:
        known = {stored.table.name: stored for stored in db.policies()}
        assert set(known) == {"sessions", "events", "mails"}
        assert known["mails"].policy.pause
        assert [(job.table.name, job.status, job.counts.deleted) for job in db.history()] == [
            ("events", JobStatus.FINISHED, 1)
        ]
        assert db.settings()["lapse_mode"] == "fast"
        # What an older version did not remember is learned at the first look, and then held on to.
        assert known["events"].armed is None
        assert db.run("events").deleted == 1
        assert db.run("sessions").complete
        assert db.policy("events").armed is not None
        assert db.execute("SELECT id FROM events").rows == ((2,),)
        assert db.execute("SELECT id FROM mails").rows == ((1,), (2,))
        db.resume("mails")
        assert db.run("mails").deleted == 1
        assert db.execute("SELECT id FROM mails").rows == ((1,),)
    with lapse.open(f"sqlite:///{saved}") as db, db.engine.connection() as connection:
        version = connection.exec_driver_sql("SELECT value FROM lapse_meta WHERE name = 'catalog_version'").scalar()
        assert version == str(schema.VERSION)


def test_upgrade_from_version_1(saved: Path) -> None:
    with closing(sqlite3.connect(saved)) as raw:
        raw.executescript(VERSION_1)
    with lapse.open(f"sqlite:///{saved}") as db:
        cleared = {stored.table.name: stored.cleared_at is not None for stored in db.policies()}
        assert cleared == {"events": True, "mails": False, "sessions": False}
        assert db.run("events").deleted == 1


@pytest.mark.parametrize("opening", ["", "BEGIN;", "BEGIN; SELECT * FROM events;"])
def test_what_the_policy_reads_is_protected_from_the_first_statement_on(saved: Path, opening: str) -> None:
    with lapse.open(f"sqlite:///{saved}") as db:
        with pytest.raises((PolicyConflict, Retryable)):
            db.execute(f"{opening} ALTER TABLE events DROP COLUMN at")
        db.execute("ALTER TABLE events ADD COLUMN more INTEGER")


def test_an_older_catalog_on_a_changed_table_arms_nothing(saved: Path) -> None:
    with closing(sqlite3.connect(saved)) as raw:
        raw.executescript("DROP TABLE events; CREATE TABLE events (id INTEGER PRIMARY KEY, at INTEGER);")
    with lapse.open(f"sqlite:///{saved}") as db:
        assert db.run("events").failed
        assert db.policy("events").armed is None


def test_engines_know_the_catalogs_tables_by_name() -> None:
    assert set(schema.metadata.tables) == CATALOG_TABLES
