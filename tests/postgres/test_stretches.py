"""Several batches in one message: each is a transaction of its own that keeps every promise a single one keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from socket import SHUT_RDWR, socket
from time import monotonic, sleep
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from lapse.app import Lapse
from lapse.catalog import tasks as stored_tasks
from lapse.catalog.tasks import Progress
from lapse.engines.postgres import stretches
from lapse.engines.postgres.blocks import MAX_REFUSED, BlockDeleter
from lapse.errors import DatabaseUnavailable
from lapse.model.job import JobStatus, Task
from lapse.runner.controller import Controller
from tests.conformance.harness import Harness
from tests.postgres.test_hostile import Stage, each_stage, table

__all__ = ["each_stage"]

LIMIT, ROWS = 100, 6_000
PATIENCE_SECONDS = 30.0
SLOWLY = 0.01
"""The share of the time for which the server works where a test has to come in between."""


def fill(h: Harness, rows: int = ROWS, expired: str = "TRUE", ttl: str = "") -> None:
    h.events(extra=", pad TEXT")
    h.sql(f"ALTER TABLE events SET (ttl_guard = 'off', ttl_delete_batch_size = {LIMIT}{ttl})")
    h.sql(
        f"INSERT INTO events SELECT n, {h.at()}::timestamptz - (CASE WHEN {expired} THEN 9 ELSE 0 END)"
        " * INTERVAL '1 day',"
        f" repeat('x', 100) FROM generate_series(1, {rows}) n"
    )
    h.sql("ANALYZE events")


@contextmanager
def messages(h: Harness) -> Iterator[list[str]]:
    """What the worker sends."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(h.db.engine.database, "before_cursor_execute", note)
    yield seen
    event.remove(h.db.engine.database, "before_cursor_execute", note)


def blocks(seen: list[str]) -> int:
    return sum(statement.startswith("DO ") for statement in seen)


@dataclass
class Watched:
    """How many stretches there were, and what has ended some of them before their time."""

    count: int = 0
    errors: list[DBAPIError] = field(default_factory=list)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    original = stretches.go

    def go(*arguments: Any, **named: Any) -> stretches.Went:
        found.count += 1
        try:
            return original(*arguments, **named)
        except DBAPIError as error:
            found.errors.append(error)
            raise

    monkeypatch.setattr(stretches, "go", go)
    return found


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches that last, and rest for nearly all of the time."""
    original = BlockDeleter.stretch
    monkeypatch.setattr(
        BlockDeleter,
        "stretch",
        lambda self, limit, within: original(self, limit, replace(within, seconds=60.0, share=SLOWLY)),
    )


def until(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_SECONDS
    while not holds():
        assert monotonic() < deadline
        sleep(0.005)


def is_under_way(client: psycopg.Connection, batches: int = 3) -> bool:
    row = client.execute("SELECT max(batches) FROM lapse_ttl.lapse_task").fetchone()
    return row is not None and row[0] is not None and row[0] >= batches


def left(client: psycopg.Connection, condition: str = "TRUE") -> int:
    row = client.execute(f"SELECT count(*) FROM events WHERE {condition}").fetchone()
    assert row is not None
    return int(row[0])


def watch_sizes(client: psycopg.Connection) -> None:
    """Notes how many rows each statement deletes, and in which transaction."""
    client.execute(
        "CREATE TABLE sizes (rows BIGINT, xid BIGINT);"
        "CREATE FUNCTION note_size() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO sizes SELECT count(*), txid_current() FROM gone HAVING count(*) > 0; RETURN NULL; END';"
        "CREATE TRIGGER sizes AFTER DELETE ON events REFERENCING OLD TABLE AS gone"
        " FOR EACH STATEMENT EXECUTE FUNCTION note_size()"
    )


def sizes(client: psycopg.Connection) -> list[tuple[int, int]]:
    return client.execute("SELECT sum(rows)::int, count(*)::int FROM sizes GROUP BY xid").fetchall()


def test_batches_share_a_message_and_each_is_a_transaction(each: Harness, watched: Watched) -> None:
    fill(each)
    with psycopg.connect(each.url, autocommit=True) as client:
        watch_sizes(client)
        with messages(each) as seen:
            job = each.run_one()
        made = sizes(client)
        assert left(client) == 0
    assert (job.counts.selected, job.counts.deleted, job.counts.skipped) == (ROWS, ROWS, 0)
    assert job.counts.batches == len(made) >= ROWS // LIMIT
    assert max(rows for rows, _ in made) <= LIMIT and {statements for _, statements in made} == {1}
    # The first batch goes alone, to see how dense expired rows are.
    assert 1 <= blocks(seen) <= 3 and len(seen) < job.counts.batches
    assert watched.count and not watched.errors


def test_all_stretches_of_a_table_have_one_text(h: Harness, client: psycopg.Connection) -> None:
    """Statistics of statements keep a line for each text."""
    texts: set[str] = set()
    fill(h)
    for number in range(2):
        with messages(h) as seen, pytest.MonkeyPatch.context() as patch:
            patch.setattr(Controller, "share", lambda *_, share=0.5 + number / 10, **__: (share, "a test"))
            assert h.run_one().counts.deleted
        texts |= {statement for statement in seen if statement.startswith("DO ")}
        client.execute("UPDATE lapse_ttl.lapse_table SET next_run_at = NULL")
        h.sql(f"INSERT INTO events SELECT n, '2020-01-01', repeat('x', 100) FROM generate_series(1, {ROWS}) n")
        h.advance(minutes=1)
    assert len(texts) == 1


def test_a_server_that_logs_slow_statements_logs_no_stretch(h: Harness, client: psycopg.Connection) -> None:
    fill(h)
    client.execute(f"ALTER DATABASE {h.url.rpartition('/')[2]} SET log_min_duration_statement = '150ms'")
    lasted: list[float] = []
    original = stretches.go

    def go(*arguments: Any, **named: Any) -> stretches.Went:
        began = monotonic()
        went = original(*arguments, **named)
        lasted.append(monotonic() - began)
        return went

    with Lapse(h.url, clock=h.clock) as db, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "go", go)
        patch.setattr(Controller, "share", lambda *_, **__: (0.1, "a test"))
        assert db.run("events").deleted == ROWS
    assert len(lasted) > 1 and sorted(lasted)[len(lasted) // 2] < 0.15


def test_rows_that_lie_closer_than_before_are_no_larger_batch(h: Harness, client: psycopg.Connection) -> None:
    fill(h, expired="n % 10 = 0 OR n BETWEEN 3000 AND 5000")
    watch_sizes(client)
    with messages(h) as seen:
        job = h.run_one()
    assert job.counts.deleted == 2_400 and left(client) == ROWS - 2_400
    assert blocks(seen) and max(rows for rows, _ in sizes(client)) <= LIMIT


def test_where_few_rows_have_expired_batches_go_one_by_one(h: Harness) -> None:
    fill(h, expired="n % 30 = 0")
    with messages(h) as seen:
        assert h.run_one().counts.deleted == ROWS // 30
    assert not blocks(seen)


def test_a_row_that_is_locked_is_skipped_and_everything_else_goes(h: Harness, client: psycopg.Connection) -> None:
    fill(h)
    with psycopg.connect(h.url) as other, messages(h) as seen:
        other.execute("SELECT 1 FROM events WHERE id = 3000 FOR UPDATE")
        job = h.run_one()
        assert (job.counts.deleted, job.counts.skipped) == (ROWS - 1, 1)
        assert h.ids() == [3000]
    assert blocks(seen) > 1
    assert h.run_one().counts.deleted == 1


@pytest.mark.usefixtures("slowly")
def test_a_lost_lease_ends_it(h: Harness, client: psycopg.Connection) -> None:
    fill(h)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(h.db.run, "events")
        until(lambda: is_under_way(client))
        client.execute("UPDATE lapse_ttl.lapse_task SET fence = fence + 1, owner_id = 'another', heartbeat_at = now()")
        rows = left(client)
        sleep(0.2)
        # A batch may have been under way, and was undone.
        assert left(client) == rows > 0
        counted = client.execute("SELECT deleted FROM lapse_ttl.lapse_task").fetchall()
        assert counted == [(ROWS - rows,)]
        h.owner.execute("CANCEL JOB 1")
        client.execute("UPDATE lapse_ttl.lapse_task SET heartbeat_at = '2000-01-01'")
        run.result(PATIENCE_SECONDS)
    assert left(client) == rows


@pytest.mark.usefixtures("slowly")
def test_no_row_goes_after_a_hold_was_placed(h: Harness, client: psycopg.Connection) -> None:
    fill(h)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(h.db.run, "events")
        until(lambda: is_under_way(client))
        h.owner.hold("events", where="id % 2 = 0")
        kept = left(client, "id % 2 = 0")
        assert 0 < kept < ROWS // 2
        run.result(PATIENCE_SECONDS)
    h.db.run("events")
    assert (left(client, "id % 2 = 0"), left(client, "id % 2 = 1")) == (kept, 0)


@pytest.mark.usefixtures("slowly")
def test_no_row_goes_after_its_policy_gave_it_longer(each: Harness) -> None:
    fill(each)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(each.url, autocommit=True) as client:
        run = pool.submit(each.db.run, "events")
        until(lambda: is_under_way(client))
        each.sql("ALTER TABLE events TTL = ts + INTERVAL 1 YEAR")
        rows = left(client)
        run.result(PATIENCE_SECONDS)
        assert left(client) == rows > 0


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE events RENAME TO gone; CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ, pad TEXT);"
        " INSERT INTO events SELECT * FROM gone",
        "ALTER TABLE events RENAME ts TO was; ALTER TABLE events ADD ts TIMESTAMPTZ DEFAULT '2000-01-01'",
        "ALTER TABLE events ALTER ts TYPE TIMESTAMP",
    ],
    ids=["swapped", "renamed", "retyped"],
)
def test_a_table_that_changes_meanwhile_loses_nothing_more(h: Harness, client: psycopg.Connection, change: str) -> None:
    fill(h)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(h.db.run, "events")
        until(lambda: is_under_way(client))
        client.execute(f"BEGIN; {change}; COMMIT")
        rows = left(client)
        run.result(PATIENCE_SECONDS)
    assert left(client) == rows > 0


def test_what_is_stopped_stops_at_once(h: Harness, client: psycopg.Connection, slowly: None) -> None:
    fill(h)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(h.db.run, "events")
        until(lambda: is_under_way(client))
        h.owner.execute("PAUSE JOB 1")
        began = monotonic()
        (job,) = run.result(PATIENCE_SECONDS).jobs
        assert monotonic() - began < 5.0
    assert (job.status.value, job.counts.deleted) == ("paused", ROWS - left(client))
    assert job.counts.batches >= 3


def test_between_batches_nothing_is_locked(h: Harness, client: psycopg.Connection, slowly: None) -> None:
    fill(h)
    resting = "SELECT backend_xid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    locks = (
        "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE a.wait_event = 'PgSleep' AND l.relation = 'events'::regclass"
    )
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(h.db.run, "events")
        until(lambda: client.execute(resting).fetchone() is not None)
        seen = [(client.execute(resting).fetchall(), client.execute(locks).fetchone()) for _ in range(50)]
        # It was seen at rest, and never with a number.
        assert {tuple(xids) for xids, _ in seen} - {()} == {((None,),)}
        assert {count for _, count in seen} == {(0,)}
        h.owner.execute("CANCEL JOB 1")
        run.result(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "statement_timeout = '40ms'",
        "lock_timeout = '1ms'",
        "search_path = 'elsewhere'",
        "standard_conforming_strings = off",
    ],
)
def test_defaults_of_the_role_change_nothing(
    h: Harness, watched: Watched, client: psycopg.Connection, setting: str
) -> None:
    fill(h)
    name = client.execute("SELECT current_database()").fetchone()
    assert name is not None
    client.execute(f"ALTER DATABASE {name[0]} SET {setting}")
    with Lapse(h.url, clock=h.clock) as db, pytest.MonkeyPatch.context() as patch:
        # Longer than the time limit of the role.
        patch.setattr(Controller, "share", lambda *_, **__: (0.3, "a test"))
        assert db.run("events").deleted == ROWS
    assert watched.count and not watched.errors


def test_a_trigger_that_takes_long_is_left_to_single_batches(h: Harness, client: psycopg.Connection) -> None:
    fill(h)
    client.execute(
        "CREATE SEQUENCE calls;"
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF nextval(''calls'') = 8 THEN PERFORM pg_sleep(0.9); END IF; RETURN NULL; END';"
        "CREATE TRIGGER dawdle AFTER DELETE ON events FOR EACH STATEMENT EXECUTE FUNCTION dawdle()"
    )
    job = h.run_one()
    assert (job.counts.deleted, left(client)) == (ROWS, 0)


def test_a_role_that_may_not_use_the_language_works_batch_by_batch(each_stage: Stage, watched: Watched) -> None:
    _large(each_stage, "alice")
    each_stage.sql("postgres", "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
    with Lapse(each_stage.url("keeper")) as worker:
        (job,) = worker.run("alice.events").jobs
    assert (job.counts.deleted, job.counts.skipped) == (ROWS - 1, 0)
    assert watched.count == len(watched.errors) == MAX_REFUSED


def test_names_may_be_anything(h: Harness, client: psycopg.Connection, watched: Watched) -> None:
    schema, name, column = '"we""ird {x} %s"', '''"t'; -- {0}"''', '"ts {y} %(z)s"'
    client.execute(f"CREATE SCHEMA {schema}")
    h.sql(f"CREATE TABLE {schema}.{name} (id BIGINT PRIMARY KEY, {column} TIMESTAMPTZ, pad TEXT)")
    h.sql(f"ALTER TABLE {schema}.{name} TTL = {column} + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE {schema}.{name} SET (ttl_guard = 'off', ttl_delete_batch_size = {LIMIT})")
    h.sql(
        f"INSERT INTO {schema}.{name} SELECT n, {h.at()}::timestamptz - n % 2 * INTERVAL '9 days', repeat('x', 100)"
        f" FROM generate_series(1, {ROWS}) n"
    )
    (job,) = h.db.run(None).jobs
    assert job.counts.deleted == ROWS // 2 and watched.count and not watched.errors
    assert client.execute(f"SELECT count(*), min(id % 2) FROM {schema}.{name}").fetchall() == [(ROWS // 2, 0)]


def test_an_archive_gets_every_row_once(h: Harness, client: psycopg.Connection) -> None:
    fill(h, ttl=", ttl_archive = 'table:old_events'")
    with messages(h) as seen:
        job = h.run_one()
    assert blocks(seen) and job.counts.deleted == ROWS
    assert client.execute("SELECT count(*), count(DISTINCT id) FROM old_events").fetchall() == [(ROWS, ROWS)]


def test_keys_are_recorded_and_rates_kept_one_batch_at_a_time(h: Harness) -> None:
    fill(h, ttl=", ttl_ledger_keys = 'on'")
    with messages(h) as seen:
        assert h.run_one().counts.deleted == ROWS
    assert not blocks(seen)


def test_a_worker_that_is_killed_leaves_true_counts(h: Harness, client: psycopg.Connection) -> None:
    """The server goes on with a stretch until it has something to say; another worker takes over from there."""
    fill(h)
    code = (
        "import sys\n"
        "from datetime import datetime\n"
        "from lapse.app import Lapse\n"
        "from lapse.clock import ManualClock\n"
        "from lapse.runner.controller import Controller\n"
        f"Controller.share = lambda *_, **__: ({SLOWLY}, 'a test')\n"
        "Lapse(sys.argv[1], clock=ManualClock(datetime.fromisoformat(sys.argv[2]))).run('events')\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, h.url, h.now.isoformat()])
    try:
        until(lambda: is_under_way(client))
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    client.execute("UPDATE lapse_ttl.lapse_task SET heartbeat_at = '2000-01-01'")
    h.db.run("events")
    assert left(client) == 0
    (job,) = [job for job in h.db.history("events") if job.counts.deleted]
    assert job.counts.deleted == ROWS and job.counts.batches > 3


def test_what_a_server_deletes_after_the_connection_is_lost_is_counted(
    h: Harness, client: psycopg.Connection, slowly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not notice, and goes on while the worker gives its task back."""
    fill(h)
    sockets: list[int] = []
    go, resign = stretches.go, stored_tasks.resign_task

    def note(connection: Connection, *arguments: Any, **named: Any) -> stretches.Went:
        sockets.append(connection.connection.driver_connection.fileno())  # type: ignore[union-attr]
        return go(connection, *arguments, **named)

    def resign_late(connection: Connection, lease: Task, progress: Progress) -> None:
        with psycopg.connect(h.url, autocommit=True) as other:
            deadline = monotonic() + 0.5
            while not is_under_way(other, progress.counts.batches + 1) and monotonic() < deadline:
                sleep(0.005)
        resign(connection, lease, progress)

    monkeypatch.setattr(stretches, "go", note)
    monkeypatch.setattr(stored_tasks, "resign_task", resign_late)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(h.db.run, "events")
        until(lambda: is_under_way(client))
        with socket(fileno=os.dup(sockets[-1])) as lost:
            lost.shutdown(SHUT_RDWR)
        with pytest.raises(DatabaseUnavailable):
            run.result(PATIENCE_SECONDS)
    assert left(client) > 0
    h.db.run("events")
    assert left(client) == 0
    (job,) = [job for job in h.db.history("events") if job.counts.deleted]
    assert job.counts.deleted == ROWS


# Of another role's table


def _large(stage: Stage, owner: str) -> None:
    table(stage, owner)
    stage.sql(
        owner,
        "ALTER TABLE events ADD pad TEXT DEFAULT repeat('x', 100);"
        f"INSERT INTO events SELECT n, '2020-01-01' FROM generate_series(3, {ROWS}) n; ANALYZE events",
    )
    stage.declare(owner, f"ALTER TABLE events SET (ttl_delete_batch_size = {LIMIT}, ttl_guard = 'off')")


def _triggered(stage: Stage, owner: str, body: str) -> None:
    stage.sql(
        owner,
        f"CREATE FUNCTION {owner}.act() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} RETURN NULL; END$$;"
        "CREATE TRIGGER act AFTER DELETE ON events FOR EACH STATEMENT EXECUTE FUNCTION act()",
    )


FORGED = json.dumps(
    {"block": 9999, "line": 0, "windows": 1, "density": 0, "rows": 1, "busy": 0, "rested": 0, "holds": [0]}
)
TRICKS = {
    "forged answers": f"PERFORM set_config('{stretches.CHANNEL}', '{FORGED}', false);",
    "a search path": "PERFORM set_config('search_path', 'mallory, pg_catalog', false);",
    "transactions that only read": "PERFORM set_config('default_transaction_read_only', 'on', false);",
    "isolation": "PERFORM set_config('default_transaction_isolation', 'serializable', false);",
    "time limits": "PERFORM set_config('statement_timeout', '1', false), set_config('lock_timeout', '1', false);",
}


@pytest.mark.parametrize("body", TRICKS.values(), ids=TRICKS)
def test_what_an_owners_trigger_leaves_behind_gains_nothing(each_stage: Stage, watched: Watched, body: str) -> None:
    """In the schema that the trigger would have searched first are operators and functions that tell who ran them."""
    _large(each_stage, "mallory")
    each_stage.sql(
        "mallory",
        "CREATE TABLE mallory.caught (who TEXT); GRANT INSERT ON mallory.caught TO PUBLIC;"
        "CREATE FUNCTION mallory.catch(BIGINT, BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$BEGIN"
        " INSERT INTO mallory.caught VALUES (current_user); RETURN 0; END$$;"
        "CREATE OPERATOR mallory.+ (LEFTARG = BIGINT, RIGHTARG = BIGINT, FUNCTION = mallory.catch);"
        "GRANT USAGE ON SCHEMA mallory TO PUBLIC",
    )
    _triggered(each_stage, "mallory", body)
    with Lapse(each_stage.url("keeper")) as worker:
        (job,) = worker.run("mallory.events").jobs
    assert watched.count and not watched.errors
    assert job.counts.deleted == ROWS - 1
    assert each_stage.sql("mallory", "SELECT id FROM events") == [(2,)]
    assert each_stage.sql("mallory", "SELECT * FROM caught") == []


ONCE_UNDER_WAY = "IF nextval('mallory.calls') > 12 THEN {} END IF;"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("EXECUTE format('ALTER FUNCTION %s COST 7', (SELECT oid::regprocedure FROM pg_proc"
         " WHERE proname = 'lapse_ttl_' || 'mallory.events'::regclass::oid));", "was changed while a job used it"),
        ("EXECUTE 'DECLARE evil CURSOR WITH HOLD FOR SELECT 1';", "opens a cursor WITH HOLD"),
    ],
    ids=["another function", "a cursor"],
)  # fmt: skip
def test_what_would_outlive_a_batch_ends_the_stretch(each_stage: Stage, watched: Watched, body: str, said: str) -> None:
    _large(each_stage, "mallory")
    each_stage.sql("mallory", "CREATE SEQUENCE mallory.calls")
    _triggered(each_stage, "mallory", ONCE_UNDER_WAY.format(body))
    with Lapse(each_stage.url("keeper")) as worker:
        (job,) = worker.run("mallory.events").jobs
    assert "have left something behind" in str(watched.errors[0])
    assert job.status is JobStatus.FAILED and said in str(job.reason)
    assert 0 < job.counts.deleted <= 12 * LIMIT
    assert each_stage.sql("mallory", "SELECT count(*) FROM events") == [(ROWS - job.counts.deleted,)]
