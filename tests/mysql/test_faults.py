"""Locks, deadlocks, dead workers, dead servers: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep

import pytest
from sqlalchemy import Connection, event, make_url
from sqlalchemy import Engine as Database
from sqlalchemy.engine import ExceptionContext

from lapse.app import Lapse
from lapse.clock import ManualClock
from lapse.engines.base import Batch, BoundPolicy, Deleter
from lapse.engines.mysql.delete import MysqlDeleter
from lapse.engines.mysql.engine import MysqlEngine
from lapse.engines.mysql.session import Flavour
from lapse.errors import DatabaseUnavailable, Fenced, Interrupted, LapseError, Retryable
from lapse.model.interval import DAY, Interval
from lapse.model.job import JobStatus
from lapse.model.policy import Policy
from lapse.model.table import TableName
from tests.backends.mariadb import MariadbBackend, MariadbServer
from tests.conformance.harness import START, Harness
from tests.mysql.numbers import numbers

MYSQL = Flavour(product="MySQL", version=(8, 0, 36))


@pytest.fixture(params=["MariaDB", "MySQL"])
def engine(request: pytest.FixtureRequest, h: Harness) -> Iterator[MysqlEngine]:
    """Speaking MariaDB's SQL, and speaking MySQL's to the same server."""
    flavour = MYSQL if request.param == "MySQL" else None
    opened = MysqlEngine(make_url(h.url), h.clock, flavour=flavour)
    yield opened
    opened.close()


def _deleter(engine: MysqlEngine, table: str = "events") -> Deleter:
    policy = Policy(column="ts", interval=Interval(micros=DAY))
    with engine.connection() as connection:
        declared = BoundPolicy(table=engine.describe(connection, TableName(table)), policy=policy)
        cutoff = engine.now(connection)
        target = engine.target(connection, declared, cutoff)
        (span,) = engine.split(connection, target, 1)
    return engine.deleter(target, span, None)


def _ignore(connection: Connection, batch: Batch) -> None:
    pass


def _expired(h: Harness, rows: int = 10) -> None:
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMP(3) NULL)")
    h.sql(f"INSERT INTO events SELECT seq, {h.at(days=-2)} FROM {numbers(rows)}")


def test_locked_rows_are_skipped_at_once_and_found_later(
    h: Harness, engine: MysqlEngine, server: MariadbServer
) -> None:
    _expired(h)
    with server.connect(make_url(h.url).database) as holder, holder.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT * FROM events WHERE id IN (3, 4) FOR UPDATE")
        deleter = _deleter(engine)
        took = []
        for counts in ((10, 8, 2, 0), (2, 0, 2, 0), (2, 0, 2, 0)):
            deleter.restart()
            started = monotonic()
            batch = deleter.step(100, _ignore)
            took.append(monotonic() - started)
            assert (batch.selected, batch.deleted, batch.skipped, batch.held) == counts
        # A lock is waited for for a second each time; a machine that has other things to do is slow now and then.
        assert min(took) < 0.95, "it waited for the lock"
        cursor.execute("ROLLBACK")
    deleter.restart()
    assert deleter.step(100, _ignore).deleted == 2


def test_a_row_renewed_meanwhile_survives(h: Harness, engine: MysqlEngine, server: MariadbServer) -> None:
    _expired(h)
    deleter = _deleter(engine)
    deleter._rows_per_expired = 1000.0  # type: ignore[attr-defined] # so that it looks first
    renewed: list[str] = []

    def renew(connection: object, cursor: object, statement: str, *_: object) -> None:
        """When the rows were found, and before they are locked or deleted."""
        if not renewed and ("FOR UPDATE" in statement or "DELETE FROM" in statement):
            renewed.append(statement)
            server.execute(f"UPDATE events SET ts = {h.at()} WHERE id = 5", database=make_url(h.url).database)

    event.listen(Database, "before_cursor_execute", renew)
    try:
        batch = deleter.step(100, _ignore)
    finally:
        event.remove(Database, "before_cursor_execute", renew)
    assert renewed and (batch.deleted, batch.held, batch.skipped) == (9, 0, 0)
    assert h.ids() == [5]


def test_keys_stay_on_the_server_unless_a_session_holds_one(h: Harness, server: MariadbServer) -> None:
    if h.db.engine.features.refuses_to_wait:
        pytest.skip("what refuses to wait needs no keys")
    h.sql(f"CREATE TABLE t (id INT PRIMARY KEY, ts {h.backend.instant})")
    h.sql("INSERT INTO t VALUES " + ", ".join(f"({number}, {h.at(days=-9)})" for number in range(1, 301)))
    h.sql("ALTER TABLE t TTL = ts + INTERVAL 1 DAY")
    longest: list[int] = []
    waits: list[str] = []

    def measure(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "lapse ttl" in statement:
            longest.append(len(statement))

    def note(context: ExceptionContext) -> None:
        if "Lock wait timeout" in str(context.original_exception):
            waits.append(str(context.statement))

    event.listen(Database, "before_cursor_execute", measure)
    event.listen(Database, "handle_error", note)
    try:
        with server.connect(make_url(h.url).database) as other, other.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute("SELECT id FROM t WHERE id = 250 FOR UPDATE")
            (job,) = h.run("t").jobs
            assert (job.counts.deleted, job.counts.skipped) == (299, 1)
            # By the key: a DELETE that read the whole table would have waited for the row of the other session.
            assert waits == []
            cursor.execute("ROLLBACK")
        with_a_list = max(longest)
        longest.clear()
        h.sql(f"INSERT INTO t VALUES (1250, {h.at(days=-9)})")
        assert h.run("t").deleted == 2
        assert longest and max(longest) < with_a_list
    finally:
        event.remove(Database, "before_cursor_execute", measure)
        event.remove(Database, "handle_error", note)


def test_a_batch_asks_the_server_few_questions(h: Harness) -> None:
    if h.db.engine.features.refuses_to_wait:
        pytest.skip("what refuses to wait locks no rows before it deletes them")
    h.sql(f"CREATE TABLE t (id INT PRIMARY KEY, ts {h.backend.instant})")
    h.sql(f"INSERT INTO t SELECT seq, IF(seq > 900, {h.at()}, {h.at(days=-9)}) FROM {numbers(1000)}")
    h.sql("ALTER TABLE t SET (ttl_delete_batch_size = 100, ttl_adaptive = 'off'), TTL = ts + INTERVAL 1 DAY")
    batches: list[list[str]] = [[]]

    def listen(connection: object, cursor: object, statement: str, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            batches.append([]) if "INTO @lapse_keys" in statement else None
            batches[-1].append(statement)

    event.listen(Database, "before_cursor_execute", listen)
    try:
        assert h.run("t").deleted == 900
    finally:
        event.remove(Database, "before_cursor_execute", listen)
    # After the first one, which has to find a row that stays, and before the last, which ends the task.
    assert {len(batch) for batch in batches[4:-3]} == {9}, "\n".join(batches[4])


def test_a_checkpoint_that_fails_takes_the_rows_back(h: Harness, engine: MysqlEngine) -> None:
    _expired(h)

    def fenced(connection: Connection, batch: Batch) -> None:
        raise Fenced("another worker")

    with pytest.raises(Fenced):
        _deleter(engine).step(100, fenced)
    assert len(h.ids()) == 10


def test_a_deadlock_is_retryable_and_loses_nothing(h: Harness, engine: MysqlEngine, server: MariadbServer) -> None:
    _expired(h)
    h.sql("CREATE TABLE side (id INT PRIMARY KEY, n INT)")
    h.sql("INSERT INTO side VALUES (1, 0)")
    deleter, deleted, errors = _deleter(engine), 0, 0
    arrived = threading.Event()

    def checkpoint(connection: Connection, batch: Batch) -> None:
        arrived.set()
        connection.exec_driver_sql("UPDATE side SET n = n + 1 WHERE id = 1")

    with server.connect(make_url(h.url).database) as holder, holder.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("UPDATE side SET n = n + 1")
        cursor.execute("SET innodb_lock_wait_timeout = 20")
        # The server ends the transaction that has written less: Lapse's.
        cursor.execute(f"INSERT INTO side SELECT seq, 0 FROM {numbers(2000, 2)}")
        other = threading.Thread(target=lambda: (arrived.wait(5), cursor.execute("SELECT * FROM events FOR UPDATE")))
        other.start()
        while not deleted and errors < 20:
            try:
                deleted = deleter.step(100, checkpoint).deleted
            except Retryable:
                errors += 1
                if not other.is_alive():
                    cursor.execute("ROLLBACK")
        other.join()
        cursor.execute("ROLLBACK")
    assert (deleted, errors > 0) == (10, True)
    assert h.ids() == []


def test_a_lock_wait_on_a_child_row_is_retryable(h: Harness, engine: MysqlEngine, server: MariadbServer) -> None:
    _expired(h, 3)
    h.sql("CREATE TABLE child (id INT PRIMARY KEY, e BIGINT, FOREIGN KEY (e) REFERENCES events (id) ON DELETE CASCADE)")
    h.sql("INSERT INTO child VALUES (1, 2)")
    with server.connect(make_url(h.url).database) as holder, holder.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT * FROM child FOR UPDATE")
        with pytest.raises(Retryable):
            _deleter(engine).step(100, _ignore)
        cursor.execute("ROLLBACK")
    assert _deleter(engine).step(100, _ignore).deleted == 3
    assert h.rows("SELECT count(*) FROM child") == [(0,)]


def test_interrupt_ends_a_statement_that_runs(h: Harness, engine: MysqlEngine) -> None:
    _expired(h)
    deleter = _deleter(engine)

    def sleeping(connection: Connection, batch: Batch) -> None:
        threading.Timer(0.2, deleter.interrupt).start()
        many = f"(SELECT seq FROM {numbers(3000)})"
        connection.exec_driver_sql(f"SELECT count(sha2(a.seq + b.seq, 256)) FROM {many} AS a, {many} AS b, {many} AS c")

    started = monotonic()
    with pytest.raises(Interrupted):
        deleter.step(100, sleeping)
    assert monotonic() - started < 5
    assert len(h.ids()) == 10


def test_windows_bound_what_one_look_reads(h: Harness, engine: MysqlEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.engines.mysql.delete.KeyDeleter._window_for", lambda self, limit: 500)
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMP(3) NULL)")
    h.sql(f"INSERT INTO events SELECT seq, if(seq = 4000, {h.at(days=-2)}, {h.at()}) FROM {numbers(4000)}")
    deleter = _deleter(engine)
    first = deleter.step(100, _ignore)
    assert (first.selected, first.examined, first.done) == (0, 500, False)
    total, done = 0, False
    while not done:
        batch = deleter.step(100, _ignore)
        total, done = total + batch.deleted, batch.done
    assert total == 1


_WORKER = """
import sys
from datetime import datetime
from lapse.app import Lapse
from lapse.clock import ManualClock
Lapse(sys.argv[1], clock=ManualClock(datetime.fromisoformat(sys.argv[2]))).run("events")
"""


def test_a_killed_worker_is_taken_over_and_no_row_is_counted_twice(h: Harness) -> None:
    h.events()
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, if(seq % 2, {h.at(days=-2)}, {h.at()}) FROM {numbers(4000)}")
    h.sql("ALTER TABLE events SET (ttl_delete_rate_limit = 1000, ttl_delete_batch_size = 20)")
    worker = subprocess.Popen([sys.executable, "-c", _WORKER, h.url, h.now.isoformat()])
    try:
        until = monotonic() + 20
        while len(h.ids()) == 4000 and monotonic() < until:
            sleep(0.05)
    finally:
        worker.kill()
        worker.wait()
    left = len(h.ids())
    assert 2000 < left < 4000
    h.sql("ALTER TABLE events SET (ttl_delete_rate_limit = 0, ttl_delete_batch_size = 1000)")
    h.advance(hours=1)
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 2000)
    assert len(h.ids()) == 2000


def test_a_server_that_dies_in_the_middle_loses_nothing(backend: MariadbBackend) -> None:
    server, clock = backend.start("--innodb-flush-log-at-trx-commit=2"), ManualClock(START)
    try:
        server.execute("CREATE DATABASE x")
        with Lapse(f"{server.url}/x", clock=clock) as db:
            db.execute("CREATE TABLE events (id INT PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
            db.execute(f"INSERT INTO events SELECT seq, if(seq % 2, '2020-01-01', '2030-01-01') FROM {numbers(4000)}")
            db.execute("ALTER TABLE events SET (ttl_delete_rate_limit = 2000, ttl_delete_batch_size = 10)")
            killer = threading.Timer(0.7, server.kill)
            killer.start()
            with pytest.raises(LapseError) as failure:
                db.run("events")
            killer.join()
            assert isinstance(failure.value, DatabaseUnavailable)
            server.start()
            db.execute("ALTER TABLE events SET (ttl_delete_rate_limit = 0, ttl_delete_batch_size = 1000)")
            clock.advance(timedelta(hours=1))
            (job,) = db.run("events").jobs
            assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 2000)
            assert db.execute("SELECT count(*) FROM events").rows == ((2000,),)
    finally:
        server.close()


def test_many_workers_share_the_tasks(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MysqlEngine, "features", replace(h.features, rows_per_task=500))
    h.events()
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, {h.at(days=-2)} FROM {numbers(8000)}")
    h.sql("ANALYZE TABLE events")
    others = [h.open() for _ in range(3)]
    threads = [threading.Thread(target=lambda db=db: db.run("events")) for db in others]
    for thread in threads:
        thread.start()
    h.run()
    for thread in threads:
        thread.join()
    for db in others:
        db.close()
    assert h.ids() == []
    assert sum(job.counts.deleted for job in h.db.history("events")) == 8000


def test_two_first_declarations_at_once(h: Harness) -> None:
    for number in (1, 2, 3):
        h.sql(f"CREATE TABLE t{number} (id INT PRIMARY KEY, ts DATETIME)")
    opened = [h.open() for _ in range(3)]
    failures: list[BaseException] = []

    def declare(db: Lapse, table: str) -> None:
        try:
            db.execute(f"ALTER TABLE {table} TTL = ts + INTERVAL 1 DAY")
        except LapseError as error:
            failures.append(error)

    threads = [threading.Thread(target=declare, args=(db, f"t{n}")) for n, db in enumerate(opened, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for db in opened:
        db.close()
    assert failures == []
    assert len(h.db.policies()) == 3


def test_the_range_of_an_empty_table_is_no_task(h: Harness, engine: MysqlEngine) -> None:
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMP(3) NULL)")
    policy = Policy(column="ts", interval=Interval(micros=DAY))
    with engine.connection() as connection:
        declared = BoundPolicy(table=engine.describe(connection, TableName("events")), policy=policy)
        assert engine.split(connection, engine.target(connection, declared, h.now), 4) == []


@pytest.mark.parametrize("share", [1, 50])
def test_a_batch_that_is_killed_at_any_moment_says_nothing_wrong(h: Harness, share: int) -> None:
    """One row in `share` has expired: deleted without looking, or found first and deleted by key."""
    rows = 5000 * share
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMP(3) NULL)")
    h.sql(f"INSERT INTO events SELECT seq, IF(seq % {share} = 0, {h.at(days=-2)}, {h.at()}) FROM {numbers(rows)}")
    engine = MysqlEngine(make_url(h.url), h.clock)
    killed = 0
    for attempt in range(60):
        deleter = _deleter(engine)
        for _ in range(2 if share > 1 else 0):
            deleter.step(10, _ignore)
        timer = threading.Timer(attempt % 30 / 1000, deleter.interrupt)
        timer.start()
        try:
            batch = deleter.step(4000, _ignore)
        except Interrupted:
            killed += 1
        else:
            until = rows if batch.done else json.loads(batch.cursor or "[0]")[0]
            assert h.rows(f"SELECT count(*) FROM events WHERE id <= {until} AND id % {share} = 0") == [(0,)]
            h.sql(f"REPLACE INTO events SELECT seq * {share}, {h.at(days=-2)} FROM {numbers(5000)}")
        finally:
            timer.join()
    engine.close()
    assert killed


@pytest.mark.parametrize("share", [1, 50])
def test_what_a_killed_statement_says_is_not_believed(h: Harness, monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    """As when the server kills it while it is being planned: it ends without an error, and nothing was done."""
    rows = 1000 * share
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMP(3) NULL)")
    h.sql(f"INSERT INTO events SELECT seq, IF(seq % {share} = 0, {h.at(days=-2)}, {h.at()}) FROM {numbers(rows)}")
    engine = MysqlEngine(make_url(h.url), h.clock)
    deleter = _deleter(engine)
    assert isinstance(deleter, MysqlDeleter)
    set_running = deleter._set_running

    def and_interrupt(thread: int | None) -> None:
        set_running(thread)
        deleter.interrupt()

    monkeypatch.setattr(deleter, "_kill", lambda thread: None)
    monkeypatch.setattr(deleter, "_set_running", and_interrupt)
    with pytest.raises(Interrupted):
        deleter.step(500, _ignore)
    assert deleter._cursor is None
    assert h.rows(f"SELECT count(*) FROM events WHERE id % {share} = 0") == [(1000,)]
    engine.close()
