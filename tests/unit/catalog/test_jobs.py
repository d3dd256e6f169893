"""Jobs as stored: one active job a table, ended once, counted from its tasks and then by itself."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import Connection, select

from lapse.catalog import jobs, schema, tasks
from lapse.catalog.tasks import Progress
from lapse.errors import JobExists, NotFound, PolicyConflict
from lapse.model.job import PAUSED_BY_REQUEST, Counts, JobStatus, KeyRange, PathKind
from lapse.model.statement import JobAction
from lapse.model.table import TableName
from tests.unit.catalog.make import begun, declared, ended, tabled
from tests.unit.runner.build import NOW, ago

TWO = (KeyRange(end="5"), KeyRange(start="5"))


def test_a_job_is_read_as_it_was_created(connection: Connection) -> None:
    stored = declared(connection)
    (physical,) = tabled(connection, stored, "p1")
    job = jobs.get_job(connection, begun(connection, stored, physical, ranges=TWO, cutoff=ago(hours=1)))
    assert (job.table, job.status, job.cutoff) == (TableName("events", None, "p1"), JobStatus.WAITING, ago(hours=1))
    assert (job.path.kind, job.path.index, job.path.evidence) == (PathKind.INDEX, "by_at", "indexed")
    assert (job.tasks_total, job.tasks_finished, job.counts) == (2, 0, Counts())
    assert (job.started_at, job.finished_at, job.summary, job.reason) == (None, None, None, None)


def test_a_table_has_one_active_job(connection: Connection) -> None:
    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    first = begun(connection, stored, physical)
    with pytest.raises(JobExists, match="events already has an active job"):
        begun(connection, stored, physical)
    assert ended(connection, first)
    assert begun(connection, stored, physical) != first


def test_an_active_job_counts_its_tasks_and_an_ended_one_what_they_came_to(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0], ranges=TWO)
    found = tasks.claimable_tasks(connection, stale_before=NOW, awake_at=NOW)
    for number, lease in enumerate(found, start=1):
        claimed = tasks.claim_task(connection, [lease], owner="w1", now=NOW)
        assert claimed is not None
        done = Progress(cursor=None, sweep=0, counts=Counts(deleted=number), worked_seconds=1.0, waited_seconds=0.0)
        (tasks.finish_task if number == 1 else tasks.save_progress)(connection, claimed, done)
    active = jobs.get_job(connection, job_id)
    assert (active.counts.deleted, active.tasks_finished) == (3, 1)
    ended(connection, job_id, deleted=5, held=2)
    over = jobs.get_job(connection, job_id)
    assert (over.counts, over.tasks_finished) == (Counts(deleted=5, held=2), 2)
    assert over.summary is not None and over.summary.total_rows == 7
    assert tasks.task_states(connection, [job_id]) == {job_id: []}


def test_a_job_that_failed_did_not_finish_its_tasks(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0], ranges=TWO)
    ended(connection, job_id, JobStatus.FAILED)
    assert jobs.get_job(connection, job_id).tasks_finished == 0


def test_a_job_ends_once(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0])
    assert ended(connection, job_id, JobStatus.CANCELLED, deleted=1)
    assert not ended(connection, job_id, deleted=99)
    assert (jobs.get_job(connection, job_id).status, jobs.get_job(connection, job_id).counts.deleted) == (
        JobStatus.CANCELLED,
        1,
    )


@pytest.mark.parametrize("number", [-1, 4711, 2**63, 10**30])
def test_a_number_of_no_job(connection: Connection, number: int) -> None:
    with pytest.raises(NotFound, match=f"there is no job {number}"):
        jobs.get_job(connection, number)


def test_active_jobs_come_in_order_and_history_the_other_way_round(connection: Connection) -> None:
    made = []
    for name in ("a", "b", "c"):
        stored = declared(connection, name)
        made.append(begun(connection, stored, tabled(connection, stored)[0]))
    ended(connection, made[1])
    assert [job.id for job in jobs.active_jobs(connection)] == [made[0], made[2]]
    assert [job.id for job in jobs.recent_jobs(connection, limit=10)] == made[::-1]
    assert [job.id for job in jobs.recent_jobs(connection, limit=1)] == [made[2]]
    assert [job.id for job in jobs.recent_jobs(connection, limit=10, name=TableName("b"))] == [made[1]]
    assert jobs.recent_jobs(connection, limit=10, name=TableName("b", "other")) == []


def test_starting_is_for_jobs_that_wait_and_is_remembered_from_the_first_time(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0])
    jobs.start_job(connection, job_id, owner="w2", now=ago(minutes=9))
    jobs.start_job(connection, job_id, owner="w3", now=ago(minutes=8))
    jobs.mark_job(connection, job_id, JobStatus.WAITING, None, NOW)
    jobs.start_job(connection, job_id, owner="w3", now=NOW)
    assert (jobs.get_job(connection, job_id).status, jobs.get_job(connection, job_id).started_at) == (
        JobStatus.RUNNING,
        ago(minutes=9),
    )


def test_another_reason_for_the_same_status_keeps_its_time(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0])

    def marked(status: JobStatus, reason: str | None, at: datetime) -> tuple[str | None, datetime]:
        jobs.mark_job(connection, job_id, status, reason, at)
        row = connection.execute(select(schema.job.c.reason, schema.job.c.changed_at)).one()
        return row.reason, row.changed_at

    assert marked(JobStatus.PAUSED, "outside the window", ago(minutes=9)) == ("outside the window", ago(minutes=9))
    assert marked(JobStatus.PAUSED, "paused by request", ago(minutes=5)) == ("paused by request", ago(minutes=9))
    assert marked(JobStatus.WAITING, None, NOW) == (None, NOW)


def test_a_mark_is_for_active_jobs_only(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0])
    jobs.mark_job(connection, job_id, JobStatus.PAUSED, "outside the window", NOW)
    assert jobs.get_job(connection, job_id).reason == "outside the window"
    ended(connection, job_id)
    jobs.mark_job(connection, job_id, JobStatus.PAUSED, "again", NOW)
    assert jobs.get_job(connection, job_id).status is JobStatus.FINISHED


@pytest.mark.parametrize(
    ("action", "control", "status", "reason"),
    [
        (JobAction.PAUSE, "pause", JobStatus.PAUSED, PAUSED_BY_REQUEST),
        (JobAction.CANCEL, "cancel", JobStatus.CANCELLING, "cancelled by request"),
        (JobAction.RESUME, None, JobStatus.WAITING, None),
    ],
)
def test_what_is_asked_of_a_job_is_written_down(
    connection: Connection, action: JobAction, control: str | None, status: JobStatus, reason: str | None
) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0])
    jobs.request(connection, job_id, JobAction.PAUSE, NOW)
    job = jobs.request(connection, job_id, action, NOW)
    assert (job.control, job.status, job.reason) == (control, status, reason)


def test_nothing_can_be_asked_of_a_job_that_ends_or_has_ended(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0])
    jobs.request(connection, job_id, JobAction.CANCEL, NOW)
    with pytest.raises(PolicyConflict, match="is being cancelled, so it cannot resume"):
        jobs.request(connection, job_id, JobAction.RESUME, NOW)
    ended(connection, job_id, JobStatus.CANCELLED)
    with pytest.raises(PolicyConflict, match=r"has ended \(cancelled\), so it cannot pause"):
        jobs.request(connection, job_id, JobAction.PAUSE, NOW)


def test_a_job_waits_for_what_its_tasks_at_work_wait_for(connection: Connection) -> None:
    stored = declared(connection)
    job_id = begun(connection, stored, tabled(connection, stored)[0])
    (found,) = tasks.claimable_tasks(connection, stale_before=NOW, awake_at=NOW)
    lease = tasks.claim_task(connection, [found], owner="w1", now=NOW)
    assert lease is not None
    locked = Progress(
        cursor=None, sweep=0, counts=Counts(), worked_seconds=0.0, waited_seconds=0.0, pause_reason="locked"
    )
    tasks.save_progress(connection, lease, locked)
    assert jobs.get_job(connection, job_id).waiting_for == "locked"
    tasks.resign_task(connection, lease, locked)
    assert jobs.get_job(connection, job_id).waiting_for is None
    # Given back because of an error, it still waits for the same.
    tasks.postpone_task(connection, lease.id, failures=1, not_before=NOW)
    assert jobs.get_job(connection, job_id).waiting_for == "locked"


def test_the_last_jobs_of_a_table_by_what_became_of_them(connection: Connection) -> None:
    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    made = []
    for status, held in (
        (JobStatus.FINISHED, 0),
        (JobStatus.FINISHED, 3),
        (JobStatus.INCOMPLETE, 0),
        (JobStatus.FAILED, 0),
    ):
        made.append(begun(connection, stored, physical))
        ended(connection, made[-1], status, held=held)
    begun(connection, stored, physical)
    last = jobs.last_jobs(connection)[physical.id]
    found = (last.clean, last.finished, last.through, last.ended)
    assert [job.id if job else None for job in found] == made


def test_a_table_without_an_ended_job_has_none(connection: Connection) -> None:
    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    begun(connection, stored, physical)
    assert jobs.last_jobs(connection) == {}
    assert jobs.before(connection, physical.id) == jobs.Before(watermark=None, held=0)


def test_the_watermark_is_the_cutoff_of_the_newest_job_that_finished(connection: Connection) -> None:
    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    for hours, status in ((5, JobStatus.FINISHED), (3, JobStatus.FINISHED), (1, JobStatus.INCOMPLETE)):
        ended(connection, begun(connection, stored, physical, cutoff=ago(hours=hours)), status)
    assert jobs.before(connection, physical.id).watermark == ago(hours=3)


def test_held_rows_of_the_job_before(connection: Connection) -> None:
    stored = declared(connection)
    first, second = tabled(connection, stored, "p1", "p2")
    for physical, status, held in (
        (first, JobStatus.FINISHED, 4),
        (second, JobStatus.FINISHED, 9),
        (first, JobStatus.FAILED, 7),
    ):
        ended(connection, begun(connection, stored, physical), status, held=held)
    job = jobs.get_job(connection, begun(connection, stored, first))
    assert jobs.held_before(connection, job) == 4
    assert jobs.held_before(connection, jobs.recent_jobs(connection, limit=9)[-1]) == 0


def test_rows_deleted_on_each_day_in_utc(connection: Connection) -> None:
    one, two = declared(connection, "a"), declared(connection, "b")
    late = datetime(2026, 2, 27, 23, 59, tzinfo=UTC)
    for stored, at, count in (
        (one, NOW, 5),
        (one, NOW, 6),
        (one, late, 7),
        (one, late - timedelta(days=9), 99),
        (two, late, 8),
    ):
        ended(connection, begun(connection, stored, tabled(connection, stored)[0]), at=at, deleted=count)
    assert jobs.deleted_per_day(connection, since=late) == {
        one.id: {date(2026, 3, 1): 11, date(2026, 2, 27): 7},
        two.id: {date(2026, 2, 27): 8},
    }


def test_history_is_forgotten_and_active_jobs_are_not(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FORGOTTEN_AT_ONCE", 2)
    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    made = []
    for hours in (9, 8, 7, 1):
        made.append(begun(connection, stored, physical))
        ended(connection, made[-1], at=ago(hours=hours))
    made.append(begun(connection, stored, physical, cutoff=ago(days=9)))
    assert jobs.forget_jobs(connection, before=ago(hours=7)) == 2
    assert jobs.forget_jobs(connection, before=ago(hours=7)) == 1
    assert jobs.forget_jobs(connection, before=ago(hours=7)) == 0
    assert [job.id for job in jobs.recent_jobs(connection, limit=10)] == [made[4], made[3]]
