"""Through pgbouncer in transaction mode: another server connection for every transaction."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from lapse.app import Lapse
from tests.backends.postgres import PostgresBackend, free_port
from tests.conformance.harness import Harness

PGBOUNCER = shutil.which("pgbouncer") or ("/usr/sbin/pgbouncer" if Path("/usr/sbin/pgbouncer").exists() else None)


@pytest.fixture
def pooled(h: Harness, server: PostgresBackend) -> Iterator[str]:
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed")
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="lapse-bouncer-"))
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "bouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.cluster.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\n"
        f"auth_file = {folder}/users.txt\npool_mode = transaction\ndefault_pool_size = 4\nlogfile = {folder}/log\n"
        f"unix_socket_dir =\nserver_reset_query_always = 0\n"
    )
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    if account is not None:
        for path in (folder, *folder.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
    process = subprocess.Popen(
        [PGBOUNCER, "-q", str(folder / "bouncer.ini")],
        user=account.pw_uid if account else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = h.url.replace(f":{server.cluster.port}/", f":{port}/")
    try:
        for _ in range(100):
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Something that another client does again and again."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_replication_origin_is_left_with_nobody(h: Harness, pooled: str, server: PostgresBackend) -> None:
    """It is a session's, and the next client to get that session must not have it."""
    with Lapse(pooled, clock=h.clock) as db, psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        origin = h.url.rpartition("/")[2]
        db.execute(f"SELECT pg_replication_origin_create('{origin}')")
        db.execute("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")
        db.execute(f"ALTER TABLE events SET (ttl_replication_origin = '{origin}', ttl_delete_batch_size = 50)")
        db.execute("SET GLOBAL tidb_ttl_scan_worker_count = 4")
        db.execute(f"INSERT INTO events SELECT n, {h.at(days=-2)} FROM generate_series(1, 2000) n")
        db.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF OLD.id = 42 THEN RAISE EXCEPTION 'made to fail'; END IF; RETURN OLD; END $$;"
            "CREATE TRIGGER fail BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION fail();"
        )
        seen: set[tuple[bool]] = set()
        look = "SELECT pg_replication_origin_session_is_setup()"
        with meanwhile(lambda: seen.update(other.execute(look).fetchall())):
            (job,) = db.run().jobs
        assert (job.counts.deleted, job.counts.held) == (1999, 1)
        assert seen == {(False,)}
    # It belongs to the cluster, not to the database.
    h.sql(f"SELECT pg_replication_origin_drop('{origin}')")


def test_declare_run_and_look(h: Harness, pooled: str) -> None:
    with Lapse(pooled, clock=h.clock) as db, psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        db.execute(
            "CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) WITH (ttl_expire_after = '30 days',"
            " ttl_expiration_expression = 'ts + INTERVAL ''1 day''', ttl_hide_expired = 'view')"
        )
        db.execute(
            f"INSERT INTO events SELECT n, TIMESTAMP {h.at(days=-2)} + n * INTERVAL '1 minute'"
            " FROM generate_series(1, 5000) n"
        )

        def disturb() -> None:
            """Leave other settings behind on the servers that Lapse is given next."""
            other.execute("SET enable_tidscan = off; SET statement_timeout = '1h'; SET DateStyle = 'German'")
            other.execute("SELECT pg_sleep(0.002)")

        with meanwhile(disturb):
            (job,) = db.run().jobs
        assert job.counts.deleted == 1440
        assert db.execute("SELECT min(id) FROM events").rows == ((1441,),)
        assert db.preview("events")[0].survey.expired == 0
        assert db.doctor()
        h.advance(minutes=10)
        assert db.run("events").deleted == 10
        assert db.execute("SHOW TIME ZONE").rows == (("UTC",),)
