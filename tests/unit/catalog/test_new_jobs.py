"""New jobs: told as they are stored, claimed at once or not, and some that end as they begin."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from lapse.catalog import jobs, ledger, new_jobs, policies, tasks
from lapse.catalog.new_jobs import Created
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.errors import Fenced, JobExists
from lapse.model.job import Counts, JobKey, JobStatus, JobSummary, KeyRange, Path, PathKind, TaskStatus
from lapse.model.ledger import EntryKind
from tests.unit.catalog.make import WHOLE, begun, declared, tabled
from tests.unit.runner.build import NOW

PATH = Path(kind=PathKind.PHYSICAL, evidence="in order")
TWO = (KeyRange(end="5"), KeyRange(start="5"))


@pytest.fixture(name="stored")
def _stored(connection: Connection) -> StoredPolicy:
    return declared(connection)


@pytest.fixture(name="physical")
def _physical(connection: Connection, stored: StoredPolicy) -> PhysicalTable:
    return tabled(connection, stored)[0]


def created(
    connection: Connection, stored: StoredPolicy, physical: PhysicalTable, ranges: tuple[KeyRange, ...] = WHOLE
) -> Created:
    return new_jobs.create_job(
        connection,
        table_id=physical.id,
        stored=stored,
        name=stored.table,
        cutoff=NOW,
        path=PATH,
        fingerprint="f",
        ranges=ranges,
        now=NOW,
        owner="w1",
        claims=True,
    )


def test_a_new_job_is_told_as_it_is_stored(
    connection: Connection, stored: StoredPolicy, physical: PhysicalTable
) -> None:
    made = created(connection, stored, physical)
    assert made.job == jobs.get_job(connection, made.job.id)
    assert (made.job.status, made.job.started_at) == (JobStatus.RUNNING, NOW)


def test_its_only_task_is_claimed_with_it(
    connection: Connection, stored: StoredPolicy, physical: PhysicalTable
) -> None:
    lease = created(connection, stored, physical).task
    assert lease is not None
    ((found,),) = tasks.task_states(connection, [lease.job_id]).values()
    assert (found.task, found.heartbeat_at) == (lease, NOW)
    assert lease.is_new
    assert tasks.claimable_tasks(connection, stale_before=NOW, awake_at=NOW) == []
    # One whose worker has died at once is taken over as any other.
    later = NOW + timedelta(minutes=1)
    (stale,) = tasks.claimable_tasks(connection, stale_before=later, awake_at=later)
    assert tasks.claim_task(connection, [stale], owner="w2", now=later) is not None
    with pytest.raises(Fenced):
        tasks.end_task(connection, lease)


def test_of_several_tasks_the_first_is_claimed_and_the_others_wait(
    connection: Connection, stored: StoredPolicy, physical: PhysicalTable
) -> None:
    made = created(connection, stored, physical, TWO)
    assert made.task is not None and made.job.status is JobStatus.RUNNING
    assert (made.task.range, made.task.ordinal, made.task.owner) == (TWO[0], 0, "w1")
    (found,) = tasks.claimable_tasks(connection, stale_before=NOW, awake_at=NOW)
    assert (found.range, found.status, found.ordinal) == (TWO[1], TaskStatus.WAITING, 1)


def test_a_job_that_ends_as_it_begins_is_one_row_and_one_entry(
    connection: Connection, stored: StoredPolicy, physical: PhysicalTable
) -> None:
    ended = new_jobs.record_job(
        connection,
        table_id=physical.id,
        stored=stored,
        name=stored.table,
        status=JobStatus.FINISHED,
        cutoff=NOW,
        path=PATH,
        fingerprint="f",
        summary=JobSummary(),
        now=NOW + timedelta(seconds=1),
        owner="w1",
    )
    assert ended == jobs.get_job(connection, ended.id)
    assert (ended.status, ended.counts, jobs.active_jobs(connection)) == (JobStatus.FINISHED, Counts(), [])
    assert next(each.kind for each in ledger.entries(connection)) == EntryKind.RUN
    # Its table is free.
    begun(connection, stored, physical)


def test_a_table_has_one_active_job(connection: Connection, stored: StoredPolicy, physical: PhysicalTable) -> None:
    created(connection, stored, physical)
    with pytest.raises(JobExists):
        created(connection, stored, physical)


def test_a_table_with_an_active_job_is_not_taken(
    connection: Connection, stored: StoredPolicy, physical: PhysicalTable
) -> None:
    made = created(connection, stored, physical)
    later = NOW + timedelta(hours=1)
    assert not policies.take_table(connection, physical, later)
    assert made.task is not None
    tasks.end_task(connection, made.task)
    key = JobKey.of(made.job)
    jobs.finish_job(connection, key, JobStatus.FINISHED, counts=Counts(), summary=JobSummary(), now=NOW)
    assert policies.take_table(connection, physical, later)
    assert not policies.take_table(connection, physical, later)


def test_a_clean_table_forgets_its_failures(
    connection: Connection, stored: StoredPolicy, physical: PhysicalTable
) -> None:
    policies.hasten_table(connection, physical, retry_at=NOW)
    (failed,) = policies.list_tables(connection, stored.id)
    assert failed.failures == 1
    assert policies.take_table(connection, failed, NOW + timedelta(hours=1), is_clean=True)
    (clean,) = policies.list_tables(connection, stored.id)
    assert clean == replace(failed, failures=0, next_run_at=NOW + timedelta(hours=1))
