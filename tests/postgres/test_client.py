"""TTL from psql, as people use it: declared, run, paused, with the rights of who asks; and what an attacker gets of it.

`keeper` owns the catalog and runs the worker. `alice` and `mallory` own tables; all that they have been given here is
USAGE on the catalog's schema.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from lapse.app import Lapse
from lapse.app.requests import TOLD_SECONDS
from lapse.runner.worker import TICK_SECONDS
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
    for name in ("set_ttl", "reset_ttl", "run", "pause", "resume", "preview", "hold", "release"):
        assert f"|{name}|" in said
    assert said.count("For the owner of the table; a worker") == 9
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


def test_rows_are_held_and_released(stage: Stage) -> None:
    """By the owner of the table; a hold that was asked for is called so until it holds."""
    _events(stage, "keeper")
    said = _psql(stage, "keeper", "SELECT lapse_ttl.hold('events', 'id = 1', '2099-01-31 12:00Z', 'case 12')")
    assert "not held yet" in said
    look = "SELECT state, held_since IS NULL, condition, reason FROM lapse_ttl.holds"
    assert stage.sql("keeper", look) == [("requested", True, "id = 1", "case 12")]
    stage.sql("keeper", "SELECT lapse_ttl.set_ttl('events', 'created_at', '30 days')")
    stage.sql("keeper", "SELECT lapse_ttl.resume('events'), lapse_ttl.run('events')")
    _work(stage)
    assert stage.sql("keeper", look) == [("held", False, "id = 1", "case 12")], _answers(stage, "keeper")
    ((number, by, until),) = stage.sql("keeper", "SELECT hold_id, asked_by, until FROM lapse_ttl.holds")
    assert (by, str(until)[:16]) == (stage.role("keeper"), "2099-01-31T12:00")
    assert stage.sql("keeper", "SELECT count(*) FROM events") == [(2,)]

    assert stage.sql("mallory", "SELECT * FROM lapse_ttl.holds") == []
    assert "no hold" in _psql(stage, "mallory", f"SELECT lapse_ttl.release({number})")
    stage.sql("keeper", f"GRANT USAGE ON SCHEMA keeper TO {stage.role('mallory')}")
    assert "must be owner" in _psql(stage, "mallory", "SELECT lapse_ttl.hold('keeper.events')")
    _psql(stage, "mallory", "CREATE TABLE bait (id INTEGER)")
    forged = f"('release', 'mallory.bait'::regclass, '{{\"hold\": {number}}}')"
    _psql(stage, "mallory", f"INSERT INTO lapse_ttl.lapse_request (command, relation, arguments) VALUES {forged}")
    _work(stage)
    assert [state for _, state, _ in _answers(stage, "mallory")] == ["refused"]

    _psql(stage, "keeper", f"SELECT lapse_ttl.release({number})", "SELECT lapse_ttl.run('events')")
    _work(stage)
    assert stage.sql("keeper", "SELECT state FROM lapse_ttl.holds") == [("released",)]
    assert stage.sql("keeper", "SELECT id FROM events") == [(2,)]
    assert "no hold" in _psql(stage, "keeper", f"SELECT lapse_ttl.release({number})")


def test_a_hold_that_cannot_be_is_refused(stage: Stage) -> None:
    _events(stage, "keeper")
    for call in ("'events', 'id = '", "'events', 'id = pg_sleep(5)'", "'events', NULL, '2001-01-01'"):
        _psql(stage, "keeper", f"SELECT lapse_ttl.hold({call})")
    _work(stage)
    assert [state for _, state, _ in _answers(stage, "keeper")] == ["refused"] * 3
    assert stage.sql("keeper", "SELECT * FROM lapse_ttl.holds") == []


def test_a_catalog_with_older_functions_gets_the_new_ones(stage: Stage) -> None:
    """From its owner; another role that uses it is told."""
    stage.sql(
        "keeper",
        "DROP FUNCTION lapse_ttl.hold, lapse_ttl.release; DROP VIEW lapse_ttl.holds;"
        "DELETE FROM lapse_ttl.lapse_meta WHERE name = 'client_version';"
        "ALTER TABLE lapse_ttl.lapse_request DROP CONSTRAINT lapse_request_command_check;"
        "ALTER TABLE lapse_ttl.lapse_request ADD CONSTRAINT lapse_request_command_check CHECK (command = 'run')",
    )
    role = stage.role("alice")
    stage.sql("keeper", f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lapse_ttl TO {role}")
    with Lapse(stage.url("alice")) as db:
        (found,) = [each for each in db.doctor() if "older version" in each.text]
    assert str(found.fix) == f"run `lapse doctor URL` as {stage.role('keeper')}, which owns the schema"
    with Lapse(stage.url("keeper")) as db:
        assert not [each for each in db.doctor() if "older version" in each.text]
    _events(stage, "keeper")
    assert "not held yet" in _psql(stage, "keeper", "SELECT lapse_ttl.hold('events')")


def test_a_worker_is_told_of_requests_by_the_look_it_takes_anyway(stage: Stage) -> None:
    _events(stage, "keeper")
    with Lapse(stage.url("keeper")) as db:
        db.catalog.install()
        worker = db.worker()
        scheduler, (requests,) = worker._scheduler, worker.others
        for _ in range(2):
            worker.look(lambda tick: None)
        assert (scheduler.knows_requests, scheduler.has_requests, requests.pause()) == (True, False, TOLD_SECONDS)
        _psql(stage, "keeper", "SELECT lapse_ttl.preview('events', 'created_at', '30 days')")
        worker.look(lambda tick: None)
        assert (scheduler.has_requests, requests._woken.is_set()) == (True, True)
        requests.run_once()
        assert [state for _, state, _ in _answers(stage, "keeper")] == ["done"]
        worker.look(lambda tick: None)
        assert not scheduler.has_requests


def test_a_worker_that_cannot_look_for_requests_any_more_goes_on(stage: Stage) -> None:
    with Lapse(stage.url("keeper")) as db:
        db.catalog.install()
        worker = db.worker()
        for _ in range(2):
            worker.look(lambda tick: None)
        stage.sql("keeper", "DROP TABLE lapse_ttl.lapse_request CASCADE")
        looks = [worker.look(lambda tick: None) for _ in range(3)]
        assert looks[1:] == [TICK_SECONDS] * 2
        assert (worker._scheduler.knows_requests, worker.others[0].is_told) == (False, False)
