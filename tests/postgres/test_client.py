"""TTL from psql, as people use it: declared, run, paused, with the rights of who asks; and what an attacker gets of it.

`keeper` owns the catalog and runs the worker. `alice` and `mallory` own tables; all that they have been given here is
USAGE on the catalog's schema.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from lapse.app import Lapse
from tests.conftest import Servers
from tests.postgres import test_hostile
from tests.postgres.conftest import VERSIONS
from tests.postgres.test_hostile import FRESH, OLD, Stage
from tests.tools import required


@pytest.fixture
def stage(servers: Servers) -> Iterator[Stage]:
    for stage in test_hostile._set(servers.get(VERSIONS[0])):
        for name in ("alice", "mallory"):
            stage.sql("keeper", f"REVOKE ALL ON ALL TABLES IN SCHEMA lapse_ttl FROM {stage.role(name)}")
        yield stage


def _psql(stage: Stage, role: str, *statements: str) -> str:
    """What the program prints, errors included; each statement commits by itself."""
    commands = [word for statement in statements for word in ("-c", statement)]
    done = subprocess.run(
        [required("psql"), "-X", "-A", "-t", "-d", stage.url(role).replace("+psycopg", ""), *commands],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def _work(stage: Stage) -> None:
    with Lapse(stage.url("keeper")) as db:
        db.run()


def _answers(stage: Stage, role: str) -> list[tuple[object, ...]]:
    return stage.sql(role, "SELECT command, state, answer FROM lapse_ttl.requests ORDER BY request_id")


def _events(stage: Stage, role: str) -> None:
    stage.sql(role, "CREATE TABLE events (id INTEGER PRIMARY KEY, created_at TIMESTAMPTZ NOT NULL)")
    stage.sql(role, f"INSERT INTO events VALUES (1, {OLD}), (2, {FRESH})")


def test_a_person_declares_runs_and_pauses(stage: Stage) -> None:
    _events(stage, "keeper")
    said = _psql(stage, "keeper", "SELECT lapse_ttl.preview('events', 'created_at', '30 days')")
    assert "SELECT answer FROM lapse_ttl.requests" in said
    said = _psql(
        stage, "keeper", "SELECT lapse_ttl.set_ttl('events', 'created_at', '30 days', '{\"ttl_grace\": \"0s\"}')"
    )
    assert "the next worker sets the TTL of keeper.events" in said
    _work(stage)
    assert [answer[:2] for answer in _answers(stage, "keeper")] == [("preview", "done"), ("set_ttl", "done")]
    assert "would delete 1 of 2 rows" in str(_answers(stage, "keeper")[0][2])
    assert stage.sql("keeper", "SELECT id FROM events") == [(2,)]
    assert stage.sql("keeper", "SELECT status, deleted FROM lapse_ttl.history WHERE table_name LIKE '%events'") == [
        ("finished", 1)
    ]

    stage.sql("keeper", f"INSERT INTO events VALUES (3, {OLD})")
    _psql(stage, "keeper", "SELECT lapse_ttl.pause('events')", "SELECT lapse_ttl.run('events')")
    _work(stage)
    assert [answer[1] for answer in _answers(stage, "keeper")[2:]] == ["done", "refused"]
    assert (
        "t" in _psql(stage, "keeper", "SELECT paused FROM lapse_ttl.status WHERE table_name = 'keeper.events'").split()
    )
    assert stage.sql("keeper", "SELECT count(*) FROM events") == [(2,)]
    _psql(stage, "keeper", "SELECT lapse_ttl.resume('events')", "SELECT lapse_ttl.run('events')")
    _work(stage)
    assert stage.sql("keeper", "SELECT id FROM events") == [(2,)]
    _psql(stage, "keeper", "SELECT lapse_ttl.reset_ttl('events')")
    _work(stage)
    assert stage.sql("keeper", "SELECT count(*) FROM lapse_ttl.status WHERE table_name = 'keeper.events'") == [(0,)]

    _psql(stage, "keeper", "SELECT lapse_ttl.set_ttl('events', '8 hours')")
    _work(stage)
    assert "crdb_internal_expiration" in _psql(stage, "keeper", "SELECT * FROM information_schema.columns")


def test_the_functions_explain_themselves(stage: Stage) -> None:
    said = _psql(stage, "keeper", "\\df+ lapse_ttl.*")
    for name in ("set_ttl", "reset_ttl", "run", "pause", "resume", "preview"):
        assert f"|{name}|" in said
    assert said.count("For the owner of the table; a worker") == 7
    assert "waiting, done or refused" in _psql(stage, "keeper", "\\dv+ lapse_ttl.requests")


def test_mistakes_are_told_at_once(stage: Stage) -> None:
    _events(stage, "keeper")
    assert 'no column "created"' in _psql(stage, "keeper", "SELECT lapse_ttl.set_ttl('events', 'created', '30 days')")
    assert 'relation "event" does not exist' in _psql(stage, "keeper", "SELECT lapse_ttl.run('event')")
    assert "invalid input syntax" in _psql(stage, "keeper", "SELECT lapse_ttl.set_ttl('events', 'created_at', 'soon')")
    assert "there can be no TTL" in _psql(stage, "keeper", "SELECT lapse_ttl.run('lapse_ttl.lapse_job')")
    assert _answers(stage, "keeper") == []
    _psql(stage, "keeper", "SELECT lapse_ttl.set_ttl('events', 'created_at', '30 days', '{\"ttl_gracee\": 1}')")
    _work(stage)
    ((_, state, answer),) = _answers(stage, "keeper")
    assert state == "refused"
    assert "ttl_gracee" in str(answer)


def test_another_role_gets_nothing(stage: Stage) -> None:
    _events(stage, "keeper")
    stage.sql("keeper", f"GRANT USAGE ON SCHEMA keeper TO {stage.role('mallory')}")
    for call in ("run('keeper.events')", "set_ttl('keeper.events', 'created_at', '1 second')", "pause('keeper.own')"):
        assert "must be owner of table keeper." in _psql(stage, "mallory", f"SELECT lapse_ttl.{call}")
    keeper = stage.sql("postgres", f"SELECT '{stage.role('keeper')}'::regrole::oid")[0][0]
    forged = (
        "INSERT INTO lapse_ttl.lapse_request (command, relation, requested_by, requested_at)"
        f" VALUES ('run', 'keeper.own'::regclass, {keeper}, now())"
    )
    assert "permission denied" in _psql(stage, "mallory", forged)
    assert "permission denied" in _psql(stage, "mallory", "SELECT * FROM lapse_ttl.lapse_request")
    assert "permission denied" in _psql(stage, "mallory", "SELECT * FROM lapse_ttl.lapse_policy")
    assert stage.sql("mallory", "SELECT * FROM lapse_ttl.status") == []
    assert stage.sql("mallory", "SELECT * FROM lapse_ttl.history") == []
    assert stage.sql("keeper", "SELECT * FROM lapse_ttl.requests") == []


def test_a_writer_of_the_catalog_forges_no_request(stage: Stage) -> None:
    """As a declarer has it: every right on the catalog's tables."""
    _events(stage, "mallory")
    _events(stage, "keeper")
    role = stage.role("mallory")
    stage.sql(
        "keeper", f"GRANT ALL ON ALL TABLES IN SCHEMA lapse_ttl TO {role}; GRANT USAGE ON SCHEMA keeper TO {role}"
    )
    keeper = stage.sql("postgres", f"SELECT '{stage.role('keeper')}'::regrole::oid")[0][0]
    _psql(
        stage,
        "mallory",
        "INSERT INTO lapse_ttl.lapse_request (command, relation, requested_by, requested_at)"
        f" VALUES ('pause', 'mallory.events'::regclass, {keeper}, now())",
    )
    assert stage.sql("keeper", "SELECT requested_by FROM lapse_ttl.requests") == [(role,)]
    for change in ("relation = 'keeper.events'::regclass", f"requested_by = {keeper}", "command = 'run'"):
        assert "never changed" in _psql(stage, "mallory", f"UPDATE lapse_ttl.lapse_request SET {change}")


def test_code_that_another_role_runs_asks_in_its_own_name(stage: Stage) -> None:
    """By a function with its owner's rights, and by an index that a superuser analyses."""
    _events(stage, "keeper")
    stage.sql(
        "mallory",
        "CREATE TABLE bait (id INTEGER);"
        "CREATE FUNCTION lure(id INTEGER) RETURNS INTEGER LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER AS"
        " $$ BEGIN PERFORM lapse_ttl.set_ttl('keeper.events', 'created_at', '1 second'); RETURN id;"
        " EXCEPTION WHEN insufficient_privilege THEN RETURN id; END $$;"
        "CREATE FUNCTION plain(id INTEGER) RETURNS INTEGER LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN PERFORM lapse_ttl.set_ttl('keeper.events', 'created_at', '1 second'); RETURN id;"
        " EXCEPTION WHEN OTHERS THEN RETURN id; END $$;"
        "GRANT USAGE ON SCHEMA mallory TO PUBLIC; GRANT ALL ON bait TO PUBLIC",
    )
    role = stage.role("mallory")
    stage.sql("keeper", f"GRANT USAGE ON SCHEMA keeper TO {role}")
    stage.sql("keeper", "SELECT mallory.lure(1)")
    stage.sql("mallory", "CREATE INDEX ON bait (mallory.plain(id)); INSERT INTO bait VALUES (1), (2)")
    stage.sql("postgres", "ANALYZE mallory.bait")
    assert stage.sql("keeper", "SELECT * FROM lapse_ttl.requests") == []


def test_what_was_asked_is_asked_again_when_it_is_done(stage: Stage) -> None:
    """A table that changes hands, or is another one under the same name, is left alone."""
    for number, change in enumerate(
        (
            f"ALTER TABLE keeper.t0 OWNER TO {stage.role('alice')}",
            "DROP TABLE keeper.t1; CREATE TABLE keeper.t1 (id INTEGER, created_at TIMESTAMPTZ)",
        )
    ):
        stage.sql("keeper", f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, created_at TIMESTAMPTZ)")
        _psql(stage, "keeper", f"SELECT lapse_ttl.set_ttl('t{number}', 'created_at', '1 day')")
        stage.sql("postgres", change)
    _work(stage)
    answers = _answers(stage, "keeper")
    assert [state for _, state, _ in answers] == ["refused", "refused"]
    assert "does not own" in str(answers[0][2])
    assert "does not exist any more" in str(answers[1][2])
    assert stage.sql("keeper", "SELECT table_name FROM lapse_ttl.lapse_policy") == [("own",)]


def test_owners_that_the_worker_may_not_act_for(stage: Stage) -> None:
    """Their policies are declared and changed by themselves; a run they can ask for."""
    test_hostile.table(stage, "keeper", "spare")
    _events(stage, "alice")
    _psql(stage, "alice", "SELECT lapse_ttl.set_ttl('events', 'created_at', '1 day')")
    _work(stage)
    ((_, state, answer),) = _answers(stage, "alice")
    assert state == "refused"
    assert "whose tables this worker does not change" in str(answer)
    role = stage.role("alice")
    stage.sql("keeper", f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lapse_ttl TO {role}")
    stage.declare("alice", "ALTER TABLE alice.events SET (ttl_expiration_expression = 'created_at')")
    stage.sql("keeper", f"REVOKE ALL ON ALL TABLES IN SCHEMA lapse_ttl FROM {role}")
    _psql(stage, "alice", "SELECT lapse_ttl.pause('events')", "SELECT lapse_ttl.run('events')")
    _work(stage)
    assert [state for _, state, _ in _answers(stage, "alice")] == ["refused", "refused", "done"]
    assert stage.sql("alice", "SELECT table_name, paused FROM lapse_ttl.status") == [("alice.events", False)]


def test_role_names_are_not_folded(stage: Stage) -> None:
    """`"Keeper"` is not `keeper`."""
    big = stage.role("keeper").capitalize()
    stage.sql("postgres", f'CREATE ROLE "{big}" LOGIN; GRANT CREATE ON DATABASE {stage.database} TO "{big}"')
    try:
        stage.sql("keeper", f'GRANT USAGE ON SCHEMA lapse_ttl TO "{big}"')
        stage.sql("postgres", f'CREATE SCHEMA big AUTHORIZATION "{big}"')
        stage.sql("postgres", f"SET ROLE \"{big}\"; CREATE TABLE big.t (id INTEGER); SELECT lapse_ttl.run('big.t')")
        assert stage.sql("postgres", "SELECT requested_by FROM lapse_ttl.requests") == [(big,)]
    finally:
        stage.sql("postgres", f'DROP OWNED BY "{big}" CASCADE; DROP ROLE "{big}"')
