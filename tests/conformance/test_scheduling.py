"""When jobs run, and when they do not."""

from __future__ import annotations

from lapse.model.job import JobStatus
from tests.conformance.harness import Harness


def _due(h: Harness) -> int:
    """How many jobs a run of everything that is due makes."""
    return len(h.run(None).jobs)


def test_a_new_policy_is_due_at_once_and_then_hourly(h: Harness) -> None:
    h.events()
    assert _due(h) == 1
    assert _due(h) == 0
    h.advance(minutes=59)
    assert _due(h) == 0
    h.advance(minutes=1)
    assert _due(h) == 1


def test_cron_and_interval(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_job_cron = '30 3 * * *')")
    assert _due(h) == 1
    assert h.db.status()[0].next_run_at == h.now.replace(day=16, hour=3, minute=30)
    h.sql("ALTER TABLE events TTL_JOB_INTERVAL = '2h'")
    assert h.db.policies()[0].policy.job_cron is None
    h.advance(minutes=119)
    assert _due(h) == 0
    h.advance(minutes=1)
    assert _due(h) == 1


def test_missed_runs_coalesce(h: Harness) -> None:
    h.events()
    _due(h)
    h.advance(days=10)
    assert _due(h) == 1
    assert _due(h) == 0


def test_the_schedule_window(h: Harness) -> None:
    h.events()
    h.sql("SET GLOBAL tidb_ttl_job_schedule_window_start_time = '01:00 +0000'")
    h.sql("SET @@global.tidb_ttl_job_schedule_window_end_time = '03:00 +0000'")
    result = h.run(None)
    assert result.jobs == ()
    assert result.skipped[0].reason == "outside the schedule window"
    assert not result.complete
    h.advance(hours=14)
    assert _due(h) == 1


def test_job_enable_off(h: Harness) -> None:
    h.events()
    h.sql("SET GLOBAL tidb_ttl_job_enable = 'OFF'")
    assert h.run(None).skipped[0].reason == "tidb_ttl_job_enable is OFF"
    h.sql("SET GLOBAL tidb_ttl_job_enable = ON")
    assert _due(h) == 1


def test_the_global_run_interval(h: Harness) -> None:
    h.events()
    h.sql("SET GLOBAL tidb_ttl_job_run_interval = '3h'")
    _due(h)
    assert (h.db.status()[0].next_run_at or h.now) - h.now == (h.now.replace(hour=15) - h.now)


def test_two_tables_are_both_due(h: Harness) -> None:
    h.events()
    h.sql(f"CREATE TABLE more (id INTEGER PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    h.insert((1, h.at(days=-2)))
    h.insert((1, h.at(days=-2)), (2, h.at()), table="more")
    result = h.run(None)
    assert sorted(job.table.name for job in result.jobs) == ["events", "more"]
    assert result.deleted == 2


def test_the_history_is_kept_for_its_retention(h: Harness) -> None:
    h.events()
    h.run()
    assert len(h.db.history()) == 1
    h.advance(days=91)
    h.run()
    assert len(h.db.history()) == 1
    summary = h.db.history()[0].summary
    assert summary is not None
    assert summary.total_scan_task == summary.finished_scan_task


def test_changing_the_expiry_makes_the_table_due_again(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(hours=-2)))
    _due(h)
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 HOUR")
    result = h.run(None)
    assert result.deleted == 1
    assert result.jobs[0].status is JobStatus.FINISHED
