"""What an operator is told about a table and a job: size, inserts, health, progress."""

from __future__ import annotations

from datetime import timedelta

from lapse.app import Health
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, NullListener
from tests.conformance.harness import Harness


def test_size_and_inserts(h: Harness) -> None:
    h.events()
    h.insert(*((number, h.at(hours=1)) for number in range(1, 51)))
    (key,) = [stored.id for stored in h.db.policies()]
    footprint = h.db.sizes()[key]
    assert footprint.rows is not None
    assert footprint.bytes is None or footprint.bytes > 0
    assert footprint.inserted is None or footprint.inserted >= 0


def test_health_follows_the_clock(h: Harness) -> None:
    h.events()
    h.run()
    assert [each.health for each in h.db.health()] == [Health.ON_TIME]
    h.clock.advance(timedelta(days=2))
    (late,) = h.db.health()
    assert (late.health, late.is_due) == (Health.LATE, True)
    assert late.promise_used > 1.9
    h.sql("ALTER TABLE events SET (ttl_pause = 'on')")
    assert [(each.health, each.why) for each in h.db.health()] == [(Health.PAUSED, "ttl_pause is on")]


def test_a_running_job_tells_how_far_it_is(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10)")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 101)))
    seen: list[float | None] = []

    class Watch(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            seen.extend(progress.fraction for progress in h.db.progress())

    result = h.db.run("events", listener=Watch())
    assert result.deleted == 100
    assert len(seen) >= 10
    known = [share for share in seen if share is not None]
    assert all(0 <= share <= 1 for share in known)
    assert known == sorted(known)
    done = h.db.job(result.jobs[0].id)
    assert (done.job.status, done.fraction, done.tasks) == (JobStatus.FINISHED, 1.0, ())
    assert [sum(days.values()) for days in h.db.deleted_per_day(2).values()] == [100]


def test_a_table_can_be_asked_for(h: Harness) -> None:
    h.events()
    h.run()
    assert h.db.health()[0].next_run_at is not None
    h.db.request_run("events")
    assert h.db.health()[0].is_due
    assert [str(job.table.name) for job in h.db.run().jobs] == ["events"]
