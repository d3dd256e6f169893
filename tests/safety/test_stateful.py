"""Random histories against a model of which rows must live: inserts, renewals, policy changes, clock moves, crashes.

The model knows every row's time and the policy's interval. After each step no live row may be missing; after each
complete run no expired row may be left; and what the history counts as deleted is what really went.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lapse.app import Lapse
from lapse.clock import ManualClock
from tests.backends import BACKENDS, Backend
from tests.safety.crash import CrashAfter, dying

START = datetime(2026, 3, 15, 12, 0, 0, tzinfo=UTC)
HEARTBEATS_MISSED = timedelta(seconds=60)
offsets = st.integers(min_value=-6 * 3600, max_value=6 * 3600)


class Histories(RuleBasedStateMachine):
    backend: Backend = BACKENDS["sqlite"]()
    kind = "rowid"

    @initialize(kind=st.sampled_from(["rowid", "index", "key"]), batch=st.integers(1, 5))
    def create(self, kind: str, batch: int) -> None:
        logging.disable(logging.CRITICAL)
        self.kind = kind
        self.url = self.backend.create()
        self.clock = ManualClock(START)
        self.db = Lapse(self.url, clock=self.clock)
        self.hours = 1
        self.rows: dict[int, datetime | None] = {}
        self.removed_by_user = 0
        self.inserted = 0
        self.next_id = 1
        suffix = " WITHOUT ROWID" if kind == "key" else ""
        self.db.execute(f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP){suffix}")
        self.db.execute("ALTER TABLE events TTL = ts + INTERVAL 1 HOUR")
        self.db.execute(f"ALTER TABLE events SET (ttl_delete_batch_size = {batch}, ttl_adaptive = 'off')")
        if kind == "index":
            self.db.execute("CREATE INDEX events_ts ON events (ts)")

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        if hasattr(self, "db"):
            self.db.close()
            self.backend.drop(self.url)

    @rule(seconds=st.lists(offsets, min_size=1, max_size=8))
    def insert(self, seconds: list[int]) -> None:
        for offset in seconds:
            moment = self.clock.now() + timedelta(seconds=offset)
            self.rows[self.next_id] = moment
            self.db.execute("INSERT INTO events (id, ts) VALUES (?, ?)", (self.next_id, _text(moment)))
            self.next_id += 1
            self.inserted += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), offset=st.none() | offsets)
    def renew(self, data: st.DataObject, offset: int | None) -> None:
        number = data.draw(st.sampled_from(sorted(self.rows)))
        moment = None if offset is None else self.clock.now() + timedelta(seconds=offset)
        self.db.execute("UPDATE events SET ts = ? WHERE id = ?", (_text(moment), number))
        self.rows[number] = moment

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.rows)))
        self.db.execute("DELETE FROM events WHERE id = ?", (number,))
        del self.rows[number]
        self.removed_by_user += 1

    @rule(seconds=st.integers(0, 7200))
    def wait(self, seconds: int) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    @rule(hours=st.integers(1, 5))
    def change_policy(self, hours: int) -> None:
        self.db.execute(f"ALTER TABLE events TTL = ts + INTERVAL {hours} HOUR")
        self.hours = hours

    @rule()
    def run(self) -> None:
        self.clock.advance(HEARTBEATS_MISSED)
        (job,) = self.db.run("events").jobs
        if job.created_at < self.clock.now():
            # Taken up from a crash: rows that came since, behind its cursor, are for the next one.
            (job,) = self.db.run("events").jobs
        cutoff = job.cutoff
        left = self._ids()
        assert not [number for number in left if self._expired(number, cutoff)]
        self.rows = {number: self.rows[number] for number in left}

    @rule(statements=st.integers(0, 120))
    def crash_during_a_run(self, statements: int) -> None:
        self.clock.advance(HEARTBEATS_MISSED)
        doomed = Lapse(self.url, clock=self.clock)
        CrashAfter(doomed, statements)
        with dying():
            doomed.run("events")
        doomed.close()
        self.rows = {number: self.rows[number] for number in self._ids()}

    @invariant()
    def live_rows_live(self) -> None:
        if not hasattr(self, "db"):
            return
        assert set(self._ids()) == set(self.rows)

    @invariant()
    def counts_are_rows_that_went(self) -> None:
        if not hasattr(self, "db"):
            return
        deleted = sum(job.counts.deleted for job in self.db.history(limit=1000))
        assert deleted == self.inserted - self.removed_by_user - len(self.rows)

    def _ids(self) -> list[int]:
        ids = [row[0] for row in self.db.execute("SELECT id FROM events ORDER BY id").rows]
        missing = [number for number in self.rows if number not in ids and not self._expired(number, self.clock.now())]
        assert not missing, f"live rows are gone: {missing}"
        return ids

    def _expired(self, number: int, cutoff: datetime) -> bool:
        moment = self.rows[number]
        return moment is not None and moment + timedelta(hours=self.hours) <= cutoff


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
