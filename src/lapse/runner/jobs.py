"""A job's life: it begins, and is settled when its tasks are done or it was told to stop."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection

from lapse.catalog import Catalog, new_jobs, policies, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.tasks import Progress, Spent
from lapse.errors import BadData, Blocked, LapseError, NotPermitted, Refused, Retryable
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobKey, JobStatus, JobSummary, Path, PathKind, Task
from lapse.model.settings import Settings
from lapse.runner.beginning import JobMaker
from lapse.runner.events import Listener
from lapse.runner.retry import retried
from lapse.runner.verdict import judge

MISSED_BEATS = 2
"""An owner that has been silent for this many heartbeat intervals is taken for dead."""

TASK_FAILURES = 3
"""Errors in a row, other than those that waiting cures, after which a task fails its job."""
TASK_BACKOFF_SECONDS, MAX_TASK_BACKOFF_SECONDS = 1.0, 60.0
BLOCKED_SECONDS, MAX_BLOCKED_SECONDS = 15.0, 600.0
"""A blocked table, or one with locked rows, is looked at again after this long, each time twice as long."""


def as_blocked(error: Exception) -> Blocked:
    """Why a table is blocked, by the error that was met there."""
    match error:
        case Blocked():
            return error
        case NotPermitted():
            code = BlockCode.PRIVILEGE
        case Retryable():
            code = BlockCode.LOCKED
        case BadData():
            code = BlockCode.BAD_DATA
        case Refused():
            code = BlockCode.UNSUPPORTED
        case _:
            code = BlockCode.ERROR
    if isinstance(error, LapseError):
        return Blocked(code, error.message, hint=error.hint)
    return Blocked(code, f"{type(error).__name__}: {error}")


def block_text(blocked: Blocked) -> str:
    return f"{blocked.message}; {blocked.hint}" if blocked.hint else blocked.message


def stale_before(now: datetime, current: Settings) -> datetime:
    return now - MISSED_BEATS * timedelta(seconds=current.heartbeat_interval.approximate_seconds)


class JobKeeper(JobMaker):
    def __init__(self, catalog: Catalog, owner: str, listener: Listener) -> None:
        super().__init__(catalog, owner, listener)
        self._blocks: dict[int, str] = {}
        """Physical table → why it was blocked when this process last wrote that down."""

    @retried
    def finish(self, job: Job, lease: Task, progress: Progress) -> tuple[Job, bool]:
        """A task has come to its end: written down in one transaction with the end of its job, if no other is left.

        Returns the job as it is then, and whether it has ended with it; the caller announces that. Raises Fenced where
        the task is another worker's now.
        """
        with self._catalog.writing(durable=False) as connection:
            now = self._engine.now(connection)
            if job.tasks_total == 1:
                tasks.end_task(connection, lease)
                ended = self._end(connection, job, JobStatus.FINISHED, None, now, Spent.of(progress), has_tasks=False)
            else:
                tasks.finish_task(connection, lease, progress)
                job = stored_jobs.get_job(connection, job.id)
                is_done = job.status.is_active and job.tasks_finished >= job.tasks_total
                ended = self._finish(connection, job, JobStatus.FINISHED, None, now) if is_done else None
        return ended or job, ended is not None

    @retried
    def settle(self, job_id: int) -> Job:
        """Bring a job's status in line with its tasks and with what was asked of it."""
        with self._catalog.writing(durable=False) as connection:
            job = stored_jobs.get_job(connection, job_id)
            if not job.status.is_active:
                return job
            now = self._engine.now(connection)
            if job.tasks_finished >= job.tasks_total:
                ended = self._finish(connection, job, JobStatus.FINISHED, None, now)
            else:
                ended = self._obey(connection, job, now)
            if ended is None:
                job = stored_jobs.get_job(connection, job_id)
        if ended is not None:
            self.announce_end(ended)
        return ended or job

    @retried
    def fail(self, job_id: int, error: Exception) -> Job:
        """End a job for an error that was met while working on it, and leave its table alone for a while."""
        blocked = as_blocked(error)
        with self._catalog.writing() as connection:
            job = stored_jobs.get_job(connection, job_id)
            now = self._engine.now(connection)
            ended = self._finish(connection, job, JobStatus.FAILED, blocked.message, now)
            physical = policies.get_table(connection, job.table_id)
            if ended is not None and physical is not None:
                self._write_block(connection, physical, blocked, now)
            job = ended or stored_jobs.get_job(connection, job_id)
        if ended is not None:
            self.listener.job_ended(job)
            self.listener.table_blocked(job.table, blocked)
        return job

    @retried
    def postpone(self, task: Task, error: LapseError) -> Job:
        """A task that was given back is not claimed again at once; one that fails again and again fails its job."""
        failures = task.failures + 1
        if not isinstance(error, Retryable) and failures >= TASK_FAILURES:
            return self.fail(task.job_id, error)
        pause = timedelta(seconds=min(TASK_BACKOFF_SECONDS * 2.0**task.failures, MAX_TASK_BACKOFF_SECONDS))
        with self._catalog.writing(durable=False) as connection:
            not_before = self._engine.stopwatch(connection) + pause
            tasks.postpone_task(connection, task.id, failures=failures, not_before=not_before)
            return stored_jobs.get_job(connection, task.job_id)

    def _finish(
        self, connection: Connection, job: Job, status: JobStatus, reason: str | None, now: datetime
    ) -> Job | None:
        """The job as it ends; None if another worker has ended it already."""
        # No worker commits a batch between this sum and the end of the tasks: it would go uncounted.
        return self._end(connection, job, status, reason, now, tasks.spent(connection, job.id, locked=True))

    def _end(
        self,
        connection: Connection,
        job: Job,
        status: JobStatus,
        reason: str | None,
        now: datetime,
        spent: Spent,
        *,
        has_tasks: bool = True,
    ) -> Job | None:
        summary = spent.summary(since=job.started_at or job.created_at, now=now)
        if status is JobStatus.FINISHED and not spent.counts.skipped:
            policies.forget_failures(connection, job.table_id)
        else:
            policies.open_gate(connection, job.table_id)
        if status is JobStatus.FINISHED and spent.counts.skipped:
            status, reason = (
                JobStatus.INCOMPLETE,
                f"{spent.counts.skipped:,} expired rows were locked by other sessions",
            )
            self._try_again_soon(connection, job.table_id, now)
        elif status is JobStatus.TIMED_OUT and spent.pauses:
            reason = f"{reason}; it waited: {'; '.join(spent.pauses)}"
        done = stored_jobs.finish_job(
            connection,
            JobKey.of(job),
            status,
            reason=reason,
            summary=summary,
            counts=spent.counts,
            now=now,
            has_tasks=has_tasks,
        )
        if not done:
            return None
        return stored_jobs.ended(job, status, reason=reason, summary=summary, counts=spent.counts, now=now)

    def _try_again_soon(self, connection: Connection, table_id: int, now: datetime) -> None:
        physical = policies.get_table(connection, table_id)
        if physical is not None:
            policies.hasten_table(connection, physical, retry_at=now + _pause(physical.failures))

    def _obey(self, connection: Connection, job: Job, now: datetime) -> Job | None:
        """Do what was asked of a job that has work left; returns it if it ended. Workers at it stop first."""
        current = settings.load_settings(connection)
        stored = policies.get_policy(connection, job.policy_id)
        verdict = judge(job, stored, current, now)
        if verdict.status is JobStatus.PAUSED:
            stored_jobs.mark_job(connection, job.id, JobStatus.PAUSED, verdict.reason, now)
        elif verdict.status is None:
            if job.status is JobStatus.PAUSED:
                stored_jobs.mark_job(connection, job.id, JobStatus.WAITING, None, now)
        elif tasks.live_owners(connection, job.id, stale_before=stale_before(now, current)):
            stored_jobs.mark_job(connection, job.id, JobStatus.CANCELLING, verdict.reason, now)
        else:
            return self._finish(connection, job, verdict.status, verdict.reason, now)
        return None

    @retried
    def block(self, stored: StoredPolicy, physical: PhysicalTable, blocked: Blocked, *, always: bool) -> Job | None:
        """Say why a table gets no job; returns the failed job that says so in the history.

        That is written when the reason is new, by its code or by what this process has seen, or `always`.
        """
        text = block_text(blocked)
        is_news = physical.blocked != blocked.code or self._blocks.get(physical.id, text) != text
        self._blocks[physical.id] = text
        with self._catalog.writing() as connection:
            now = self._engine.now(connection)
            self._write_block(connection, physical, blocked, now)
        if is_news:
            self.listener.table_blocked(physical.name_in(stored.table), blocked)
        return self._record_failure(stored, physical, blocked) if is_news or always else None

    @retried
    def show_gate(self, job: Job, shut: Blocked | None) -> None:
        """Say that a job waits at a gate that stays closed, or that it does so no more."""
        with self._catalog.writing() as connection:
            now = self._engine.now(connection)
            before = policies.get_table(connection, job.table_id)
            if shut is None:
                policies.open_gate(connection, job.table_id)
            else:
                policies.shut_gate(connection, job.table_id, block_text(shut), now)
        if shut is not None:
            self.listener.table_blocked(job.table, shut)
        elif before is not None and before.blocked is BlockCode.GATE:
            self._tell_unblocked(job.table, before, now)

    def _write_block(self, connection: Connection, physical: PhysicalTable, blocked: Blocked, now: datetime) -> None:
        code, retry_at = BlockCode(blocked.code), now + _pause(physical.failures)
        policies.block_table(connection, physical, code, block_text(blocked), retry_at=retry_at, now=now)

    def _record_failure(self, stored: StoredPolicy, physical: PhysicalTable, error: LapseError) -> Job | None:
        """A failed job in the history is how a policy that cannot run is noticed."""
        with self._catalog.writing() as connection:
            active = self._active(connection, physical)
            if active is not None:
                return active
            now = self._engine.now(connection)
            failed = new_jobs.record_job(
                connection,
                table_id=physical.id,
                stored=stored,
                name=physical.name_in(stored.table),
                status=JobStatus.FAILED,
                cutoff=now,
                path=Path(kind=PathKind.PHYSICAL, evidence="not planned"),
                fingerprint="",
                summary=JobSummary(error=error.message),
                now=now,
                owner=self._owner,
                reason=error.message,
            )
        return self._announced(failed)


def _pause(failures: int) -> timedelta:
    return timedelta(seconds=min(BLOCKED_SECONDS * 2.0 ** min(failures, 10), MAX_BLOCKED_SECONDS))
