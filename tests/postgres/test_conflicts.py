"""Real deadlocks and serialization failures, between Lapse and one other session: tried again, nothing lost."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from lapse.app import Lapse
from lapse.engines.postgres import blocks, delete
from lapse.model.job import JobStatus
from lapse.runner import atonce
from lapse.runner.events import Cause, NullListener
from tests.conformance.harness import Harness

ROWS = 200


@pytest.fixture(autouse=True)
def _ordinarily(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job is done with its first batch, which would give up without saying so."""
    for most in ("SMALL_ROWS", "TABLE_ROWS"):
        monkeypatch.setattr(atonce, most, 0)


class Reasons(NullListener):
    """Why tasks had to try again."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def waiting(self, job: object, seconds: float, reason: str, cause: Cause) -> None:
        if cause is Cause.RETRY:
            self.seen.append(reason)


class Run(threading.Thread):
    """A run of the table `events`, beside whatever the test does."""

    def __init__(self, db: Lapse) -> None:
        super().__init__()
        self.reasons = Reasons()
        self._db = db
        self.start()

    def run(self) -> None:
        self.jobs = self._db.run("events", listener=self.reasons).jobs


def wait_until(client: psycopg.Connection, condition: str) -> None:
    deadline = time.monotonic() + 20
    sql = f"SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'lapse' AND {condition})"
    while client.execute(sql).fetchone() != (True,):
        assert time.monotonic() < deadline, condition


def fill(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 1000)")
    h.sql(f"INSERT INTO events SELECT n, {h.at(days=-2)} FROM generate_series(1, {ROWS}) n")


def test_a_deadlock_with_a_client(each: Harness) -> None:
    """Lapse has the first row and wants the last, the client the other way round; the server picks Lapse."""
    fill(each)
    each.sql(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF OLD.id = {ROWS // 2} THEN PERFORM pg_sleep(0.5); END IF; RETURN OLD; END $$;"
        "CREATE TRIGGER pause BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION pause()"
    )
    each.sql(f"ALTER DATABASE {each.url.rpartition('/')[2]} SET deadlock_timeout = '1ms'")
    renew = f"UPDATE events SET ts = TIMESTAMPTZ {each.at()[:-1]}+00' WHERE id = %s"
    with (
        each.open() as fresh,
        psycopg.connect(each.url) as client,
        psycopg.connect(each.url, autocommit=True) as watch,
    ):
        client.execute("SET deadlock_timeout = '1min'")
        client.execute(renew, (ROWS,))
        run = Run(fresh)
        wait_until(watch, "wait_event = 'PgSleep'")
        client.execute(renew, (1,))
        client.commit()
        run.join()
    assert [reason for reason in run.reasons.seen if "deadlock detected" in reason]
    (job,) = run.jobs
    assert (job.status, job.counts.deleted, job.counts.errors) == (JobStatus.FINISHED, ROWS - 2, 0)
    assert each.ids() == [1, ROWS]


def test_a_row_that_moves_to_another_partition_under_our_hands(each: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL reports it as a serialization failure, at every isolation level."""
    for module in (delete, blocks):
        monkeypatch.setattr(module, "CHANCE_MS", 10_000)
    each.sql(
        "CREATE TABLE events (id BIGINT, ts TIMESTAMPTZ, kind TEXT) PARTITION BY LIST (kind) TTL = ts + INTERVAL 1 DAY"
    )
    each.sql("CREATE TABLE a PARTITION OF events FOR VALUES IN ('a')")
    each.sql("CREATE TABLE b PARTITION OF events FOR VALUES IN ('b')")
    each.sql(f"INSERT INTO events SELECT n, {each.at(days=-2)}, 'a' FROM generate_series(1, {ROWS}) n")
    each.sql(f"INSERT INTO events VALUES (0, {each.at()}, 'a')")
    with psycopg.connect(each.url) as client, psycopg.connect(each.url, autocommit=True) as watch:
        client.execute("UPDATE events SET kind = 'b' WHERE id IN (0, 7)")
        run = Run(each.db)
        wait_until(watch, "wait_event_type = 'Lock'")
        client.commit()
        run.join()
    assert [reason for reason in run.reasons.seen if "moved to another partition" in reason]
    assert all(job.status is JobStatus.FINISHED for job in run.jobs)
    each.run()
    assert each.ids() == [0]
    assert sum(job.counts.deleted for job in each.db.history()) == ROWS


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_the_isolation_that_a_role_asks_for_does_not_matter(h: Harness, level: str) -> None:
    """Under these levels a DELETE fails when it meets a row that was renewed meanwhile; Lapse says which it wants."""
    fill(h)
    h.sql("DO $$ BEGIN CREATE ROLE strict LOGIN SUPERUSER; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    h.sql(f"ALTER ROLE strict SET default_transaction_isolation = '{level}'")
    renewed = f"TIMESTAMPTZ {h.at()[:-1]}+00'"
    with Lapse(h.url.replace("postgres@", "strict@"), clock=h.clock) as db, psycopg.connect(h.url) as client:
        assert db.execute("SHOW transaction_isolation").rows == ((level,),)
        client.execute(f"UPDATE events SET ts = {renewed} WHERE id IN (1, 100, {ROWS})")
        run = Run(db)
        time.sleep(0.02)
        client.commit()
        run.join()
        assert db.run("events").complete
    assert not [reason for reason in run.reasons.seen if "serialize" in reason]
    assert h.ids() == [1, 100, ROWS]
