"""A server that dies in the middle of a batch, connections that died long ago."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseUnavailable, LapseError
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, NullListener
from tests.backends import BACKENDS
from tests.backends.postgres import Cluster, PostgresBackend
from tests.conformance.harness import Harness
from tests.postgres.conftest import VERSIONS


@pytest.fixture
def lonely() -> Iterator[Cluster]:
    """A server of its own, to be killed."""
    backend = BACKENDS[VERSIONS[0]]
    if backend.why_not() is not None:
        pytest.skip(backend.why_not() or "")
    assert issubclass(backend, PostgresBackend)
    binaries = backend.binaries()
    assert binaries is not None
    cluster = Cluster(binaries)
    yield cluster
    cluster.close()


def test_a_server_restart_in_the_middle_of_a_batch(lonely: Cluster) -> None:
    with Lapse(lonely.url()) as db:
        db.execute("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")
        db.execute("ALTER TABLE events SET (ttl_delete_batch_size = 200)")
        db.execute("INSERT INTO events SELECT n, now() - interval '2 days' FROM generate_series(1, 2000) n")
        db.execute("INSERT INTO events SELECT n, now() FROM generate_series(2001, 2100) n")
        db.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.001); RETURN OLD; END $$;"
            "CREATE TRIGGER slow BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION slow();"
        )
        db.execute("SET GLOBAL lapse_heartbeat_interval = '1 second'")
        first = threading.Event()

        class Watch(NullListener):
            def batch_done(self, event: BatchDone) -> None:
                first.set()

        failure: list[LapseError] = []

        def run() -> None:
            try:
                db.run("events", listener=Watch())
            except LapseError as error:
                failure.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert first.wait(20)
        lonely.stop(signal.SIGQUIT)
        thread.join()
        assert isinstance(failure[0], DatabaseUnavailable)
        lonely.start()
        # The commit is asynchronous: a batch may be undone, but then so is its count.
        left = db.execute("SELECT count(*) FROM events WHERE ts < now() - interval '1 day'").rows[0][0]
        active = db.jobs()
        assert len(active) == 1
        assert active[0].counts.deleted == 2000 - left
        assert left > 0
        assert db.execute("SELECT count(*) FROM events WHERE id > 2000").rows == ((100,),)
        (job,) = db.run("events").jobs
        assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 2000)
        assert db.execute("SELECT count(*), min(id) FROM events").rows == ((100, 2001),)


@pytest.mark.parametrize(("limit", "left"), [("100 milliseconds", [3]), ("5 seconds", [])])
def test_how_long_a_statement_may_take_is_a_setting(h: Harness, limit: str, left: list[int]) -> None:
    h.events()
    h.sql(f"SET GLOBAL lapse_statement_timeout = '{limit}'")
    h.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF OLD.id = 3 THEN PERFORM pg_sleep(0.6); END IF; RETURN OLD; END $$"
    )
    h.sql("CREATE TRIGGER slow BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION slow()")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 5)))
    job = h.run_one()
    assert (job.status, job.counts.held, h.ids()) == (JobStatus.FINISHED, len(left), left)


def test_rows_that_take_too_long_to_delete_are_held_and_the_rest_goes(h: Harness) -> None:
    h.events()
    h.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF OLD.id = 3 THEN PERFORM pg_sleep(30); END IF; RETURN OLD; END $$"
    )
    h.sql("CREATE TRIGGER slow BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION slow()")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 4)")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 9)))
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 7, 1)
    assert h.ids() == [3]
