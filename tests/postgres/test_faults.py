"""A server that dies in the middle of a batch, connections that died long ago."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseUnavailable, LapseError
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, Silent
from tests.backends import BACKENDS
from tests.backends.postgres import Cluster, PostgresBackend
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

        class Watch(Silent):
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
