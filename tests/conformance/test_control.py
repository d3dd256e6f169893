"""Pausing, resuming, cancelling, timing out, and parameters that change while a job runs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.errors import LapseError, NotFound, PolicyConflict
from lapse.model.job import Job, JobStatus
from lapse.runner.events import BatchDone, NullListener
from lapse.runner.supervisor import WATCH_SECONDS
from tests.conformance.harness import START, Harness


class AfterFirstBatch(NullListener):
    """Does something once, from inside a running job, then gives the supervisor time to see it."""

    def __init__(self, h: Harness, statement: str) -> None:
        self.h = h
        self.statement = statement
        self.done = False
        self.batches_after = 0

    def batch_done(self, event: BatchDone) -> None:
        if self.done:
            # One that finds nothing, because the policy is another one now, is no harm.
            self.batches_after += event.batch.selected > 0
            return
        self.done = True
        self.h.sql(self.statement.format(job=event.job.id))


def _slow_table(h: Harness, rows: int = 3000) -> None:
    """A rate limit makes the job last long enough to be stopped, and outlast the supervisor's next look."""
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 50, ttl_delete_rate_limit = 500)")
    moment = h.at(days=-2)
    for start in range(0, rows, 500):
        h.insert(*((i, moment) for i in range(start, start + 500)))


def _run(h: Harness, statement: str) -> tuple[Job, AfterFirstBatch]:
    listener = AfterFirstBatch(h, statement)
    result = h.db.run("events", listener=listener)
    return result.jobs[0], listener


@pytest.mark.parametrize("statement", ["CANCEL JOB {job}", "ADMIN CANCEL TTL JOB {job}"])
def test_cancel_takes_effect_within_a_second(h: Harness, statement: str) -> None:
    _slow_table(h)
    job, listener = _run(h, statement)
    assert job.status is JobStatus.CANCELLED
    assert job.counts.deleted + len(h.ids()) == 3000
    assert 0 < job.counts.deleted < 3000
    assert listener.batches_after <= 500 * (4 * WATCH_SECONDS) / 50


def test_pause_and_resume_a_job(h: Harness) -> None:
    _slow_table(h)
    job, _ = _run(h, "PAUSE JOB {job}")
    assert job.status is JobStatus.PAUSED
    assert job.reason == "paused by request"
    h.sql("ALTER TABLE events RESET (ttl_delete_rate_limit)")
    h.sql(f"RESUME JOB {job.id}")
    again = h.run_one()
    assert again.id == job.id
    assert again.status is JobStatus.FINISHED
    assert again.counts.deleted == 3000
    assert again.cutoff == job.cutoff
    assert h.ids() == []


def test_ttl_pause_pauses_a_running_job(h: Harness) -> None:
    _slow_table(h)
    job, _ = _run(h, "ALTER TABLE events SET (ttl_pause = 'on')")
    assert job.status is JobStatus.PAUSED
    assert job.reason == "ttl_pause is on"
    assert h.run().skipped[0].reason == "ttl_pause is on"
    h.sql("ALTER TABLE events SET (ttl_delete_rate_limit = 0)")
    h.sql("ALTER TABLE events TTL_ENABLE = 'ON'")
    h.run()
    assert h.ids() == []


def test_job_enable_off_cancels_running_jobs(h: Harness) -> None:
    if not h.features.own_settings:
        pytest.skip("it is a variable of the server's")
    _slow_table(h)
    job, _ = _run(h, "SET GLOBAL tidb_ttl_job_enable = OFF")
    assert job.status is JobStatus.CANCELLED
    assert job.reason == "tidb_ttl_job_enable is OFF"


def test_removing_the_policy_stops_the_job(h: Harness) -> None:
    _slow_table(h)
    job, listener = _run(h, "ALTER TABLE events REMOVE TTL")
    assert job.status is JobStatus.CANCELLED
    assert listener.batches_after == 0
    assert len(h.ids()) == 3000 - job.counts.deleted
    assert job.summary is not None
    assert job.summary.success_rows == job.counts.deleted > 0


def test_changing_the_expiry_stops_the_job_before_the_next_row(h: Harness) -> None:
    _slow_table(h)
    job, listener = _run(h, "ALTER TABLE events TTL = ts + INTERVAL 1 YEAR")
    assert job.status is JobStatus.CANCELLED
    assert listener.batches_after == 0
    assert len(h.ids()) == 2950


def test_dropping_the_table_stops_the_job(h: Harness) -> None:
    _slow_table(h)
    job, _ = _run(h, "DROP TABLE events")
    assert job.status is JobStatus.CANCELLED
    assert h.db.policies() == []


def test_a_rate_limit_is_kept_and_can_be_lifted_live(h: Harness) -> None:
    _slow_table(h, rows=1500)
    job, _ = _run(h, "ALTER TABLE events SET (ttl_delete_rate_limit = 0)")
    assert job.status is JobStatus.FINISHED
    assert h.ids() == []


def test_job_timeout(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 1, ttl_delete_rate_limit = 100)")
    h.sql("SET GLOBAL lapse_job_timeout = '1 hour'")
    h.insert(*((i, h.at(days=-2)) for i in range(500)))

    class Delay(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            """Time passes, whatever the job does with it."""
            if h.now < START + timedelta(hours=1):
                h.advance(hours=2)

    (job,) = h.db.run("events", listener=Delay()).jobs
    assert job.status is JobStatus.TIMED_OUT
    assert h.ids()
    h.sql("SET GLOBAL lapse_job_timeout = '6 hours'")
    h.sql("ALTER TABLE events RESET (ttl_delete_rate_limit)")
    h.run()
    assert h.ids() == []


def test_unknown_and_ended_jobs_cannot_be_controlled(h: Harness) -> None:
    h.events()
    job = h.run_one()
    with pytest.raises(NotFound, match="999"):
        h.sql("CANCEL JOB 999")
    with pytest.raises(PolicyConflict, match="ended"):
        h.sql(f"PAUSE JOB {job.id}")


def test_bad_settings_change_nothing(h: Harness) -> None:
    if not h.features.own_settings:
        pytest.skip("they are variables of the server's")
    h.events()
    for statement in (
        "SET GLOBAL tidb_ttl_delete_batch_size = 0",
        "SET GLOBAL tidb_ttl_delete_batch_size = 99999",
        "SET GLOBAL tidb_ttl_job_enable = 'maybe'",
        "SET GLOBAL tidb_ttl_nonsense = 1",
        "SET GLOBAL tidb_ttl_job_schedule_window_start_time = '25:00'",
    ):
        with pytest.raises(LapseError):
            h.sql(statement)
    assert h.db.settings()["tidb_ttl_delete_batch_size"] == "100"
    h.sql("SET GLOBAL tidb_ttl_delete_batch_size = 250")
    assert h.rows("SELECT @@global.tidb_ttl_delete_batch_size") == [("250",)]
