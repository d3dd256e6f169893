"""A job's life: planned and created in one transaction, settled when its tasks are done or it was told to stop."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from lapse.catalog import Catalog, policies, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.tasks import Phases
from lapse.engines.base import Declared, Target
from lapse.errors import DatabaseUnavailable, Drift, JobExists, LapseError, Refused, Retryable
from lapse.model.job import Job, JobStatus, KeyRange, Path, PathKind
from lapse.model.settings import Settings
from lapse.runner import declared as declaring
from lapse.runner.events import Listener
from lapse.runner.promise import promise
from lapse.runner.retry import retried
from lapse.runner.verdict import judge
from lapse.schedule import next_run

MAX_TASKS = 64
MISSED_BEATS = 2
"""An owner that has been silent for this many heartbeat intervals is taken for dead."""


def silent_since(now: datetime, current: Settings) -> datetime:
    return now - MISSED_BEATS * timedelta(seconds=current.heartbeat_interval.approximate_seconds)


class JobKeeper:
    def __init__(self, catalog: Catalog, owner: str, listener: Listener) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._owner = owner
        self._listener = listener

    @retried
    def create(self, stored: StoredPolicy, physical: PhysicalTable) -> Job | None:
        """Create the job of a physical table; None if it has one already. A job that cannot be planned is failed."""
        try:
            plan = self._plan(stored, physical)
        except (Drift, Refused) as error:
            return self._record_failure(stored, physical, error)
        except (Retryable, DatabaseUnavailable):
            raise
        declared, cutoff, path, ranges = plan
        try:
            with self._catalog.writing() as connection:
                job = stored_jobs.create_job(
                    connection,
                    table_id=physical.id,
                    stored=stored,
                    partition=physical.partition,
                    cutoff=cutoff,
                    path=path,
                    fingerprint=declaring.fingerprint(declared),
                    ranges=ranges,
                    now=self._engine.now(connection),
                    owner=self._owner,
                    behind=self._behind(connection, stored, physical, cutoff),
                )
                self._schedule_next(connection, stored, physical, cutoff)
                policies.set_trouble(connection, physical.id, None)
        except JobExists:
            return None
        self._listener.job_created(job)
        return self.settle(job.id) if not ranges else job

    @retried
    def settle(self, job_id: int) -> Job:
        """Bring a job's status in line with its tasks and with what was asked of it."""
        with self._catalog.writing() as connection:
            job = stored_jobs.get_job(connection, job_id)
            if not job.status.is_active:
                return job
            now = self._engine.now(connection)
            current = settings.load_settings(connection)
            stored = next((p for p in policies.list_policies(connection) if p.id == job.policy_id), None)
            spent = tasks.phases(connection, job_id)
            verdict = judge(job, stored, current, now, spent.worked)
            status = self._ending(connection, job, verdict.status if verdict.ends else None, now, current)
            if status is not None:
                errors = tasks.last_errors(connection, job_id)
                reason = verdict.reason if verdict.ends else _failure_reason(status, errors)
                summary = _summary(job, spent, tasks.waits(connection, job_id), errors, now)
                ended = stored_jobs.finish_job(connection, job_id, status, reason=reason, summary=summary, now=now)
            elif verdict.status is JobStatus.PAUSED:
                stored_jobs.mark_job(connection, job_id, JobStatus.PAUSED, verdict.reason, now)
            elif verdict.ends:
                stored_jobs.mark_job(connection, job_id, JobStatus.CANCELLING, verdict.reason, now)
            elif job.status is JobStatus.PAUSED:
                stored_jobs.mark_job(connection, job_id, JobStatus.WAITING, None, now)
            job = stored_jobs.get_job(connection, job_id)
        if status is not None and ended:
            self._listener.job_ended(job)
        return job

    @retried
    def end(self, job_id: int, status: JobStatus, reason: str) -> Job:
        """End a job for a reason that was found while working on it."""
        with self._catalog.writing() as connection:
            now = self._engine.now(connection)
            job = stored_jobs.get_job(connection, job_id)
            spent = tasks.phases(connection, job_id)
            summary = _summary(job, spent, tasks.waits(connection, job_id), tasks.last_errors(connection, job_id), now)
            ended = stored_jobs.finish_job(connection, job_id, status, reason=reason, summary=summary, now=now)
            job = stored_jobs.get_job(connection, job_id)
        if ended:
            self._listener.job_ended(job)
        return job

    def _ending(
        self, connection: Connection, job: Job, ordered: JobStatus | None, now: datetime, current: Settings
    ) -> JobStatus | None:
        """How the job ends now, or None while it does not: somebody may still be at work on it."""
        if job.tasks_finished >= job.tasks_total:
            return JobStatus.FINISHED
        if ordered is None or tasks.live_owners(connection, job.id, alive_since=silent_since(now, current)):
            return None
        return ordered

    def _plan(self, stored: StoredPolicy, physical: PhysicalTable) -> tuple[Declared, datetime, Path, list[KeyRange]]:
        with self._engine.connection() as connection:
            declared = self.declared(connection, stored, physical.partition)
            cutoff = self._engine.now(connection)
            path = self._engine.choose_path(connection, declared, cutoff)
            rows = self._engine.estimate_rows(connection, declared.table)
            pieces = max(1, min(MAX_TASKS, rows // self._engine.features.rows_per_task))
            target = Target(declared=declared, cutoff=cutoff, path=path)
            return declared, cutoff, path, self._engine.split(connection, target, pieces)

    def declared(self, connection: Connection, stored: StoredPolicy, partition: str | None) -> Declared:
        """The policy as it holds for one physical table."""
        whole = declaring.load(self._engine, connection, stored)
        if partition is None:
            return whole
        leaf = next((t for t in self._engine.leaves(connection, whole.table) if t.name.partition == partition), None)
        if leaf is None:
            raise Drift(f"partition {partition} of table {stored.table} does not exist any more")
        return replace(whole, table=leaf, policy=stored.policy.for_partition(partition))

    def _record_failure(self, stored: StoredPolicy, physical: PhysicalTable, error: LapseError) -> Job | None:
        """A failed job in the history is how a policy that cannot run is noticed."""
        try:
            with self._catalog.writing() as connection:
                now = self._engine.now(connection)
                job = stored_jobs.create_job(
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
                    connection, job.id, JobStatus.FAILED, reason=error.message, summary=summary, now=now
                )
                self._schedule_next(connection, stored, physical, now)
                policies.set_trouble(connection, physical.id, error.message)
                job = stored_jobs.get_job(connection, job.id)
        except JobExists:
            return None
        self._listener.job_created(job)
        self._listener.job_ended(job)
        return job

    def _behind(self, connection: Connection, stored: StoredPolicy, physical: PhysicalTable, now: datetime) -> float:
        last = stored_jobs.last_jobs(connection, complete=True).get(physical.id)
        kept = promise(stored.policy, declared_at=stored.created_at, last_complete=last, now=now)
        return kept.lateness / kept.within

    def _schedule_next(
        self, connection: Connection, stored: StoredPolicy, physical: PhysicalTable, now: datetime
    ) -> None:
        current = settings.load_settings(connection)
        policies.set_next_run(connection, physical.id, next_run(stored.policy, current, after=now))


def _failure_reason(status: JobStatus, errors: list[str]) -> str | None:
    return "; ".join(errors)[:1000] if status is JobStatus.FAILED and errors else None


def _summary(job: Job, spent: Phases, waits: dict[str, float], errors: list[str], now: datetime) -> str:
    counts = job.counts
    return json.dumps(
        {
            "total_rows": counts.selected,
            "success_rows": counts.deleted,
            "error_rows": counts.errors,
            "held_rows": counts.held,
            "skipped_rows": counts.skipped,
            "batches": counts.batches,
            "total_scan_task": job.tasks_total,
            "finished_scan_task": job.tasks_finished,
            "wall_seconds": round((now - (job.started_at or job.created_at)).total_seconds(), 3),
            "task_seconds": round(spent.lasted, 3),
            "select_seconds": round(spent.worked - spent.locked, 3),
            "delete_seconds": round(spent.locked, 3),
            "waited_seconds": round(spent.waited, 3),
            "other_seconds": round(spent.other, 3),
            "waits": waits,
            "scan_task_err": "; ".join(errors)[:1000],
        }
    )
