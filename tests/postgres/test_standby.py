"""Replicas: one that cannot keep up slows Lapse down, and one that is delayed on purpose is left out by its name."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lapse.app import Health, Lapse
from lapse.engines.base import Gauge
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus
from lapse.model.settings import Settings
from lapse.runner.events import Cause, NullListener
from lapse.runner.worker import Worker
from tests.backends.postgres import Cluster, PostgresBackend, free_port
from tests.conformance.harness import Harness

DELAY_SECONDS = 3
NAME = "delayed"


class Standby(Cluster):
    """Follows a primary, and applies what it gets a while later."""

    def __init__(self, primary: Cluster) -> None:
        self._account, self._binaries, self._settings = primary._account, primary._binaries, primary._settings
        self.folder = Path(tempfile.mkdtemp(prefix="lapse-pg-standby-"))
        os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self.port = free_port()
        self._server = None
        self.run("pg_basebackup", "-D", str(self.data), "-d", primary.url(), "-R", "-c", "fast", "--no-sync")
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.write(
                f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=postgres application_name={NAME}'\n"
            )
            conf.write(f"recovery_min_apply_delay = '{DELAY_SECONDS}s'\n")
        self.start()

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def delayed(h: Harness, server: PostgresBackend) -> Iterator[Standby]:
    if not (server.cluster._binaries / "pg_basebackup").exists():
        pytest.skip("this server came without pg_basebackup")
    standby = Standby(server.cluster)
    try:
        yield standby
    finally:
        standby.close()


def _lag(db: Lapse, settings: Settings) -> Gauge:
    with db.engine.connection() as connection:
        return next(gauge for gauge in db.engine.gauges(connection, settings) if gauge.name == "replica lag")


def _wait_for_lag(h: Harness, client: psycopg.Connection) -> None:
    """The primary learns of the lag when the standby has applied something."""
    client.execute("CREATE TABLE noise (n int)")
    deadline = time.monotonic() + 60
    while (_lag(h.db, Settings.from_texts({})).value or 0.0) < DELAY_SECONDS / 2:
        assert time.monotonic() < deadline, "the standby never lagged"
        client.execute("INSERT INTO noise VALUES (1)")
        time.sleep(0.1)


def test_a_standby_that_is_delayed_on_purpose(h: Harness, client: psycopg.Connection, delayed: Standby) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    _wait_for_lag(h, client)
    h.sql("SET GLOBAL lapse_replica_lag_limit = '1 second'")
    h.sql("SET GLOBAL lapse_gate_patience = '1 millisecond'")
    worker: list[Worker] = []

    class Stop(NullListener):
        def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
            client.execute("INSERT INTO noise VALUES (1)")
            if h.db.status()[0].state == "blocked":
                worker[0].stop()

    worker.append(Worker(h.db.catalog, Stop()))
    worker[0].run()
    assert h.ids() == [1, 2]
    (health,) = h.db.health()
    assert (health.health, health.blocked) == (Health.BLOCKED, BlockCode.GATE)
    for words in ("replica lag", f"of {NAME}", "lapse_replica_lag_limit", "lapse_replicas"):
        assert words in (health.why or "")
    h.sql(f"SET GLOBAL lapse_replicas = '-{NAME}'")
    (job,) = h.db.run("events").jobs
    assert (job.status, h.ids()) == (JobStatus.FINISHED, [2])
    assert [each.health for each in h.db.health()] == [Health.ON_TIME]


def test_which_replicas_count() -> None:
    def counted(text: str) -> list[str]:
        settings = Settings.from_texts({"lapse_replicas": text})
        return [name for name in ("a", "b", "delayed") if settings.counts_replica(name)]

    assert counted("") == ["a", "b", "delayed"]
    assert counted("a, b") == ["a", "b"]
    assert counted("-delayed") == ["a", "b"]
