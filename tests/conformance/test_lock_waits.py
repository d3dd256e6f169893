"""A run that waits for a lock says for which table and since when, once, and once more when it is over."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from lapse.app import Lapse
from lapse.cli.status import waits_for
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from lapse.runner import lockwatch
from lapse.runner.events import BatchDone, LockWait, MultiListener, NullListener
from lapse.runner.joblog import JobLog
from tests.conformance.harness import Harness

WHOLE_FILE = ("BEGIN IMMEDIATE",)
"""Where there are no locks of single tables."""


class Meddler(NullListener):
    """Another client, which locks the table after the first batch, until the worker has told that it waits."""

    def __init__(self, h: Harness, looker: Lapse, other: Connection) -> None:
        self._h = h
        self._looker = looker
        self._other = other
        self._has_locked = False
        self.told: list[tuple[str, LockWait]] = []
        self.shown: str | None = None

    def batch_done(self, event: BatchDone) -> None:
        if not self._has_locked:
            self._has_locked = True
            for statement in self._h.backend.lock or WHOLE_FILE:
                self._other.exec_driver_sql(statement.format(t="events"))

    def locked(self, event: LockWait) -> None:
        self.told.append(("locked", event))
        # Long enough for a heartbeat that could not be written.
        self._h.advance(seconds=7)
        (health,) = self._looker.health()
        self.shown = waits_for(health)
        self._other.invalidate()

    def unlocked(self, event: LockWait, seconds: float) -> None:
        self.told.append(("unlocked", event))


def test_a_wait_is_told_once_and_once_when_it_is_over(
    h: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not h.features.table_locks:
        pytest.skip("there is nothing that keeps a whole table locked")
    monkeypatch.setattr(lockwatch, "TOLD_AFTER_SECONDS", 0.1)
    caplog.set_level(logging.INFO, "lapse")
    logging.getLogger("lapse").propagate = True
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10)")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 51)))
    db = h.db
    with closing(h.owner.engine.user_connection()) as other:
        meddler = Meddler(h, h.owner, other)
        result = db.run("events", listener=MultiListener([meddler, JobLog()]), confirm=True)
    (job,) = result.jobs
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 50)
    assert [word for word, _ in meddler.told] == ["locked", "unlocked"]
    (_, begun), (_, ended) = meddler.told
    assert begun == ended
    assert timedelta(seconds=7) <= h.now - begun.since < timedelta(seconds=17)
    since = f"locked by another session, since {begun.since:%Y-%m-%d %H:%M:%S} UTC"
    # What the worker cannot write while the whole file is locked, the status finds out by itself, but not since when.
    assert (since if h.features.row_locks else "locked by another session") in str(meddler.shown)
    # A record is one, however many handlers an earlier test has left to catch it.
    records = {id(record): record.getMessage() for record in caplog.records}
    said = [text for text in records.values() if " locked" in text]
    assert len(said) == 2, said
    assert since in said[0]
    assert all((f"table {job.table}" if h.features.row_locks else "the database") in line for line in said)


def test_a_table_that_is_locked_before_its_job_begins(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """It is left to later, so that no other table waits, and the status says since when."""
    caplog.set_level(logging.INFO, "lapse")
    logging.getLogger("lapse").propagate = True
    h.events()
    h.insert((1, h.at(days=-2)))
    db, started = h.db, h.now
    with h.locked("events"):
        result = db.run("events", listener=JobLog())
        assert [skip.blocked for skip in result.skipped] == [BlockCode.LOCKED]
        h.advance(minutes=1)
        (health,) = h.owner.health()
        assert "locked by another session" in str(health.why)
        assert f"(since {started:%Y-%m-%d %H:%M:%S} UTC)" in str(health.why)
    (job,) = db.run("events", listener=JobLog()).jobs
    assert job.counts.deleted == 1
    said = [record.getMessage() for record in caplog.records if "(locked)" in record.getMessage()]
    assert len(said) == 2, said
    assert said[1] == f"table {job.table} is no longer blocked (locked), after 60 s"
