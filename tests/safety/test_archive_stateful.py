"""Random histories of a table with an archive, with crashes: every row is in one of the two tables, and in one alone.

Rows that live are in the table; what was archived comes back as it was; no row is ever in both, or in neither.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import lapse.archive
from lapse.app import Lapse
from lapse.app.archiving import ArchiveState
from lapse.catalog import archive_files, exports
from lapse.catalog.archive_files import FileState
from lapse.catalog.exports import LEASE_SECONDS
from lapse.clock import ManualClock
from tests.backends import BACKENDS, Backend
from tests.backends.base import quick_folder
from tests.safety.crash import CrashAfter, dying

START = datetime(2026, 3, 15, 12, 0, 0, tzinfo=UTC)
HEARTBEATS_MISSED = timedelta(seconds=60)
offsets = st.integers(min_value=-6 * 3600, max_value=6 * 3600)


class Archives(RuleBasedStateMachine):
    backend: Backend = BACKENDS["sqlite"]()

    @initialize(kind=st.sampled_from(["rowid", "index", "key"]), batch=st.integers(1, 5))
    def create(self, kind: str, batch: int) -> None:
        logging.disable(logging.CRITICAL)
        self.url = self.backend.create()
        self.clock = ManualClock(START)
        self.db = Lapse(self.url, clock=self.clock)
        self.rows: dict[int, tuple[str, str]] = {}
        suffix = " WITHOUT ROWID" if kind == "key" else ""
        self.db.execute(f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP, note){suffix}")
        self.db.execute("ALTER TABLE events TTL = ts + INTERVAL 1 HOUR")
        self.db.execute(
            f"ALTER TABLE events SET (ttl_archive = '{self._destination()}', ttl_delete_batch_size = {batch},"
            " ttl_adaptive = 'off', ttl_guard = 'off')"
        )
        if kind == "index":
            self.db.execute("CREATE INDEX events_ts ON events (ts)")

    def _destination(self) -> str:
        return "table:"

    def _archived(self) -> dict[int, tuple[str, str]]:
        return self._of("events_archive")

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        if hasattr(self, "db"):
            self.db.close()
            self.backend.drop(self.url)

    @rule(seconds=st.lists(offsets, min_size=1, max_size=8))
    def insert(self, seconds: list[int]) -> None:
        for offset in seconds:
            number = len(self.rows) + 1
            moment = (self.clock.now() + timedelta(seconds=offset)).strftime("%Y-%m-%d %H:%M:%S")
            self.rows[number] = moment, f"note {number}"
            self.db.execute("INSERT INTO events (id, ts, note) VALUES (?, ?, ?)", (number, *self.rows[number]))

    @rule(seconds=st.integers(0, 7200))
    def wait(self, seconds: int) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    @rule()
    def run(self) -> None:
        self.clock.advance(HEARTBEATS_MISSED)
        self.db.run("events")

    @rule(keep=st.sampled_from(["0 seconds", "1 hour"]))
    def restore(self, keep: str) -> None:
        done = self.db.restore("events", keep=keep)
        assert done.restored == done.rows
        assert not self._archived()

    @rule(statements=st.integers(0, 120))
    def crash_during_a_run(self, statements: int) -> None:
        self.clock.advance(HEARTBEATS_MISSED)
        self._crash(statements, restoring=False)

    @rule(statements=st.integers(0, 80))
    def crash_during_a_restore(self, statements: int) -> None:
        self._crash(statements, restoring=True)

    def _crash(self, statements: int, *, restoring: bool) -> None:
        doomed = Lapse(self.url, clock=self.clock)
        CrashAfter(doomed, statements)
        with dying():
            doomed.restore("events", keep="1 minute") if restoring else doomed.run("events")
        doomed.close()

    @invariant()
    def every_row_is_in_one_table_alone(self) -> None:
        if not hasattr(self, "db"):
            return
        here, there = self._of("events"), self._archived()
        assert not here.keys() & there.keys()
        assert here | there == self.rows
        assert all(each.verdict in (ArchiveState.COMPLETE, ArchiveState.RUNNING) for each in self.db.archive())

    @invariant()
    def live_rows_are_in_the_table(self) -> None:
        if not hasattr(self, "db"):
            return
        cutoff = (self.clock.now() - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
        assert all(ts <= cutoff for ts, _ in self._archived().values())

    def _of(self, table: str) -> dict[int, tuple[str, str]]:
        return {number: (ts, note) for number, ts, note in self.db.execute(f"SELECT id, ts, note FROM {table}").rows}


class FileArchives(Archives):
    """Rows are in the table, in the outbox, or in one file that was recorded."""

    def _destination(self) -> str:
        self.folder = Path(mkdtemp(prefix="lapse-archive-", dir=quick_folder()))
        os.environ["LAPSE_ARCHIVES"] = f"file://{self.folder}"
        # A process that died does not renew its lease; waiting for its end is no part of this.
        exports.LEASE_SECONDS = -1.0
        return f"file://{self.folder}"

    def _archived(self) -> dict[int, tuple[str, str]]:
        found = self._of("events_outbox")
        archive = lapse.archive.open(f"file://{self.folder}")
        with self.db.catalog.reading() as connection:
            files = archive_files.list_files(connection)
        for file in files:
            if file.state not in (FileState.RECORDED, FileState.PUBLISHED):
                continue
            pending = lapse.archive.pending_path("events", file.job, file.id)
            path = file.path if (self.folder / file.path).exists() else pending
            with archive.read(path, expected=file.digest) as read:
                names = [column.name for column in read.file.header.columns]
                for columns in read.cells():
                    by_name = dict(zip(names, columns, strict=True))
                    kept = zip(by_name["id"], by_name["ts"], by_name["note"], strict=True)
                    rows: dict[Any, Any] = {number: (ts, note) for number, ts, note in kept}
                    assert not rows.keys() & found.keys()
                    found |= rows
        published = [file.path for file in files if file.state is FileState.PUBLISHED]
        assert sorted(published) == sorted(set(published))
        return found

    def teardown(self) -> None:
        super().teardown()
        exports.LEASE_SECONDS = LEASE_SECONDS
        os.environ.pop("LAPSE_ARCHIVES", None)
        if hasattr(self, "folder"):
            rmtree(self.folder)


TestFileArchives = FileArchives.TestCase
TestFileArchives.settings = settings(
    max_examples=5, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestArchives = Archives.TestCase
TestArchives.settings = settings(
    max_examples=8, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
