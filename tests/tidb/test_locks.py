"""Rows are deleted without being locked first only where no other session can hold one, and what comes then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, Timer
from time import monotonic, sleep
from typing import Any

import pymysql
import pytest

from lapse.app import Lapse
from lapse.engines.mysql import tidb_locks
from lapse.engines.mysql.native import NativeMysqlEngine
from lapse.errors import DatabaseUnavailable
from lapse.model.job import Job, JobStatus
from lapse.model.table import TableName
from tests.backends.tidb import TidbServer
from tests.conformance.test_statements import watched

Client = Callable[..., list[tuple[object, ...]]]
NAME = "ev`e'nts; -- %s"
EVENTS = "CREATE TABLE `events` (id BIGINT PRIMARY KEY, c TIMESTAMP NULL, n INT)"
OWN = "ALTER TABLE events SET (ttl_expiration_expression = 'c + INTERVAL ''1 day''', ttl_job_cron = '0 3 * * *')"
ROWS = 50
WAIT_SECONDS = 1.0
"""The shortest that TiDB knows."""


@pytest.fixture
def session(server: TidbServer, database: str) -> Iterator[Callable[..., pymysql.cursors.Cursor]]:
    opened: list[Any] = []

    def connect(user: str = "root") -> pymysql.cursors.Cursor:
        where = {"host": "127.0.0.1", "port": server.port, "user": user, "database": database}
        opened.append(pymysql.connect(**where, autocommit=True, ssl_disabled=True))
        return opened[-1].cursor()

    yield connect
    for connection in opened:
        with suppress(pymysql.err.Error):
            connection.close()


Session = Callable[..., pymysql.cursors.Cursor]


def _fill(client: Client, rows: int = ROWS) -> None:
    client(f"INSERT INTO events VALUES {', '.join(f'({n}, now() - INTERVAL 2 DAY, 0)' for n in range(1, rows + 1))}")


def _run(db: Lapse) -> Job:
    (job,) = db.run("events").jobs
    return job


def _quiet(db: Lapse, name: str = "events") -> bool | None:
    engine = db.engine
    assert isinstance(engine, NativeMysqlEngine)
    with engine.connection() as connection:
        ask = tidb_locks.quiet(connection, engine.describe(connection, TableName(name)), engine._threads)
        return None if ask is None else ask(connection)


MAY_HOLD_ROWS = {
    "a transaction that has only begun": ("BEGIN",),
    "one that has read": ("BEGIN", "SELECT * FROM events"),
    "one that has locked a row": ("BEGIN", "SELECT * FROM events WHERE id = 1 FOR UPDATE"),
    "a pessimistic one": ("BEGIN PESSIMISTIC", "UPDATE events SET n = 1 WHERE id = 1"),
    "an optimistic one": ("BEGIN OPTIMISTIC", "UPDATE events SET n = 1 WHERE id = 1"),
    "without autocommit": ("SET autocommit = 0", "UPDATE events SET n = 1 WHERE id = 1"),
    "through a view": ("BEGIN", "SELECT * FROM seen WHERE id = 1 FOR UPDATE"),
    "prepared": ("PREPARE p FROM 'UPDATE events SET n = 1 WHERE id = 1'", "BEGIN", "EXECUTE p"),
    "after a savepoint": ("BEGIN", "SAVEPOINT s", "UPDATE events SET n = 1 WHERE id = 1", "ROLLBACK TO SAVEPOINT s"),
    "by a cascade": ("BEGIN", "DELETE FROM parent WHERE id = 1"),
}


@pytest.mark.parametrize("what", MAY_HOLD_ROWS)
def test_a_transaction_that_may_hold_a_row_is_seen(db: Lapse, client: Client, session: Session, what: str) -> None:
    client("CREATE TABLE parent (id BIGINT PRIMARY KEY)", "INSERT INTO parent VALUES (1)", EVENTS)
    client("ALTER TABLE events ADD COLUMN p BIGINT", "CREATE VIEW seen AS SELECT * FROM events")
    client("ALTER TABLE events ADD FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE")
    client("INSERT INTO events VALUES (1, now(), 0, 1)")
    assert _quiet(db) is True
    other = session()
    for statement in MAY_HOLD_ROWS[what]:
        other.execute(statement)
    assert _quiet(db) is False
    other.execute("ROLLBACK")
    assert _quiet(db) is True


def test_a_statement_at_work_is_seen(db: Lapse, client: Client, session: Session) -> None:
    client(EVENTS, "INSERT INTO events VALUES (1, now(), 0)")
    at_work = Thread(target=session().execute, args=("UPDATE events SET n = sleep(1) WHERE id = 1",))
    at_work.start()
    sleep(0.4)
    assert _quiet(db) is False
    at_work.join()
    assert _quiet(db) is True


def test_a_row_that_a_new_reference_locks(db: Lapse, client: Client, session: Session) -> None:
    """TiDB names the other table alone."""
    client(EVENTS, "INSERT INTO events VALUES (1, now(), 0)")
    client("CREATE TABLE child (e BIGINT, FOREIGN KEY (e) REFERENCES events (id))", "CREATE TABLE apart (id INT)")
    other = session()
    other.execute("BEGIN")
    other.execute("INSERT INTO child VALUES (1)")
    assert _quiet(db) is False


def test_transactions_on_other_tables_do_not_matter(db: Lapse, client: Client, session: Session) -> None:
    quoted = "`" + NAME.replace("`", "``") + "`"
    client(EVENTS.replace("`events`", quoted), "CREATE TABLE other (id BIGINT PRIMARY KEY)")
    there = session()
    there.execute("BEGIN")
    there.execute("INSERT INTO other VALUES (1)")
    assert _quiet(db, NAME) is True
    # Nor do those of this process, whose tasks have other rows.
    with db.engine.connection() as connection, db.engine.atomic(connection):
        connection.exec_driver_sql(f"DELETE FROM {quoted} WHERE id = 1")
        assert _quiet(db, NAME) is True
    here = session()
    here.execute("BEGIN")
    here.execute(f"DELETE FROM {quoted} WHERE id = 1")
    assert _quiet(db, NAME) is False


def test_without_metadata_locks_no_transaction_says_what_it_has_touched(
    db: Lapse, client: Client, session: Session
) -> None:
    client(EVENTS, "INSERT INTO events VALUES (1, now(), 0)")
    client("SET GLOBAL tidb_enable_metadata_lock = OFF")
    try:
        other = session()
        other.execute("BEGIN")
        other.execute("UPDATE events SET n = 1 WHERE id = 1")
        assert _quiet(db) is False
    finally:
        client("SET GLOBAL tidb_enable_metadata_lock = ON")


@pytest.fixture
def worker(server: TidbServer, database: str, client: Client) -> Iterator[str]:
    name = f"w_{database[-8:]}"
    client(f"CREATE USER {name}", f"GRANT ALL ON {database}.* TO {name}")
    yield name
    client(f"DROP USER {name}")


def test_an_account_that_sees_no_others_locks_rows_first(
    server: TidbServer, database: str, client: Client, session: Session, worker: str
) -> None:
    client(EVENTS)
    _fill(client)
    with Lapse(server.url(database, worker)) as db:
        assert _quiet(db) is None
        db.execute(OWN)
        other = session()
        other.execute("BEGIN")
        other.execute("UPDATE events SET n = 1 WHERE id = 7")
        with watched(db) as watch:
            began = monotonic()
            job = _run(db)
        assert (job.status, job.counts.deleted, job.counts.skipped) == (JobStatus.INCOMPLETE, ROWS - 1, 1)
        assert monotonic() - began < 10 * WAIT_SECONDS and any("NOWAIT" in each for each in watch.statements)
        client(f"GRANT PROCESS ON *.* TO {worker}")
        assert _quiet(db) is False
        other.execute("ROLLBACK")
        assert _quiet(db) is True


def test_rows_are_not_locked_first_where_nobody_else_is(db: Lapse, client: Client) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    with watched(db) as watch:
        assert _run(db).counts.deleted == ROWS
    assert not any("NOWAIT" in each for each in watch.statements)


@contextmanager
def _meanwhile(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[], object]) -> Iterator[None]:
    """Does something once, right after Lapse was told that no session can hold a row."""
    told, ask = Event(), tidb_locks.quiet

    def quiet(*given: Any) -> tidb_locks.Quiet | None:
        found = ask(*given)
        assert found is not None

        def meddled(connection: Any) -> bool:
            is_quiet = found(connection)
            if is_quiet and not told.is_set():
                told.set()
                meddle()
            return is_quiet

        return meddled

    with monkeypatch.context() as patched:
        patched.setattr(tidb_locks, "quiet", quiet)
        yield
    assert told.is_set()


def test_a_session_that_comes_in_between_is_waited_for_briefly(
    db: Lapse, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 5_000
    client(EVENTS)
    _fill(client, rows)
    db.execute(OWN)
    # In one batch, of which TiDB has locked most when it meets the row that is held.
    db.execute(f"ALTER TABLE events SET (ttl_delete_batch_size = {rows}, ttl_select_batch_size = {rows})")
    holder, waiter = session(), session()
    waited: list[float] = []

    def want_another() -> None:
        sleep(0.2)
        began = monotonic()
        waiter.execute("UPDATE events SET n = 2, c = now() WHERE id = 9")
        waited.append(monotonic() - began)

    third = Thread(target=want_another)

    def hold() -> None:
        holder.execute("BEGIN")
        holder.execute(f"UPDATE events SET n = 1 WHERE id = {rows - 7}")
        third.start()

    with _meanwhile(monkeypatch, hold):
        began = monotonic()
        job = _run(db)
        took = monotonic() - began
    third.join()
    # One that wants another row of the batch waits as long as Lapse does, and for what that has locked to be freed.
    assert waited[0] < 3 * WAIT_SECONDS
    assert job.status is JobStatus.INCOMPLETE and took < 15 * WAIT_SECONDS
    # Whichever of the two gets it first.
    renewed = client("SELECT id FROM events WHERE n = 2")
    assert client("SELECT id FROM events") == [*renewed, (rows - 7,)]
    assert (job.counts.deleted, job.counts.skipped) == (rows - 1 - len(renewed), 1)
    holder.execute("COMMIT")
    assert _run(db).counts.deleted == 1
    assert client("SELECT id FROM events") == renewed


def test_a_row_that_is_renewed_while_its_lock_is_waited_for_stays(
    db: Lapse, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    db.execute("ALTER TABLE events SET (ttl_delete_batch_size = 10)")
    other = session()

    def renew() -> None:
        other.execute("BEGIN")
        other.execute("UPDATE events SET c = now() WHERE id IN (7, 8)")
        Timer(0.7, other.execute, ("COMMIT",)).start()

    with _meanwhile(monkeypatch, renew), watched(db) as watch:
        job = _run(db)
    # What has waited once locks first for a while.
    locked = ["NOWAIT" in each for each in watch.statements if "DELETE FROM `events`" in each or "NOWAIT" in each]
    assert locked[:3] == [False, True, False]
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, ROWS - 2)
    assert client("SELECT id FROM events ORDER BY id") == [(7,), (8,)]


def test_a_row_that_is_renewed_at_once_stays(db: Lapse, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    with _meanwhile(monkeypatch, lambda: client("UPDATE events SET c = now() WHERE id > 40")):
        assert _run(db).counts.deleted == 40
    assert client("SELECT min(id), count(*) FROM events") == [(41, 10)]


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (("DROP TABLE events", EVENTS), "another one has taken its name"),
        (("RENAME TABLE events TO gone", EVENTS), "another one has taken its name"),
        (("TRUNCATE TABLE events",), "it was truncated"),
        (("ALTER TABLE events MODIFY c DATETIME NULL",), "c datetime at position 2"),
        (("ALTER TABLE events TTL = c + INTERVAL 7 DAY",), "another client has declared a TTL of TiDB's own"),
    ],
)
def test_a_table_that_is_changed_in_between_loses_no_row(
    db: Lapse, client: Client, monkeypatch: pytest.MonkeyPatch, statements: tuple[str, ...], words: str
) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)

    def change() -> None:
        client(*statements)
        client("REPLACE INTO events VALUES (45, now() - INTERVAL 2 DAY, 0)")

    with _meanwhile(monkeypatch, change):
        job = _run(db)
    assert job.status is JobStatus.FAILED and job.counts.deleted == 0
    assert words in str(db.status()[0].reason)
    assert client("SELECT count(*) FROM events WHERE id = 45") == [(1,)]


def test_a_connection_that_is_cut_while_it_waits(
    db: Lapse, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    other = session()

    def cut() -> None:
        sleep(0.4)
        at_work = "info LIKE '%DELETE FROM `events`%' AND id <> connection_id()"
        for (number,) in client(f"SELECT id FROM information_schema.processlist WHERE {at_work}"):
            client(f"KILL {number}")
        other.execute("ROLLBACK")

    def hold() -> None:
        other.execute("BEGIN")
        other.execute("UPDATE events SET c = now() WHERE id = 7")
        Thread(target=cut).start()

    with _meanwhile(monkeypatch, hold), pytest.raises(DatabaseUnavailable):
        _run(db)
    assert client("SELECT count(*) FROM events") == [(ROWS,)]
    assert _run(db).status is JobStatus.FINISHED
    assert client("SELECT count(*) FROM events") == [(0,)]
