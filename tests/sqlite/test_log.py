"""The write-ahead log beside deletes: moved as it grows, and never longer than it may be."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.engines.sqlite import log
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, NullListener


def test_the_log_is_moved_into_the_file_and_the_lock_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path)) as client, Lapse(f"sqlite:///{path}") as database:
        client.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
        database.execute("ALTER TABLE t SET (ttl_guard = 'off')")
        client.executemany("INSERT INTO t (at) VALUES (?)", [("2020-01-01",)] * 3_000)
        client.commit()
        assert database.run("t").deleted == 3_000
        busy, pages, moved = client.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert (busy, pages) == (0, moved)
        client.execute("INSERT INTO t (at) VALUES ('2037-01-01')")
        client.commit()


class _LogWatch(NullListener):
    """How long the log was after each batch, in bytes."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self.lengths: list[int] = []

    def batch_done(self, event: BatchDone) -> None:
        self.lengths.append(self._log.stat().st_size)


def test_the_log_begins_anew_however_much_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOVE_PAGES", 100)
    monkeypatch.setattr(log, "LOG_PAGES", 500)
    path = tmp_path / "log.db"
    watch = _LogWatch(path)
    with closing(sqlite3.connect(path)) as client, Lapse(f"sqlite:///{path}") as database:
        client.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT, body TEXT) TTL = at + INTERVAL 1 DAY")
        database.execute("ALTER TABLE t SET (ttl_guard = 'off', ttl_delete_batch_size = 100)")
        client.executemany("INSERT INTO t (at, body) VALUES (?, ?)", [("2020-01-01", "x" * 1_000)] * 10_000)
        client.commit()
        client.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert database.run("t", listener=watch).deleted == 10_000
    # 100 batches of some 40 pages; at most 6 of them between two beginnings.
    assert len(watch.lengths) >= 100
    assert max(watch.lengths) < 1_000 * 4_096
    assert not [thread for thread in threading.enumerate() if thread.name == "lapse-log"]


class _ReaderUntilTold(_LogWatch):
    """Ends a reader's transaction once deleting has been stopped because of it."""

    def __init__(self, path: Path, reader: sqlite3.Connection) -> None:
        super().__init__(path)
        self._reader = reader
        self.reasons: list[str] = []

    def waiting(self, job: object, seconds: float, reason: str, cause: object) -> None:
        self.reasons.append(reason)
        if "gate" in reason and self._reader.in_transaction:
            self._reader.execute("COMMIT")


def test_a_long_reader_stops_the_deletes_before_the_log_is_as_long_as_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOVE_PAGES", 100)
    monkeypatch.setattr(log, "LOG_PAGES", 250)
    monkeypatch.setattr(log, "MAX_LOG_PAGES", 500)
    path = tmp_path / "log.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as client,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as reader,
        Lapse(f"sqlite:///{path}") as database,
    ):
        client.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT, body TEXT) TTL = at + INTERVAL 1 DAY")
        database.execute("ALTER TABLE t SET (ttl_guard = 'off', ttl_delete_batch_size = 100)")
        client.execute("BEGIN")
        client.executemany("INSERT INTO t (at, body) VALUES (?, ?)", [("2020-01-01", "x" * 1_000)] * 10_000)
        client.execute("COMMIT")
        client.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM t").fetchall()
        watch = _ReaderUntilTold(path, reader)
        (job,) = database.run("t", listener=watch).jobs
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 10_000)
    assert any("reader" in reason and "pages" in reason for reason in watch.reasons)
    assert max(watch.lengths) < 1_000 * 4_096
