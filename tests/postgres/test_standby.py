"""Replicas: one that cannot keep up slows Lapse down, and one that is delayed on purpose is left out by its name."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine as Database
from sqlalchemy import make_url

from lapse.app import Health, Lapse
from lapse.engines.base import Gauge
from lapse.engines.postgres import replicas
from lapse.engines.postgres.engine import PostgresEngine
from lapse.engines.postgres.replicas import Reader
from lapse.errors import UnsupportedUrl
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus
from lapse.model.settings import Settings
from lapse.runner.events import Cause, NullListener
from lapse.runner.worker import Worker
from tests.backends import CONFORMING
from tests.backends.postgres import Cluster, PostgresBackend, free_port
from tests.conformance.harness import Harness
from tests.conftest import Servers

DELAY_SECONDS = 3
NAME = "delayed"


class Standby(Cluster):
    """Follows a primary, and applies what it gets a while later."""

    def __init__(self, primary: Cluster, delay_seconds: int = DELAY_SECONDS) -> None:
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
            conf.write(f"recovery_min_apply_delay = '{delay_seconds}s'\n")
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


@pytest.fixture
def following(h: Harness, server: PostgresBackend) -> Iterator[Standby]:
    if not (server.cluster._binaries / "pg_basebackup").exists():
        pytest.skip("this server came without pg_basebackup")
    standby = Standby(server.cluster, delay_seconds=0)
    try:
        yield standby
    finally:
        standby.close()


def _catch_up(client: psycopg.Connection, standby: Standby, database: str) -> None:
    """Wait until everything that the primary has is there."""
    row = client.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    with psycopg.connect(standby.url(database), autocommit=True) as other:
        deadline = time.monotonic() + 30
        while other.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() != (True,):
            assert time.monotonic() < deadline, "the standby does not catch up"
            time.sleep(0.05)


def _blocks_read(h: Harness, *tables: str) -> dict[str, int]:
    """A session tells what it has read when it ends, or seconds later: so all of them have ended before it is asked."""
    h.close()
    asked = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = %s"
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(h.url, autocommit=True) as fresh:
        deadline = time.monotonic() + 30
        while fresh.execute(others).fetchone() != (0,):
            assert time.monotonic() < deadline, "a session does not end"
            time.sleep(0.02)
        before: list[int] = []
        now = [0]
        while now != before:
            # PostgreSQL 14 has a process of its own that counts, and hears of it a moment later.
            time.sleep(0.2)
            before, now = now, [int((fresh.execute(asked, (table,)).fetchone() or [0])[0]) for table in tables]
    return dict(zip(tables, now, strict=True))


def test_blocks_are_found_on_a_standby(h: Harness, following: Standby) -> None:
    """The primary reads little more than the blocks that it deletes from; what it deletes it has judged itself."""
    name = str(make_url(h.url).database)
    for table in ("plain", "found"):
        h.sql(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")
        h.sql(f"ALTER TABLE {table} SET (ttl_guard = 'off')")
    h.sql("ALTER TABLE found SET (ttl_select_as_of_system_time = '-1h')")
    with psycopg.connect(h.url, autocommit=True) as filling:
        for table in ("plain", "found"):
            filling.execute(f"INSERT INTO {table} SELECT n, '2037-01-01' FROM generate_series(1, 60000) n")
            filling.execute(f"INSERT INTO {table} SELECT n, '2020-01-01' FROM generate_series(60001, 60005) n")
            filling.execute(f"VACUUM ANALYZE {table}")
        _catch_up(filling, following, name)
    read = _blocks_read(h, "plain", "found")
    with Lapse(f"{h.url}?lapse_replicas=127.0.0.1:{following.port}", clock=h.clock) as db:
        assert db.run("plain").deleted == 5
        assert db.run("found").deleted == 5
    taken = {table: now - read[table] for table, now in _blocks_read(h, "plain", "found").items()}
    assert taken["plain"] > 300
    assert taken["found"] < taken["plain"] / 5
    with Lapse(f"{h.url}?lapse_replicas=127.0.0.1:{following.port}", clock=h.clock) as db:
        assert "blocks are found on a standby" in db.preview("found")[0].path.evidence
    assert h.ids("found") == h.ids("plain") == list(range(1, 60001))


def test_a_row_that_was_renewed_after_the_standby_saw_it_survives(
    h: Harness, client: psycopg.Connection, following: Standby
) -> None:
    name = str(make_url(h.url).database)
    h.events()
    h.sql("ALTER TABLE events SET (ttl_select_as_of_system_time = '-1h')")
    h.owner.set_setting("lapse_replica_lag_limit", "1 hour")
    h.insert(*((n, h.at(days=-2)) for n in range(1, 6)))
    _catch_up(client, following, name)
    with psycopg.connect(following.url(name), autocommit=True) as other:
        other.execute("SELECT pg_wal_replay_pause()")
        while other.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
            time.sleep(0.02)
        client.execute("UPDATE events SET ts = '2037-01-01' WHERE id = 1")
        client.execute("DELETE FROM events WHERE id = 2")
        with Lapse(f"{h.url}?lapse_replicas=127.0.0.1:{following.port}", clock=h.clock) as db:
            assert db.run("events").deleted == 3
            assert h.ids() == [1]
            # The standby shows them still, and nothing loops.
            assert db.run("events").deleted == 0
        other.execute("SELECT pg_wal_replay_resume()")


def test_a_server_that_cannot_know_is_not_asked(
    h: Harness, client: psycopg.Connection, following: Standby, server: PostgresBackend
) -> None:
    """The primary itself, one that is too far behind, and one that is gone."""
    name = str(make_url(h.url).database)
    h.events()
    _catch_up(client, following, name)
    with Lapse(following.url(name)) as looking:
        # A console may look at a standby: its gauges are readable there, too.
        assert "checkpoints" in [reading.name for reading in looking.gauges()]
    _, urls = replicas.read_url(
        make_url(f"{h.url}?lapse_replicas=127.0.0.1:{following.port}, 127.0.0.1:{server.cluster.port},127.0.0.1:1")
    )
    pools = replicas.open_pools(urls)
    standby, primary, gone = pools.values()
    try:
        with h.db.engine.connection() as connection:

            def is_asked(pool: Database, staleness: float = 60.0) -> bool:
                return Reader({"it": pool}, staleness).has_standby(connection)

            assert [is_asked(pool) for pool in (standby, primary, gone)] == [True, False, False]
            with psycopg.connect(following.url(name), autocommit=True) as other:
                other.execute("SELECT pg_wal_replay_pause()")
                while other.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
                    time.sleep(0.02)
                client.execute("INSERT INTO events (id) VALUES (100)")
                assert [is_asked(standby, 60.0), is_asked(standby, 0.0)] == [True, False]
                other.execute("SELECT pg_wal_replay_resume()")
            reader = Reader({"it": standby}, 60.0)
            assert reader.ask(connection, lambda session: session.exec_driver_sql("SELECT 1 / 0").all()) is None
            assert not reader.has_standby(connection)
    finally:
        for pool in pools.values():
            pool.dispose()
    for address in (":5432", "db:x"):
        with pytest.raises(UnsupportedUrl):
            replicas.read_url(make_url(f"postgresql://db/app?lapse_replicas={address}"))
    (notice,) = h.sql("ALTER TABLE events SET (ttl_select_as_of_system_time = '-5s')").notices
    assert "lapse_replicas=host:port" in notice


def test_a_worker_without_a_right_on_the_table_finds_rows_there_too(servers: Servers) -> None:
    """By the owner's function, in a read-only transaction, in a session that is discarded afterwards."""
    backend = servers.get(next(name for name in CONFORMING if name.endswith("-role")))
    assert isinstance(backend, PostgresBackend)
    if not (backend.cluster._binaries / "pg_basebackup").exists():
        pytest.skip("this server came without pg_basebackup")
    with Harness.fresh(backend) as h:
        h.events()
        h.sql("ALTER TABLE events SET (ttl_select_as_of_system_time = '-1h')")
        h.insert((1, h.at(days=-2)), (2, h.at()))
        assert h.db.doctor() is not None
        standby = Standby(backend.cluster, delay_seconds=0)
        try:
            name = str(make_url(h.url).database)
            with psycopg.connect(backend.cluster.url(name), autocommit=True) as client:
                # A standby that has replayed no transaction yet cannot say how far it is behind.
                client.execute("CREATE TABLE noise (n int)")
                _catch_up(client, standby, name)
            url = f"{backend.worker_url(h.url)}?lapse_replicas=127.0.0.1:{standby.port}"
            with Lapse(url, clock=h.clock) as worker:
                asked = _ask_standbys(worker)
                assert worker.run("events").deleted == 1
                assert asked and all(asked)
                h.insert((3, h.at(days=-2)))
                h.advance(hours=2)
                assert worker.run("events").deleted == 1
            assert h.ids() == [2]
        finally:
            standby.close()


def _ask_standbys(db: Lapse) -> list[bool]:
    """Whether each question was answered by one."""
    answered: list[bool] = []
    real = Reader.ask

    class Noting(Reader):
        def ask(self, primary: Any, question: Any) -> Any:
            found = real(self, primary, question)
            answered.append(found is not None)
            return found

    engine = db.engine
    assert isinstance(engine, PostgresEngine)
    engine._reader = lambda declared: Noting(engine._standbys, 3600.0)  # type: ignore[method-assign]
    return answered
