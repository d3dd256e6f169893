"""TTL from the mariadb and mysql programs, as people use it, and what an attacker gets of it.

`keeper` made the catalog and runs the worker. `alice` has all rights on the table events, `mallory` on a database of
her own; both may call the procedures, and nothing else of Lapse's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.app.requests import LOOK_SECONDS, TOLD_SECONDS
from lapse.engines.mysql import client, grants
from lapse.runner.worker import TICK_SECONDS
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness
from tests.tools import required

ACCOUNTS = ("keeper", "alice", "mallory")
CALLERS = ("lapse_ask", "lapse_send", "lapse_answers", *client._procedures())


@dataclass(frozen=True, kw_only=True)
class Stage:
    server: MariadbServer
    database: str

    def url(self, account: str) -> str:
        return f"mysql://{account}@127.0.0.1:{self.server.port}/{self.database}"

    def root(self, *statements: str) -> list[tuple[object, ...]]:
        return self.server.execute(*statements, database=self.database)

    def sql(self, account: str, *statements: str) -> list[tuple[object, ...]]:
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=self.server.port,
                user=account,
                database=self.database,
                autocommit=True,
                ssl_disabled=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def refused(self, account: str, *statements: str) -> str:
        with pytest.raises(pymysql.Error) as caught:
            self.sql(account, *statements)
        return str(caught.value)

    def program(self, account: str, *statements: str) -> str:
        """What the real program prints, errors included."""
        done = subprocess.run(
            [
                *(required("mariadb"), "--no-defaults", "--protocol=tcp", "-h127.0.0.1", f"-P{self.server.port}"),
                *(f"-u{account}", "--skip-ssl", "--batch", "--skip-column-names", "--force", self.database),
                *("-e", "; ".join(statements)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def work(self, account: str = "keeper") -> None:
        with Lapse(self.url(account)) as db:
            db.run()

    def answers(self) -> list[tuple[object, ...]]:
        return self.root("SELECT command, state, answer FROM lapse_requests ORDER BY request_id")

    def last(self) -> str:
        return str(self.answers()[-1][2])


def allow(stage: Stage, account: str) -> None:
    stage.root(f"GRANT INSERT (command, table_name, arguments) ON lapse_request TO {account}@'%'")
    stage.root(*(f"GRANT EXECUTE ON PROCEDURE {name} TO {account}@'%'" for name in CALLERS))


@pytest.fixture
def stage(h: Harness, server: MariadbServer) -> Iterator[Stage]:
    name = str(make_url(h.url).database)
    server.execute("DROP DATABASE IF EXISTS mal", "CREATE DATABASE mal")
    for account in ACCOUNTS:
        server.execute(f"DROP USER IF EXISTS {account}@'%'", f"CREATE USER {account}@'%'")
    server.execute(f"GRANT ALL ON {name}.* TO keeper@'%'", "GRANT ALL ON mal.* TO mallory@'%'")
    server.execute(*(f"GRANT {each} TO keeper@'%'" for each in grants.READS))
    stage = Stage(server=server, database=name)
    stage.sql("keeper", "CREATE TABLE own (id INT PRIMARY KEY, at TIMESTAMP NOT NULL)")
    stage.sql("keeper", "CREATE TABLE events (id INT PRIMARY KEY, created_at TIMESTAMP NOT NULL)")
    stage.sql(
        "keeper",
        "INSERT INTO events VALUES (1, now() - INTERVAL 60 DAY), (2, now())",
        "INSERT INTO own VALUES (1, now())",
    )
    with Lapse(stage.url("keeper")) as db:
        db.execute("ALTER TABLE own SET (ttl_expiration_expression = 'at + INTERVAL 1 YEAR')")
    stage.root("GRANT ALL ON events TO alice@'%'")
    for account in ("alice", "mallory"):
        allow(stage, account)
    yield stage
    for account in ACCOUNTS:
        server.execute(f"DROP USER IF EXISTS {account}@'%'")
    server.execute("DROP DATABASE IF EXISTS mal")


def test_a_person_declares_runs_and_pauses(stage: Stage) -> None:
    said = stage.program(
        "alice",
        "CALL lapse_preview_ttl('events', 'created_at', '30 days')",
        "CALL lapse_set_ttl('events', 'created_at', '30 days')",
        'CALL lapse_set_options(\'events\', \'{"ttl_grace": "0s", "ttl_guard": false}\')',
        "CALL lapse_run('events')",
    )
    assert said.count("not done yet: the next worker does it") == 4, said
    stage.work()
    answers = stage.answers()
    assert [answer[:2] for answer in answers] == [
        ("preview", "done"),
        ("set_ttl", "done"),
        ("set_ttl", "done"),
        ("run", "done"),
    ], answers
    assert "would delete 1 of 2 rows" in str(answers[0][2])
    assert stage.root("SELECT id FROM events") == [(2,)]
    assert stage.root("SELECT status, deleted FROM lapse_history WHERE table_name = 'events'") == [("finished", 1)]
    assert "the table is due now" in stage.program("alice", "CALL lapse_answers()")

    stage.root("INSERT INTO events VALUES (3, now() - INTERVAL 60 DAY)")
    stage.program("alice", "CALL lapse_pause('events')", "CALL lapse_run('events')")
    stage.work()
    assert [answer[1] for answer in stage.answers()[4:]] == ["done", "refused"]
    assert stage.root("SELECT paused FROM lapse_status WHERE table_name = 'events'") == [(1,)]
    stage.program("alice", "CALL lapse_resume('events')", "CALL lapse_run('events')")
    stage.work()
    assert stage.root("SELECT id FROM events") == [(2,)]
    stage.program("alice", "CALL lapse_reset_ttl('events')")
    stage.work()
    assert stage.root("SELECT count(*) FROM lapse_status WHERE table_name = 'events'") == [(0,)]
    stage.program("alice", "CALL lapse_set_ttl('events', NULL, '8 hours')")
    stage.work()
    assert stage.root("SELECT count(*) FROM events WHERE crdb_internal_expiration > now()") == [(1,)], stage.last()


def test_rows_are_held_and_released(stage: Stage) -> None:
    stage.program(
        "alice",
        "CALL lapse_hold('events', 'id = 1', '2099-01-31T12:00:00Z', 'case 12')",
        "CALL lapse_set_ttl('events', 'created_at', '30 days')",
        "CALL lapse_run('events')",
        "CALL lapse_resume('events')",
    )
    assert stage.root("SELECT state, condition_on_rows, until_time, held_since FROM lapse_holds") == [
        ("requested", "id = 1", "2099-01-31T12:00:00Z", None)
    ]
    stage.work()
    ((number, *rest),) = stage.root("SELECT hold_id, state, asked_by, until_time, reason FROM lapse_holds")
    assert rest == ["held", "alice@%", "2099-01-31T12:00:00Z", "case 12"], stage.answers()
    assert stage.root("SELECT count(*) FROM events") == [(2,)]
    with Lapse(stage.url("keeper")) as db:
        other = db.hold("own").id
    stage.program(
        "alice",
        f"CALL lapse_release('events', {other})",
        f"CALL lapse_release('events', {number})",
        "CALL lapse_run('events')",
    )
    stage.work()
    assert "is not on table events" in str(stage.answers()[4][2])
    assert stage.root("SELECT table_name, state FROM lapse_holds ORDER BY hold_id") == [
        ("events", "released"),
        ("own", "held"),
    ], stage.answers()
    assert stage.root("SELECT id FROM events") == [(2,)]


def test_the_procedures_explain_themselves(stage: Stage) -> None:
    said = stage.program("alice", f"SHOW PROCEDURE STATUS WHERE Db = '{stage.database}'")
    for name in ("set_ttl", "reset_ttl", "run", "pause", "resume", "preview", "hold", "release"):
        assert f"lapse_{name}\t" in said
    assert said.count("For accounts with all rights on the table; a worker") == 10
    assert "until then they may still be deleted" in said


def test_mistakes_are_told_at_once(stage: Stage) -> None:
    assert "no such column" in stage.program("alice", "CALL lapse_set_ttl('events', 'created', '30 days')")
    assert "no such table" in stage.program("alice", "CALL lapse_run('event')")
    assert "no such table" in stage.program("alice", "CALL lapse_run(NULL)")
    assert "written as JSON" in stage.program("alice", "CALL lapse_set_options('events', 'soon')")
    assert stage.answers() == []
    stage.program(
        "alice",
        "CALL lapse_set_ttl('events', 'created_at', 'soon')",
        "CALL lapse_set_options('events', '[1]')",
        "CALL lapse_set_options('events', '{\"ttl_gracee\": 1}')",
        "CALL lapse_hold('events', 'id = ', NULL, NULL)",
        "CALL lapse_hold('events', NULL, 'tomorrow', NULL)",
        "CALL lapse_release('events', 4711)",
    )
    stage.work()
    assert {state for _, state, _ in stage.answers()} == {"refused"}
    assert len(stage.answers()) == 6
    assert stage.root("SELECT table_name FROM lapse_policy") == [("own",)]


def test_names_and_arguments_are_never_sql(stage: Stage) -> None:
    odd = 'it\'s `odd`; DROP TABLE own; -- "x" %s'
    quoted = "`" + odd.replace("`", "``") + "`"
    written = odd.replace("'", "''")
    stage.root(f"CREATE TABLE {quoted} ({quoted} TIMESTAMP NOT NULL, id INT PRIMARY KEY)")
    stage.root(f"GRANT ALL ON {quoted} TO alice@'%'")
    stage.program(
        "alice",
        f"CALL lapse_set_ttl('{written}', '{written}', '1 day')",
        f"CALL lapse_hold('{written}', 'id = 1) OR 1 IN (SELECT 1', NULL, '{written}')",
        f"CALL lapse_hold('{written}', 'id = sleep(5)', NULL, NULL)",
        f"CALL lapse_hold('{written}', 'id = 1', NULL, '{written}')",
    )
    stage.work()
    assert [state for _, state, _ in stage.answers()] == ["done", "refused", "refused", "done"], stage.answers()
    assert stage.root("SELECT table_name FROM lapse_policy ORDER BY 1")[0] == (odd,)
    assert stage.root("SELECT count(*) FROM own") == [(1,)]


def test_another_account_gets_nothing(stage: Stage) -> None:
    """By the procedures, and by writing what they write."""
    assert "no such table" in stage.program("mallory", "CALL lapse_run('events')")
    stage.root("GRANT SELECT, DELETE ON events TO mallory@'%'")
    for call in ("set_ttl('events', 'created_at', '1 second')", "run('events')", "hold('events', NULL, NULL, NULL)"):
        assert "not done yet" in stage.program("mallory", f"CALL lapse_{call}")
    stage.sql(
        "mallory",
        "INSERT INTO lapse_request (command, table_name) VALUES ('run', 'own')",
        "CALL lapse_send(LAST_INSERT_ID())",
    )
    stage.work()
    assert {state for _, state, _ in stage.answers()} == {"refused"}
    assert len(stage.answers()) == 4
    assert "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, CREATE VIEW, TRIGGER ON" in stage.last()
    for statement in (
        "INSERT INTO lapse_request (command, table_name, requested_by) VALUES ('run', 'events', 'alice@%')",
        "INSERT INTO lapse_request (command, table_name, state) VALUES ('run', 'events', 'waiting')",
        "INSERT INTO lapse_request (command, table_name, session) VALUES ('run', 'events', '1')",
        "REPLACE INTO lapse_request (command, table_name) VALUES ('run', 'events')",
        "UPDATE lapse_request SET requested_by = 'alice@%'",
        "DELETE FROM lapse_request",
        "SELECT * FROM lapse_request",
        "SELECT * FROM lapse_requests",
        "SELECT * FROM lapse_policy",
        "DROP PROCEDURE lapse_run",
        "ALTER PROCEDURE lapse_run COMMENT 'mine'",
        "CREATE PROCEDURE lapse_other() SELECT 1",
        "CREATE OR REPLACE VIEW lapse_status AS SELECT 1",
    ):
        assert "denied" in stage.refused("mallory", statement), statement


def test_code_of_another_account_asks_in_its_own_name(stage: Stage) -> None:
    """A trigger on a table that alice writes, a function that she calls, a procedure with its definer's rights."""
    ask = f"INSERT INTO {stage.database}.lapse_request (command, table_name) VALUES ('run', 'events')"
    stage.sql(
        "mallory",
        "CREATE TABLE mal.bait (id INT)",
        f"CREATE TRIGGER mal.lure BEFORE INSERT ON mal.bait FOR EACH ROW BEGIN {ask}; END",
        f"CREATE PROCEDURE mal.call_it() SQL SECURITY DEFINER BEGIN {ask};"
        f" CALL {stage.database}.lapse_send(LAST_INSERT_ID()); END",
    )
    stage.root("GRANT ALL ON mal.* TO alice@'%'")
    stage.sql("alice", "INSERT INTO mal.bait VALUES (1)")
    assert stage.root("SELECT state FROM lapse_request") == [("draft",)]
    ((planted,),) = stage.root("SELECT max(request_id) FROM lapse_request")
    assert "no such request" in stage.refused("mallory", f"CALL lapse_send({planted})")
    stage.sql("mallory", "DROP TRIGGER mal.lure")
    stage.sql(
        "mallory",
        f"CREATE TRIGGER mal.lure BEFORE INSERT ON mal.bait FOR EACH ROW BEGIN {ask};"
        f" CALL {stage.database}.lapse_send(LAST_INSERT_ID()); END",
    )
    assert "Dynamic SQL is not allowed" in stage.refused("alice", "INSERT INTO mal.bait VALUES (1)")
    stage.sql("alice", "CALL mal.call_it()")
    assert stage.root("SELECT requested_by FROM lapse_requests") == [("mallory@%",)]
    stage.work()
    assert [state for _, state, _ in stage.answers()] == ["refused"]


def test_a_request_that_could_be_forged_is_refused(stage: Stage) -> None:
    """Tables have no owners: an account that may write the request table writes what it likes."""
    stage.root(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {stage.database}.* TO mallory@'%'")
    stage.sql(
        "mallory",
        "INSERT INTO lapse_request (command, table_name, arguments, requested_by, state) VALUES"
        " ('set_ttl', 'events', '{\"column\": \"created_at\", \"after\": \"1 second\"}', 'alice@%', 'waiting'),"
        " ('reset_ttl', 'own', '{}', 'keeper@%', 'waiting'), ('reset_ttl', 'own', '{}', 'root@localhost', 'waiting')",
    )
    stage.work()
    assert [state for _, state, _ in stage.answers()] == ["refused"] * 3
    assert "`mallory`@`%` may write table lapse_request" in stage.last()
    assert stage.root("SELECT table_name FROM lapse_policy") == [("own",)]


def test_an_archive_is_not_written_for_another_account(stage: Stage) -> None:
    """It is a table, which may be another one than those that the account has rights on."""
    stage.program("alice", "CALL lapse_set_ttl('events', 'created_at', '30 days')")
    for where in ("table:", "table:mal.loot", "table:own"):
        stage.program("alice", f"CALL lapse_set_options('events', '{{\"ttl_archive\": \"{where}\"}}')")
    stage.work()
    assert [state for _, state, _ in stage.answers()] == ["done", *["refused"] * 3], stage.answers()


def test_rights_are_asked_for_when_it_is_done(stage: Stage) -> None:
    stage.program("alice", "CALL lapse_set_ttl('events', 'created_at', '1 day')")
    stage.root("REVOKE TRIGGER ON events FROM alice@'%'")
    stage.work()
    assert "TRIGGER are not given to it" in stage.last()
    stage.program("alice", "CALL lapse_set_ttl('events', 'created_at', '1 day')")
    stage.root("DROP USER alice@'%'")
    stage.work()
    assert [state for _, state, _ in stage.answers()] == ["refused", "refused"]


def test_a_worker_that_cannot_tell_who_may_ask_says_what_it_lacks(stage: Stage) -> None:
    (needed,) = [each for each in grants.READS if each.endswith("mysql.db")]
    stage.root(f"REVOKE {needed} FROM keeper@'%'")
    stage.program("alice", "CALL lapse_run('events')")
    stage.work()
    assert f"GRANT {needed} TO `keeper`@`%`;" in stage.last()


def test_what_no_procedure_has_written_is_refused_alone(stage: Stage) -> None:
    for arguments in ("[1]", '{"where": 1}', '"text"', '{"options": 1}', '{"column": [1], "after": {}}'):
        stage.sql(
            "alice",
            f"INSERT INTO lapse_request (command, table_name, arguments) VALUES ('set_ttl', 'events', '{arguments}')",
            "CALL lapse_send(LAST_INSERT_ID())",
        )
    stage.sql(
        "alice",
        "INSERT INTO lapse_request (command, table_name) VALUES ('drop', 'events')",
        "CALL lapse_send(LAST_INSERT_ID())",
    )
    stage.program("alice", "CALL lapse_set_ttl('events', 'created_at', '30 days')")
    stage.work()
    assert [state for _, state, _ in stage.answers()] == [*["refused"] * 6, "done"], stage.answers()


def test_the_documentation_has_what_a_worker_needs() -> None:
    text = (Path(__file__).parents[2] / "docs/clients.md").read_text()
    for each in grants.READS:
        assert f"GRANT {each} TO worker;" in text


def test_answers_are_for_who_asked(stage: Stage) -> None:
    stage.program("alice", "CALL lapse_hold('events', 'id = 4711', NULL, NULL)")
    assert "hold" in stage.program("alice", "CALL lapse_answers()")
    assert stage.program("mallory", "CALL lapse_answers()") == ""


def test_procedures_that_a_dump_has_left_out_are_made_again(stage: Stage) -> None:
    stage.root("DROP PROCEDURE lapse_set_ttl", "DROP PROCEDURE lapse_run")
    with Lapse(stage.url("keeper")) as db:
        (found,) = [each for each in db.doctor() if "procedures" in each.text]
        assert "lapse_run, lapse_set_ttl" in found.text and found.fix == "lapse doctor URL --repair"
        # A worker that may not make procedures is not shown those of others, and so misses none.
        stage.root(f"REVOKE CREATE ROUTINE, ALTER ROUTINE, EXECUTE ON {stage.database}.* FROM keeper@'%'")
        assert not [each for each in db.doctor() if "procedures" in each.text]
        stage.root(f"GRANT CREATE ROUTINE, ALTER ROUTINE, EXECUTE ON {stage.database}.* TO keeper@'%'")
        (found,) = [each for each in db.doctor(repair=True) if "procedures" in each.text]
        assert found.fixed
        assert not [each for each in db.doctor() if "procedures" in each.text]
    allow(stage, "alice")
    stage.program("alice", "CALL lapse_set_ttl('events', 'created_at', '30 days')")
    stage.work()
    assert [state for _, state, _ in stage.answers()] == ["done"], stage.answers()


def test_a_catalog_without_procedures_gets_them(stage: Stage, server: MariadbServer) -> None:
    """One of an earlier version, or made by an account that may not make any; rights that were given stay."""
    with Lapse(stage.url("keeper")) as db:
        with db.engine.connection() as connection:
            db.engine.remove_client(connection)
        stage.root("DELETE FROM lapse_meta WHERE name = 'client_version'")
    stage.root(f"REVOKE CREATE ROUTINE ON {stage.database}.* FROM keeper@'%'")
    stage.work()
    with Lapse(stage.url("keeper")) as db:
        (found,) = [each for each in db.doctor() if "procedures" in each.text]
    assert "GRANT CREATE, CREATE VIEW, DROP, CREATE ROUTINE" in str(found.fix)
    stage.root(f"GRANT CREATE ROUTINE ON {stage.database}.* TO keeper@'%'")
    with Lapse(stage.url("keeper")) as db:
        assert not [each for each in db.doctor() if "procedures" in each.text]
    allow(stage, "alice")
    stage.root("DELETE FROM lapse_meta WHERE name = 'client_version'")
    stage.work()
    assert "not done yet" in stage.program("alice", "CALL lapse_run('events')")


def test_what_is_the_users_stays(stage: Stage) -> None:
    with Lapse(stage.url("keeper")) as db:
        with db.engine.connection() as connection:
            db.engine.remove_client(connection)
        stage.root("DELETE FROM lapse_meta WHERE name = 'client_version'")
    stage.root("CREATE PROCEDURE lapse_run() SELECT 'mine'")
    with Lapse(stage.url("keeper")) as db:
        (found,) = [each for each in db.doctor() if "procedures" in each.text]
    assert "something named lapse_run" in found.text
    assert stage.root("CALL lapse_run()") == [("mine",)]


def test_a_worker_is_told_of_requests_by_the_look_it_takes_anyway(stage: Stage) -> None:
    with Lapse(stage.url("keeper")) as db:
        worker = db.worker()
        scheduler, (requests,) = worker._scheduler, worker.others
        for _ in range(2):
            worker.look(lambda tick: None)
        assert (scheduler.knows_requests, scheduler.has_requests, requests.pause()) == (True, False, TOLD_SECONDS)
        stage.sql("alice", "CALL lapse_preview_ttl('events', 'created_at', '30 days')")
        worker.look(lambda tick: None)
        assert (scheduler.has_requests, requests._woken.is_set()) == (True, True)
        requests.run_once()
        worker.look(lambda tick: None)
        assert not scheduler.has_requests


def test_a_worker_that_cannot_look_for_requests_any_more_goes_on(stage: Stage) -> None:
    with Lapse(stage.url("keeper")) as db:
        worker = db.worker()
        for _ in range(2):
            worker.look(lambda tick: None)
        stage.root("DROP TABLE lapse_request")
        looks = [worker.look(lambda tick: None) for _ in range(3)]
        assert looks[1:] == [TICK_SECONDS] * 2
        (requests,) = worker.others
        assert (worker._scheduler.knows_requests, requests.pause()) == (False, LOOK_SECONDS)


def test_a_worker_goes_on_while_requests_are_locked(stage: Stage, server: MariadbServer) -> None:
    with Lapse(stage.url("keeper")) as db, server.connect(stage.database) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLES lapse_request WRITE")
        worker = db.worker()
        assert [worker.look(lambda tick: None) for _ in range(2)] == [TICK_SECONDS] * 2
        assert not worker._scheduler.knows_requests
        cursor.execute("UNLOCK TABLES")
