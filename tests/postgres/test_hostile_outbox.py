"""Attacks on exports: the owner of an outbox gains nothing from a worker that reads it, nor does a thief of its
password change or insert a row there."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import lapse.archive
from lapse.app import Lapse
from tests.postgres.test_hostile import Stage, allow, ids, stage, table

__all__ = ["stage"]

CAUGHT = """
    CREATE TABLE mallory.caught (who text);
    GRANT INSERT ON mallory.caught TO PUBLIC; GRANT USAGE ON SCHEMA mallory TO PUBLIC;
    CREATE FUNCTION mallory.note() RETURNS void LANGUAGE plpgsql AS $$
      BEGIN INSERT INTO mallory.caught VALUES (current_user); END $$;
    CREATE FUNCTION mallory.spy(anyelement) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE AS $$
      BEGIN PERFORM mallory.note(); RETURN $1; END $$;
    CREATE FUNCTION mallory.spying() RETURNS trigger LANGUAGE plpgsql AS $$
      BEGIN INSERT INTO mallory.caught VALUES (current_user); RETURN OLD; END $$"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    return tmp_path


def _archived(stage: Stage, folder: Path) -> None:
    table(stage, "mallory")
    stage.declare("mallory", f"ALTER TABLE mallory.events SET (ttl_archive = 'file://{folder}', ttl_guard = 'off')")
    allow(stage, "mallory")
    stage.sql("mallory", CAUGHT)


TRAPS = {
    "a trigger": "CREATE TRIGGER t BEFORE DELETE ON mallory.events_outbox FOR EACH ROW"
    " EXECUTE FUNCTION mallory.spying()",
    "an index": "CREATE INDEX ON mallory.events_outbox ((mallory.spy(id))); DELETE FROM mallory.caught",
    "a condition": "CREATE INDEX ON mallory.events_outbox (id) WHERE mallory.spy(1) = 1; DELETE FROM mallory.caught",
    "statistics": "CREATE STATISTICS mallory.s ON (mallory.spy(1)), id FROM mallory.events_outbox",
    "row security": "CREATE POLICY p ON mallory.events_outbox USING (mallory.spy(true));"
    " ALTER TABLE mallory.events_outbox ENABLE ROW LEVEL SECURITY",
    "a view": "ALTER TABLE mallory.events_outbox RENAME TO kept; CREATE VIEW mallory.events_outbox AS"
    " SELECT *, mallory.spy(1) FROM mallory.kept; GRANT ALL ON mallory.events_outbox TO PUBLIC",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_of_the_owners_runs_with_the_workers_rights(stage: Stage, folder: Path, trap: str) -> None:
    _archived(stage, folder)
    stage.sql("mallory", f"INSERT INTO mallory.events_outbox (id) VALUES (7); {TRAPS[trap]}")
    with Lapse(stage.url("keeper")) as worker:
        (export,) = worker.run("mallory.events").exports
        assert "is not a plain table" in str(export.problem)
        table(stage, "alice")
        assert worker.run("alice.events").complete
    assert stage.sql("postgres", "SELECT DISTINCT who FROM mallory.caught") == []
    assert list(lapse.archive.open(f"file://{folder}")) == []
    assert ids(stage, "alice.events") == [2]


def test_a_stolen_password_changes_no_archived_row(stage: Stage, folder: Path) -> None:
    _archived(stage, folder)
    stage.sql("mallory", "INSERT INTO mallory.events_outbox (id) VALUES (7)")
    for attack in (
        "INSERT INTO mallory.events_outbox (id) VALUES (8)",
        "UPDATE mallory.events_outbox SET id = 9",
        "TRUNCATE mallory.events_outbox",
        "DELETE FROM mallory.events",
        "SELECT * FROM mallory.events",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stage.sql("keeper", attack)
    with Lapse(stage.url("keeper")) as worker:
        assert worker.run("mallory.events").complete
    assert (ids(stage, "mallory.events"), ids(stage, "mallory.events_outbox")) == ([2], [])
    found = [number for batch in lapse.archive.open(f"file://{folder}") for number in batch.column("id").to_pylist()]
    assert sorted(found) == [1, 7]


def test_a_worker_without_the_grant_says_which_it_lacks(stage: Stage, folder: Path) -> None:
    table(stage, "alice")
    stage.declare("alice", f"ALTER TABLE alice.events SET (ttl_archive = 'file://{folder}', ttl_guard = 'off')")
    with Lapse(stage.url("keeper")) as worker:
        fixes = [found.fix for found in worker.doctor() if found.fix]
        assert f'GRANT SELECT, DELETE ON "alice"."events_outbox" TO "{stage.role("keeper")}";' in fixes
        assert "permission denied" in str(worker.run("alice.events").exports[0].problem)
        assert worker.run("alice.events").failed
    allow(stage, "alice")
    with Lapse(stage.url("keeper")) as worker:
        worker.run("alice.events")
        assert worker.run("alice.events").complete
    assert ids(stage, "alice.events_outbox") == []
