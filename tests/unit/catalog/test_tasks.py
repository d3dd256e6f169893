"""Tasks and their leases: who may claim which, in what order, and who may still write."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import Connection

from lapse.catalog import jobs, tasks
from lapse.catalog.tasks import NOTHING_DONE, Progress
from lapse.errors import Fenced
from lapse.model.job import Counts, JobStatus, KeyRange, Task, TaskStatus
from tests.unit.catalog.make import begun, declared, tabled
from tests.unit.runner.build import NOW, ago

THREE = (KeyRange(end="3"), KeyRange(start="3", end="6"), KeyRange(start="6"))


def job_of(connection: Connection, name: str, ranges: tuple[KeyRange, ...] = THREE, behind: float = 0.0) -> int:
    stored = declared(connection, name)
    return begun(connection, stored, tabled(connection, stored)[0], ranges=ranges, behind=behind)


def claimable(connection: Connection, awake_at: datetime = NOW, only: list[int] | None = None) -> list[Task]:
    return tasks.claimable_tasks(connection, stale_before=ago(minutes=1), awake_at=awake_at, jobs=only)


def claim(connection: Connection, owner: str = "w1", *, at: datetime = NOW, of: int | None = None) -> Task:
    found = tasks.claim_task(connection, claimable(connection, only=None if of is None else [of]), owner=owner, now=at)
    assert found is not None
    return found


def test_a_claim_names_the_range_and_raises_the_fence(connection: Connection) -> None:
    job_of(connection, "events")
    first = claim(connection)
    assert (first.ordinal, first.range, first.owner, first.fence) == (0, KeyRange(end="3"), "w1", 1)
    assert first.is_new
    tasks.resign_task(connection, first, NOTHING_DONE)
    again = claim(connection, "w2")
    assert (again.id, again.fence, again.is_new) == (first.id, 2, False)


def test_the_table_with_fewest_runners_comes_first(connection: Connection) -> None:
    huge, small = job_of(connection, "huge"), job_of(connection, "small")
    assert [claim(connection).job_id for _ in range(4)] == [huge, small, huge, small]


def test_among_equals_the_one_furthest_behind_comes_first(connection: Connection) -> None:
    job_of(connection, "fine", behind=0.2)
    late = job_of(connection, "late", behind=1.5)
    assert claim(connection).job_id == late


def test_a_choice_of_jobs(connection: Connection) -> None:
    job_of(connection, "one")
    two = job_of(connection, "two")
    assert {task.job_id for task in claimable(connection, only=[two])} == {two}
    assert claimable(connection, only=[]) == []


@pytest.mark.parametrize(
    ("status", "is_claimable"),
    [
        (JobStatus.WAITING, True),
        (JobStatus.RUNNING, True),
        (JobStatus.PAUSED, False),
        (JobStatus.CANCELLING, False),
    ],
)
def test_tasks_of_jobs_that_stand_still_are_not_claimed(
    connection: Connection, status: JobStatus, is_claimable: bool
) -> None:
    jobs.mark_job(connection, job_of(connection, "events"), status, None, NOW)
    assert bool(claimable(connection)) is is_claimable


def test_a_claim_that_came_too_late_takes_the_next(connection: Connection) -> None:
    job_of(connection, "events")
    seen = claimable(connection)
    first = tasks.claim_task(connection, seen, owner="w1", now=NOW)
    second = tasks.claim_task(connection, seen, owner="w2", now=NOW)
    assert first is not None and second is not None
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert tasks.claim_task(connection, seen[:1], owner="w3", now=NOW) is None


def test_a_silent_owner_is_replaced_and_a_live_one_is_not(connection: Connection) -> None:
    job_of(connection, "events", (KeyRange(),))
    claim(connection, at=ago(seconds=61))
    taken = claim(connection, "w2")
    assert (taken.owner, taken.fence) == ("w2", 2)
    assert claimable(connection) == []


def test_who_was_taken_over_writes_nothing(connection: Connection) -> None:
    job_of(connection, "events", (KeyRange(),))
    old = claim(connection, at=ago(seconds=61))
    claim(connection, "w2")
    for write in (tasks.save_progress, tasks.resign_task, tasks.finish_task):
        with pytest.raises(Fenced, match=f"task {old.id} of job {old.job_id} belongs to another worker"):
            write(connection, old, NOTHING_DONE)
    assert tasks.beat(connection, [old], NOW) == [old.id]


def test_progress_is_read_as_it_was_saved(connection: Connection) -> None:
    job_of(connection, "events")
    lease = claim(connection)
    progress = Progress(
        cursor="42",
        sweep=1,
        counts=Counts(selected=9, deleted=5, held=2, skipped=1, errors=1, batches=3),
        worked_seconds=1.5,
        waited_seconds=2.5,
        locked_seconds=0.5,
        lasted_seconds=4.25,
        pause_reason="gate",
        last_error="deadlock",
        waits={"gate": 2.0, "retry": 0.5},
    )
    tasks.save_progress(connection, lease, progress)
    assert tasks.progress_of(connection, lease.id) == progress
    with pytest.raises(Fenced, match="has ended"):
        tasks.progress_of(connection, 4711)


def test_a_task_that_failed_is_left_alone_until_its_pause_is_over(connection: Connection) -> None:
    job_of(connection, "events", (KeyRange(),))
    lease = claim(connection)
    tasks.resign_task(connection, lease, NOTHING_DONE)
    tasks.postpone_task(connection, lease.id, failures=2, not_before=NOW)
    assert claimable(connection, ago(seconds=1)) == []
    (found,) = claimable(connection, NOW)
    assert (found.failures, found.has_begun) == (2, True)


def test_a_task_at_work_is_not_postponed(connection: Connection) -> None:
    job_id = job_of(connection, "events", (KeyRange(),))
    lease = claim(connection)
    tasks.postpone_task(connection, lease.id, failures=2, not_before=NOW)
    assert tasks.task_states(connection, [job_id])[job_id][0].task.failures == 0


def test_the_fleet_s_tasks_are_those_with_a_recent_heartbeat(connection: Connection) -> None:
    one, two = job_of(connection, "one"), job_of(connection, "two")
    lease = claim(connection, of=one)
    claim(connection, "w2", at=ago(seconds=90), of=two)
    assert tasks.running_tasks(connection, stale_before=ago(minutes=1)) == 1
    assert tasks.running_tasks(connection, stale_before=ago(minutes=2)) == 2
    assert tasks.live_owners(connection, two, stale_before=ago(minutes=1)) == 0
    tasks.finish_task(connection, lease, NOTHING_DONE)
    assert tasks.live_owners(connection, one, stale_before=ago(minutes=1)) == 0


def test_what_the_tasks_of_a_job_spent_adds_up(connection: Connection) -> None:
    job_id = job_of(connection, "events")
    spent = Progress(
        cursor=None,
        sweep=0,
        counts=Counts(selected=2, deleted=2, batches=1),
        worked_seconds=3.0,
        waited_seconds=1.0,
        locked_seconds=2.0,
        lasted_seconds=4.5,
        waits={"gate": 1.0},
    )
    first, second, third = claim(connection), claim(connection), claim(connection)
    tasks.save_progress(connection, first, replace(spent, last_error="deadlock", pause_reason="gate"))
    tasks.save_progress(connection, second, replace(spent, last_error="deadlock", waits={"gate": 0.5, "retry": 0.5}))
    tasks.finish_task(connection, third, replace(spent, last_error="timeout"))
    found = tasks.spent(connection, job_id)
    assert (found.worked, found.waited, found.locked, found.lasted, found.other) == (9.0, 3.0, 6.0, 13.5, 1.5)
    assert found.waits == {"gate": 2.5, "retry": 0.5}
    assert (found.errors, found.pauses) == (("deadlock", "timeout"), ("gate",))
    assert (found.tasks, found.finished, found.counts.deleted) == (3, 1, 6)
    summary = found.summary(since=ago(seconds=20), now=NOW)
    assert (summary.wall_seconds, summary.select_seconds, summary.delete_seconds) == (20.0, 3.0, 6.0)
    assert (summary.total_scan_task, summary.finished_scan_task) == (3, 1)
    assert (summary.success_rows, summary.scan_task_err) == (6, "deadlock; timeout")
    assert summary.task_seconds == summary.select_seconds + summary.delete_seconds + 3.0 + summary.other_seconds


def test_tasks_of_several_jobs_at_once(connection: Connection) -> None:
    one, two = job_of(connection, "one"), job_of(connection, "two", (KeyRange(),))
    found = tasks.task_states(connection, [two, one, 4711])
    assert {job_id: len(states) for job_id, states in found.items()} == {one: 3, two: 1, 4711: 0}
    assert [state.task.ordinal for state in found[one]] == [0, 1, 2]
    assert tasks.task_states(connection, []) == {}


def test_a_finished_task_is_not_claimed_again(connection: Connection) -> None:
    job_id = job_of(connection, "events", (KeyRange(),))
    tasks.finish_task(connection, claim(connection, at=ago(days=1)), NOTHING_DONE)
    assert claimable(connection) == []
    assert tasks.task_states(connection, [job_id])[job_id][0].task.status is TaskStatus.FINISHED
