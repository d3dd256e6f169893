"""A job's life: planned and created in one transaction, settled when its tasks are done or it was told to stop."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, policies, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.tasks import Spent
from lapse.engines.base import Declared, Target
from lapse.errors import DatabaseUnavailable, Drift, JobExists, LapseError, Refused, Retryable
from lapse.model.job import Counts, Job, JobStatus, KeyRange, Path, PathKind
from lapse.model.settings import Settings
from lapse.runner import declared as declaring
from lapse.runner.events import Listener
from lapse.runner.promise import behind
from lapse.runner.retry import retried
from lapse.runner.verdict import judge
from lapse.schedule import next_run

MAX_TASKS = 64
SHARED_ROWS = 200_000
"""A table with as many rows is worth sharing between two tasks, where they do not wait for each other."""
MISSED_BEATS = 2
"""An owner that has been silent for this many heartbeat intervals is taken for dead."""


DESCRIBED_SECONDS = 1.0
"""What a table looks like is asked once for finding its partitions, its guard, its plan and its first tasks, which
follow each other."""


def silent_since(now: datetime, current: Settings) -> datetime:
    return now - MISSED_BEATS * timedelta(seconds=current.heartbeat_interval.approximate_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Described:
    declared: Declared
    version: int
    until: float


class JobKeeper:
    def __init__(self, catalog: Catalog, owner: str, listener: Listener) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._owner = owner
        self._listener = listener
        self._described: dict[tuple[int, str | None], _Described] = {}

    @retried
    def create(self, stored: StoredPolicy, physical: PhysicalTable, current: Settings) -> Job | None:
        """The new job of a physical table, or the one that somebody else has just created; None if that has ended.

        A job that cannot be planned is failed.
        """
        try:
            plan = self._plan(stored, physical)
        except (Drift, Refused) as error:
            return self._record_failure(stored, physical, current, error)
        except (Retryable, DatabaseUnavailable):
            raise
        declared, cutoff, path, ranges = plan
        try:
            with self._catalog.writing(durable=False) as connection:
                job_id = stored_jobs.create_job(
                    connection,
                    table_id=physical.id,
                    stored=stored,
                    partition=physical.partition,
                    cutoff=cutoff,
                    path=path,
                    fingerprint=declaring.fingerprint(declared),
                    ranges=ranges,
                    now=cutoff,
                    owner=self._owner,
                    behind=self.behind(connection, stored, physical.id, cutoff) if ranges else 0.0,
                )
                policies.schedule_table(connection, physical.id, next_run(stored.policy, current, after=cutoff))
                if not ranges:
                    now = self._engine.now(connection)
                    nothing = Spent()
                    summary = _summary(nothing, since=cutoff, now=now)
                    stored_jobs.finish_job(
                        connection, job_id, JobStatus.FINISHED, counts=nothing.counts, summary=summary, now=now
                    )
                job = stored_jobs.get_job(connection, job_id)
        except JobExists:
            return self._active(physical)
        return self._announced(job)

    def _announced(self, job: Job) -> Job:
        self._listener.job_created(job)
        if not job.status.is_active:
            self._listener.job_ended(job)
        return job

    def _active(self, physical: PhysicalTable) -> Job | None:
        with self._catalog.reading() as connection:
            return next((job for job in stored_jobs.active_jobs(connection) if job.table_id == physical.id), None)

    def settle_if_done(self, job_id: int) -> Job:
        """After a task has finished: most jobs have others left."""
        with self._catalog.reading() as connection:
            job = stored_jobs.get_job(connection, job_id)
        return self.settle(job_id) if job.tasks_finished >= job.tasks_total else job

    @retried
    def settle(self, job_id: int) -> Job:
        """Bring a job's status in line with its tasks and with what was asked of it."""
        with self._catalog.writing() as connection:
            job = stored_jobs.get_job(connection, job_id)
            if not job.status.is_active:
                return job
            now = self._engine.now(connection)
            if job.tasks_finished >= job.tasks_total:
                ended = self._finish(connection, job, JobStatus.FINISHED, None, now)
            else:
                ended = self._obey(connection, job, now)
            job = stored_jobs.get_job(connection, job_id)
        if ended:
            self._listener.job_ended(job)
        return job

    @retried
    def end(self, job_id: int, status: JobStatus, reason: str) -> Job:
        """End a job for a reason that was found while working on it."""
        with self._catalog.writing() as connection:
            job = stored_jobs.get_job(connection, job_id)
            ended = self._finish(connection, job, status, reason, self._engine.now(connection))
            job = stored_jobs.get_job(connection, job_id)
        if ended:
            self._listener.job_ended(job)
        return job

    def _finish(self, connection: Connection, job: Job, status: JobStatus, reason: str | None, now: datetime) -> bool:
        """False if somebody else has ended it already."""
        # Nobody commits a batch between this sum and the end of the tasks: it would go uncounted.
        spent = tasks.spent(connection, job.id, locked=True)
        summary = _summary(spent, since=job.started_at or job.created_at, now=now)
        return stored_jobs.finish_job(
            connection, job.id, status, reason=reason, summary=summary, counts=spent.counts, now=now
        )

    def _obey(self, connection: Connection, job: Job, now: datetime) -> bool:
        """Do what was asked of a job that has work left; True if it ended. Whoever is at work on it stops first."""
        current = settings.load_settings(connection)
        stored = policies.get_policy(connection, job.policy_id)
        verdict = judge(job, stored, current, now, tasks.spent(connection, job.id).worked)
        if verdict.status is JobStatus.PAUSED:
            stored_jobs.mark_job(connection, job.id, JobStatus.PAUSED, verdict.reason, now)
        elif verdict.status is None:
            if job.status is JobStatus.PAUSED:
                stored_jobs.mark_job(connection, job.id, JobStatus.WAITING, None, now)
        elif tasks.live_owners(connection, job.id, alive_since=silent_since(now, current)):
            stored_jobs.mark_job(connection, job.id, JobStatus.CANCELLING, verdict.reason, now)
        else:
            return self._finish(connection, job, verdict.status, verdict.reason, now)
        return False

    def _plan(self, stored: StoredPolicy, physical: PhysicalTable) -> tuple[Declared, datetime, Path, list[KeyRange]]:
        with self._engine.connection() as connection:
            declared = self.declared(connection, stored, physical.partition)
            cutoff = self._engine.now(connection)
            path = self._engine.choose_path(connection, declared, cutoff)
            rows = self._engine.estimate_rows(connection, declared.table)
            pieces = min(MAX_TASKS, rows // self._engine.features.rows_per_task)
            pieces = max(pieces, 2 if rows >= SHARED_ROWS and self._engine.features.concurrent_writers else 1)
            target = Target(declared=declared, cutoff=cutoff, path=path)
            return declared, cutoff, path, self._engine.split(connection, target, pieces)

    def look_again(self) -> None:
        """Forget what tables looked like."""
        self._described = {}

    def declared(self, connection: Connection, stored: StoredPolicy, partition: str | None) -> Declared:
        """The policy as it holds for one physical table, which looks as it did a moment ago."""
        found = self._described.get((stored.id, partition))
        if found is None or found.version != stored.version or monotonic() > found.until:
            declared = self._look(connection, stored, partition)
            found = _Described(declared=declared, version=stored.version, until=monotonic() + DESCRIBED_SECONDS)
            self._described[stored.id, partition] = found
        return found.declared

    def _look(self, connection: Connection, stored: StoredPolicy, partition: str | None) -> Declared:
        if partition is None:
            return declaring.load(self._engine, connection, stored)
        whole = self.declared(connection, stored, None)
        leaf = self._engine.leaf(connection, whole.table, partition)
        if leaf is None:
            raise Drift(f"partition {partition} of table {stored.table} does not exist any more")
        return replace(whole, table=leaf, policy=stored.policy.for_partition(partition))

    def _record_failure(
        self, stored: StoredPolicy, physical: PhysicalTable, current: Settings, error: LapseError
    ) -> Job | None:
        """A failed job in the history is how a policy that cannot run is noticed."""
        try:
            with self._catalog.writing() as connection:
                now = self._engine.now(connection)
                job_id = stored_jobs.create_job(
                    connection,
                    table_id=physical.id,
                    stored=stored,
                    partition=physical.partition,
                    cutoff=now,
                    path=Path(kind=PathKind.PHYSICAL, evidence="not planned"),
                    fingerprint="",
                    ranges=(),
                    now=now,
                    owner=self._owner,
                )
                summary = json.dumps({"error": error.message})
                stored_jobs.finish_job(
                    connection,
                    job_id,
                    JobStatus.FAILED,
                    reason=error.message,
                    counts=Counts(),
                    summary=summary,
                    now=now,
                )
                due = next_run(stored.policy, current, after=now)
                policies.schedule_table(connection, physical.id, due, trouble=error.message)
                job = stored_jobs.get_job(connection, job_id)
        except JobExists:
            return self._active(physical)
        return self._announced(job)

    def behind(self, connection: Connection, stored: StoredPolicy, table_id: int, now: datetime) -> float:
        """The share of the promised time that has passed for a physical table."""
        watermark = stored_jobs.watermark(connection, table_id) or stored.created_at
        return behind(stored.policy, watermark=watermark, now=now)


def _summary(spent: Spent, *, since: datetime, now: datetime) -> str:
    counts = spent.counts
    return json.dumps(
        {
            "total_rows": counts.selected,
            "success_rows": counts.deleted,
            "error_rows": counts.errors,
            "held_rows": counts.held,
            "skipped_rows": counts.skipped,
            "batches": counts.batches,
            "total_scan_task": spent.tasks,
            "finished_scan_task": spent.finished,
            "wall_seconds": round((now - since).total_seconds(), 3),
            "task_seconds": round(spent.lasted, 3),
            "select_seconds": round(spent.worked - spent.locked, 3),
            "delete_seconds": round(spent.locked, 3),
            "waited_seconds": round(spent.waited, 3),
            "other_seconds": round(spent.other, 3),
            "waits": spent.waits,
            "scan_task_err": "; ".join(spent.errors)[:1000],
        }
    )
