"""Tables that are changed behind Lapse's back: what the schema's version, the mark and the parts tell."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.clock import ManualClock
from lapse.errors import LapseError
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, NullListener
from tests.conformance.harness import START, Harness


def client(h: Harness) -> sqlite3.Connection:
    return sqlite3.connect(h.url.removeprefix("sqlite:///"), isolation_level=None)


def execute(h: Harness, *statements: str) -> None:
    with closing(client(h)) as connection:
        for statement in statements:
            connection.execute(statement)


class AfterFirstBatch(NullListener):
    """Runs statements of another client's between the first batch and the second."""

    def __init__(self, h: Harness, *statements: str) -> None:
        self._h = h
        self._statements = statements
        self._done = False

    def batch_done(self, event: BatchDone) -> None:
        if not self._done:
            self._done = True
            execute(self._h, *self._statements)


def thousand(h: Harness, **declaration: str) -> None:
    h.events(**declaration)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10, ttl_adaptive = 'off', ttl_guard = 'off')")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 1_001)))


def test_a_column_that_is_renamed_during_a_job_ends_it(h: Harness) -> None:
    thousand(h)
    listener = AfterFirstBatch(h, "ALTER TABLE events RENAME COLUMN ts TO created")
    (job,) = h.db.run("events", listener=listener).jobs
    assert job.status is not JobStatus.FINISHED
    assert "ts" in (job.reason or "")
    assert len(h.ids()) == 990


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE other (id INTEGER)",
        "ALTER TABLE events ADD COLUMN note TEXT",
        "CREATE INDEX events_ts ON events (ts)",
        "CREATE TABLE child (e INTEGER REFERENCES events)",
        "VACUUM",
        "ANALYZE",
        "REINDEX",
    ],
)
def test_changes_that_do_not_matter_do_not_stop_a_job(h: Harness, statement: str) -> None:
    thousand(h)
    (job,) = h.db.run("events", listener=AfterFirstBatch(h, statement)).jobs
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 1_000)
    assert h.ids() == []


def test_a_foreign_key_that_comes_during_a_job_holds_what_it_refers_to(h: Harness) -> None:
    thousand(h)
    listener = AfterFirstBatch(
        h, "CREATE TABLE child (e INTEGER REFERENCES events)", "INSERT INTO child VALUES (500), (501)"
    )
    (job,) = h.db.run("events", listener=listener).jobs
    assert h.ids() == [500, 501]
    assert (job.counts.deleted, job.counts.held) == (998, 2)


def blocked(h: Harness, table: str = "events") -> str | None:
    """The code of what keeps the table from being worked on, after a run that deletes nothing."""
    before = h.rows(f"SELECT * FROM {table}")
    h.run(table)
    assert h.rows(f"SELECT * FROM {table}") == before
    (status,) = h.db.status()
    return status.blocked


REBUILD = (
    "CREATE TABLE _alembic_tmp_events (id INTEGER PRIMARY KEY, ts TIMESTAMP)",
    "INSERT INTO _alembic_tmp_events SELECT id, ts FROM events",
    "DROP TABLE events",
    "ALTER TABLE _alembic_tmp_events RENAME TO events",
)


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        (REBUILD, BlockCode.TABLE_REPLACED),
        (("DROP TABLE events", "CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP)"), BlockCode.TABLE_REPLACED),
        (
            (
                "CREATE TABLE other AS SELECT id, '2001-01-01' AS ts FROM events",
                "ALTER TABLE events RENAME TO old",
                "ALTER TABLE other RENAME TO events",
            ),
            BlockCode.TABLE_REPLACED,
        ),
        (
            (
                "ALTER TABLE events RENAME COLUMN ts TO born",
                "ALTER TABLE events ADD COLUMN ts TIMESTAMP DEFAULT '2001-01-01'",
            ),
            BlockCode.COLUMN_CHANGED,
        ),
    ],
)
def test_another_table_or_column_under_the_name_is_blocked_until_resumed(
    h: Harness, statements: tuple[str, ...], code: BlockCode
) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    execute(h, *statements, f"INSERT INTO events (id, ts) VALUES (10, {h.at(days=-3)})")
    assert blocked(h) == code
    assert blocked(h) == code
    h.db.resume("events")
    h.run()
    assert 10 not in h.ids()
    assert not [finding for finding in h.db.doctor() if finding.level == "problem"]


@pytest.mark.parametrize("table", ["events", "Odd \"name\" 'quoted'; --"])
@pytest.mark.parametrize(
    "statements",
    [
        ("VACUUM",),
        ("REINDEX",),
        ("ANALYZE",),
        ("ALTER TABLE {} ADD COLUMN note TEXT",),
        ("ALTER TABLE {} DROP COLUMN first",),
        ("ALTER TABLE {} RENAME COLUMN first TO second",),
        ("ALTER TABLE {} RENAME COLUMN id TO number", "ALTER TABLE {} RENAME COLUMN number TO id"),
        ("ALTER TABLE {} RENAME COLUMN ts TO born", "ALTER TABLE {} RENAME COLUMN born TO ts"),
        ("ALTER TABLE {} RENAME TO away", "ALTER TABLE away RENAME TO {}"),
        ("PRAGMA legacy_alter_table = ON", "ALTER TABLE {} RENAME TO away", "ALTER TABLE away RENAME TO {}"),
        ("PRAGMA writable_schema = RESET",),
    ],
)
def test_changes_that_leave_the_table_what_it_was_block_nothing(
    h: Harness, table: str, statements: tuple[str, ...]
) -> None:
    name = h.q(table)
    h.sql(f"CREATE TABLE {name} (first TEXT, id INTEGER PRIMARY KEY, ts TIMESTAMP) TTL = ts + INTERVAL 1 DAY")
    h.insert((1, h.at(days=-2)), (2, h.at()), table=name)
    execute(h, *(statement.format(name) for statement in statements))
    (job,) = h.db.run(name).jobs
    assert job.status is JobStatus.FINISHED
    assert h.ids(name) == [2]


def test_a_rename_through_lapse_takes_the_mark_along(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    h.sql("ALTER TABLE events RENAME TO facts")
    assert h.run_one("facts").counts.deleted == 1


def test_a_table_that_is_replaced_during_a_job_keeps_its_rows(h: Harness) -> None:
    thousand(h)
    swap = ("ALTER TABLE events RENAME TO old", "ALTER TABLE other RENAME TO events")
    execute(h, "CREATE TABLE other AS SELECT * FROM events")
    h.db.run("events", listener=AfterFirstBatch(h, *swap))
    assert len(h.ids()) == 1_000
    assert len(h.ids("old")) == 990
    (status,) = h.db.status()
    assert status.blocked == BlockCode.TABLE_REPLACED


def test_a_managed_table_that_was_rebuilt_is_repaired_and_resumed(h: Harness) -> None:
    """As Alembic does it: the default stays, the triggers go, and a new row would be born expired."""
    h.clock.set(datetime.now(UTC))
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY) WITH (ttl_expire_after = '1 hour')")
    h.sql("INSERT INTO events (id) VALUES (1)")
    (default,) = h.rows("SELECT dflt_value FROM pragma_table_xinfo('events') WHERE name LIKE 'crdb%'")[0]
    execute(
        h,
        f"CREATE TABLE new (id INTEGER PRIMARY KEY, crdb_internal_expiration TEXT DEFAULT {default})",
        "INSERT INTO new SELECT * FROM events",
        "DROP TABLE events",
        "ALTER TABLE new RENAME TO events",
    )
    h.advance(hours=3)
    execute(h, "INSERT INTO events (id) VALUES (2)")
    assert blocked(h) == BlockCode.PARTS_MISSING
    h.clock.set(datetime.now(UTC))
    h.db.doctor(repair=True)
    assert blocked(h) == BlockCode.TABLE_REPLACED
    h.db.resume("events")
    h.run()
    assert h.ids() == [1, 2]
    h.advance(hours=2)
    h.run()
    assert h.ids() == []


def test_a_managed_column_that_a_rebuild_left_out_comes_back(h: Harness) -> None:
    """As Django does it: the new table has the model's columns only."""
    h.clock.set(datetime.now(UTC))
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP) WITH (ttl_expire_after = '1 hour')")
    h.sql("INSERT INTO events (id) VALUES (1)")
    execute(h, *REBUILD)
    assert blocked(h) in (BlockCode.PARTS_MISSING, BlockCode.COLUMN_CHANGED)
    h.db.doctor(repair=True)
    h.db.resume("events")
    h.run()
    assert h.ids() == [1]
    h.advance(hours=2)
    h.run()
    assert h.ids() == []


def test_triggers_of_an_earlier_version_are_replaced(h: Harness) -> None:
    h.clock.set(datetime.now(UTC))
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY) WITH (ttl_expire_after = '1 hour')")
    (sql,) = h.rows("SELECT sql FROM sqlite_schema WHERE name = 'lapse_events_insert'")[0]
    before, _, rest = sql.partition(" = ")
    earlier = f"{before} GLOB '????-??-?? ??:??:??.???Z' BEGIN {rest.partition(' BEGIN ')[2]}"
    marks = [row[0] for row in h.rows("SELECT name FROM sqlite_schema WHERE name LIKE 'lapse!_armed!_%' ESCAPE '!'")]
    execute(h, "DROP TRIGGER lapse_events_insert", earlier, *(f'DROP TRIGGER "{mark}"' for mark in marks))
    execute(h, "UPDATE lapse_policy SET armed = NULL")
    h.sql("INSERT INTO events (id) VALUES (1)")
    assert h.run_one().status is JobStatus.FINISHED
    assert h.rows("SELECT sql FROM sqlite_schema WHERE name = 'lapse_events_insert'") == [(sql,)]


def test_a_policy_that_is_removed_leaves_nothing_behind(h: Harness) -> None:
    before = None
    for declaration in ("TTL = ts + INTERVAL 1 DAY", "SET (ttl_expire_after = '1 hour', ttl_hide_expired = 'view')"):
        if before is None:
            h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP)")
            before = h.rows("SELECT name, sql FROM sqlite_schema WHERE tbl_name LIKE 'events%'")
        h.sql(f"ALTER TABLE events {declaration}")
        h.sql("ALTER TABLE events RESET (ttl)")
        assert h.rows("SELECT name, sql FROM sqlite_schema WHERE tbl_name LIKE 'events%'") == before


def test_a_declaration_on_another_column_moves_the_mark(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP, born TIMESTAMP) TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    h.sql("ALTER TABLE events RESET (ttl)")
    h.sql("ALTER TABLE events TTL = born + INTERVAL 1 DAY")
    execute(h, "ALTER TABLE events DROP COLUMN ts")
    with pytest.raises(sqlite3.OperationalError, match="lapse_armed_"):
        execute(h, "ALTER TABLE events DROP COLUMN born")
    assert h.run_one().status is JobStatus.FINISHED


class TestCopies:
    def _declare(self, path: Path) -> None:
        with Lapse(f"sqlite:///{path}", clock=ManualClock(START)) as database:
            database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
            database.execute("INSERT INTO t VALUES (1, '2026-01-01')")

    def _left(self, path: Path, *, resume: bool = False) -> int:
        with Lapse(f"sqlite:///{path}", clock=ManualClock(START)) as database:
            if resume:
                database.resume("t")
            database.run("t")
            return len(database.execute("SELECT * FROM t").rows)

    @pytest.mark.parametrize("ran_before", [False, True])
    def test_a_copy_deletes_nothing_until_resumed(self, tmp_path: Path, ran_before: bool) -> None:
        path, copy = tmp_path / "a.db", tmp_path / "b.db"
        self._declare(path)
        if ran_before:
            self._left(path)
            with closing(sqlite3.connect(path)) as client, client:
                client.execute("INSERT INTO t VALUES (2, '2026-01-01')")
        shutil.copy(path, copy)
        assert self._left(copy) == 1
        assert self._left(copy) == 1
        assert self._left(path) == 0
        assert self._left(copy, resume=True) == 0

    def test_a_file_that_was_moved_is_no_copy(self, tmp_path: Path) -> None:
        path, moved = tmp_path / "a.db", tmp_path / "b.db"
        self._declare(path)
        path.rename(moved)
        assert self._left(moved) == 0

    def test_a_file_that_was_restored_in_place_is_no_copy(self, tmp_path: Path) -> None:
        path, backup = tmp_path / "a.db", tmp_path / "backup.db"
        self._declare(path)
        shutil.copy(path, backup)
        path.unlink()
        shutil.copy(backup, path)
        assert self._left(path) == 0

    def test_a_link_to_the_file_is_no_copy(self, tmp_path: Path) -> None:
        path, link = tmp_path / "a.db", tmp_path / "b.db"
        self._declare(path)
        link.symlink_to(path)
        assert self._left(link) == 0

    def test_a_database_in_memory_has_no_place(self) -> None:
        with Lapse("sqlite://") as database, database.engine.connection() as connection:
            assert database.engine.place(connection) is None


class ReplacesFile(NullListener):
    """Puts another file in the database's place between the first batch and the second."""

    def __init__(self, h: Harness, other: Path) -> None:
        self._place = Path(h.url.removeprefix("sqlite:///"))
        self._other = other
        self.replaced = False

    def batch_done(self, event: BatchDone) -> None:
        if not self.replaced:
            self.replaced = True
            for leftover in (self._place.with_name(self._place.name + end) for end in ("-wal", "-shm")):
                leftover.unlink(missing_ok=True)
            new = self._place.with_name("new.db")
            shutil.copyfile(self._other, new)
            new.replace(self._place)


def test_a_file_that_is_replaced_during_a_job_loses_no_live_row(h: Harness, tmp_path: Path) -> None:
    """By one whose table of that name has no policy, with rows as old."""
    thousand(h)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP)")
        connection.executemany("INSERT INTO events VALUES (?, '2020-01-01 00:00:00')", [(n,) for n in range(1, 1_001)])
        connection.commit()
    listener = ReplacesFile(h, other)
    with suppress(LapseError):
        h.db.run("events", listener=listener)
    assert listener.replaced
    with closing(client(h)) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (1_000,)


def test_an_older_copy_that_is_put_back_during_a_job_loses_no_live_row(h: Harness, tmp_path: Path) -> None:
    thousand(h)
    h.insert(*((number, h.at(days=0)) for number in range(2_001, 2_101)))
    copy = tmp_path / "copy.db"
    with closing(client(h)) as connection, closing(sqlite3.connect(copy)) as target:
        connection.backup(target)
    listener = ReplacesFile(h, copy)
    with suppress(LapseError):
        h.db.run("events", listener=listener)
    assert listener.replaced
    with closing(client(h)) as connection:
        kept = {row[0] for row in connection.execute("SELECT id FROM events WHERE id > 2000")}
    assert kept == set(range(2_001, 2_101))
