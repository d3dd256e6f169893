"""A job's life: planned and created in one transaction, settled when its tasks are done or it was told to stop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, policies, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.tasks import Spent
from lapse.engines.base import Declared
from lapse.errors import BadData, Blocked, Drift, JobExists, LapseError, NotPermitted, Refused, Retryable
from lapse.model.blocked import BlockCode
from lapse.model.job import Counts, Job, JobStatus, JobSummary, KeyRange, Path, PathKind, Task
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner.cascades import refuse_cascade
from lapse.runner.events import Held, HeldKind, Listener
from lapse.runner.policy_manager import fingerprint, load_bound
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


@dataclass(kw_only=True, slots=True)
class _Described:
    """`armed` is what the policy may delete from, where that was asked for the whole table."""

    declared: Declared
    version: tuple[int, int]
    until: float
    armed: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a task of a job begins with. `behind` is the share of the promised time that has passed."""

    job: Job
    stored: StoredPolicy
    physical: PhysicalTable | None
    behind: float


class JobKeeper:
    def __init__(self, catalog: Catalog, owner: str, listener: Listener) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._owner = owner
        self.listener = listener
        self._described: dict[tuple[int, TableName], _Described] = {}
        self._planned: dict[int, tuple[Planned, float]] = {}

    @retried
    def create(
        self, stored: StoredPolicy, physical: PhysicalTable, current: Settings, *, ends_grace: bool = False
    ) -> Job | None:
        """The new job of a physical table, or the one that another worker has just created; None if that has ended.

        Raises Blocked, or whatever else keeps the job from being planned. It `ends_grace` where a person has asked for
        it: then there is nothing left to wait for.
        """
        declared, cutoff, path, ranges = self._plan(stored, physical)
        behind = 0.0
        try:
            with self._catalog.writing(durable=False) as connection:
                if not policies.take_table(connection, physical, next_run(stored.policy, current, after=cutoff)):
                    raise JobExists(f"another worker has taken table {stored.table}")
                if ends_grace and stored.grace_until is not None:
                    policies.end_grace(connection, stored.id)
                if ranges:
                    behind = self.behind(connection, stored, physical.id, cutoff, physical.clean_at)
                job_id = stored_jobs.create_job(
                    connection,
                    table_id=physical.id,
                    stored=stored,
                    name=physical.name_in(stored.table),
                    cutoff=cutoff,
                    path=path,
                    fingerprint=fingerprint(declared),
                    ranges=ranges,
                    now=cutoff,
                    owner=self._owner,
                    behind=behind,
                )
                if not ranges:
                    now = self._engine.now(connection)
                    nothing = Spent()
                    summary = nothing.summary(since=cutoff, now=now)
                    stored_jobs.finish_job(
                        connection, job_id, JobStatus.FINISHED, counts=nothing.counts, summary=summary, now=now
                    )
                    policies.forget_failures(connection, physical.id)
                job = stored_jobs.get_job(connection, job_id)
        except JobExists:
            return self._active(physical)
        planned = Planned(job=job, stored=stored, physical=physical, behind=behind)
        self._planned[job.id] = planned, monotonic() + DESCRIBED_SECONDS
        if physical.blocked is not None:
            self._tell_unblocked(job.table, physical, cutoff)
        return self._announced(job)

    def _tell_unblocked(self, name: TableName, physical: PhysicalTable, now: datetime) -> None:
        assert physical.blocked is not None
        since = physical.blocked_since or now
        self.listener.table_unblocked(name, physical.blocked, max(0.0, (now - since).total_seconds()))

    def planned(self, connection: Connection, job_id: int, now: datetime) -> Planned:
        """As it is in the catalog, or as it was created here a moment ago. Raises Drift where the policy is gone."""
        found, until = self._planned.get(job_id, (None, 0.0))
        if found is not None and monotonic() < until:
            return found
        self._planned.pop(job_id, None)
        job = stored_jobs.get_job(connection, job_id)
        stored = policies.get_policy(connection, job.policy_id)
        if stored is None:
            raise Drift("the policy was removed")
        physical = policies.get_table(connection, job.table_id)
        behind = self.behind(connection, stored, job.table_id, now, physical.clean_at if physical else None)
        return Planned(job=job, stored=stored, physical=physical, behind=behind)

    def _announced(self, job: Job) -> Job:
        self.listener.job_created(job)
        if not job.status.is_active:
            self._announce_end(job)
        return job

    def _announce_end(self, job: Job) -> None:
        self.listener.job_ended(job)
        if job.status is JobStatus.FINISHED:
            with self._catalog.reading() as connection:
                before = stored_jobs.held_before(connection, job)
                if bool(before) is not bool(job.counts.held):
                    self._tell_held(connection, job)

    def _tell_held(self, connection: Connection, job: Job) -> None:
        """Rows that could not be deleted, once when that begins and once when it is over, whichever worker sees it."""
        count, fix = job.counts.held, f"lapse preview URL {job.table.whole} shows what holds them"
        if not count:
            reason = "no expired row is held any more"
            self.listener.released(Held(table=job.table, kind=HeldKind.ROWS, reason=reason, fix=fix))
            return
        which = "1 expired row" if count == 1 else f"{count:,} expired rows"
        reason = f"{which} could not be deleted: {self._holder(connection, job)}"
        self.listener.held(Held(table=job.table, kind=HeldKind.ROWS, reason=reason, fix=fix))

    def _holder(self, connection: Connection, job: Job) -> str:
        error = job.summary.scan_task_err if job.summary else ""
        stored = policies.get_policy(connection, job.policy_id)
        with suppress(LapseError):
            if stored is not None and not error:
                table = self.declared(connection, stored, job.table).table
                names = sorted({str(reference.table) for reference in table.holding_references})
                return f"rows of {', '.join(names)} refer to {'it' if job.counts.held == 1 else 'them'}"
        return error or "the database refused"

    def _active(self, physical: PhysicalTable) -> Job | None:
        with self._catalog.reading() as connection:
            return next((job for job in stored_jobs.active_jobs(connection) if job.table_id == physical.id), None)

    def settle_if_done(self, job_id: int) -> Job:
        """After a task has finished: a job with several may have others left."""
        return self.settle(job_id, only_if_done=True)

    @retried
    def settle(self, job_id: int, *, only_if_done: bool = False) -> Job:
        """Bring a job's status in line with its tasks and with what was asked of it."""
        with self._catalog.writing() as connection:
            job = stored_jobs.get_job(connection, job_id)
            is_done = job.tasks_finished >= job.tasks_total
            if not job.status.is_active or (only_if_done and not is_done):
                return job
            now = self._engine.now(connection)
            if is_done:
                ended = self._finish(connection, job, JobStatus.FINISHED, None, now)
            else:
                ended = self._obey(connection, job, now)
            job = stored_jobs.get_job(connection, job_id)
        if ended:
            self._announce_end(job)
        return job

    @retried
    def fail(self, job_id: int, error: Exception) -> Job:
        """End a job for an error that was met while working on it, and leave its table alone for a while."""
        blocked = as_blocked(error)
        with self._catalog.writing() as connection:
            job = stored_jobs.get_job(connection, job_id)
            now = self._engine.now(connection)
            ended = self._finish(connection, job, JobStatus.FAILED, blocked.message, now)
            physical = policies.get_table(connection, job.table_id)
            if ended and physical is not None:
                self._write_block(connection, physical, blocked, now)
            job = stored_jobs.get_job(connection, job_id)
        if ended:
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

    def _finish(self, connection: Connection, job: Job, status: JobStatus, reason: str | None, now: datetime) -> bool:
        """False if another worker has ended it already."""
        # No worker commits a batch between this sum and the end of the tasks: it would go uncounted.
        spent = tasks.spent(connection, job.id, locked=True)
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
        return stored_jobs.finish_job(
            connection, job.id, status, reason=reason, summary=summary, counts=spent.counts, now=now
        )

    def _try_again_soon(self, connection: Connection, table_id: int, now: datetime) -> None:
        physical = policies.get_table(connection, table_id)
        if physical is not None:
            policies.hasten_table(connection, physical, retry_at=now + _pause(physical.failures))

    def _obey(self, connection: Connection, job: Job, now: datetime) -> bool:
        """Do what was asked of a job that has work left; True if it ended. Workers at it stop first."""
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
        return False

    def _plan(self, stored: StoredPolicy, physical: PhysicalTable) -> tuple[Declared, datetime, Path, list[KeyRange]]:
        with self._engine.connection() as connection, self._engine.one_look(connection):
            declared = self.declared(connection, stored, physical.name_in(stored.table))
            armed = self.armed(connection, stored)
            cutoff = self._engine.now(connection)
            refuse_cascade(self._catalog, connection, self.declared(connection, stored).table, cutoff)
            target = self._engine.target(connection, declared, cutoff, armed=armed)
            rows = self._engine.estimate_rows(connection, declared.table)
            pieces = min(MAX_TASKS, rows // self._engine.features.rows_per_task)
            pieces = max(pieces, 2 if rows >= SHARED_ROWS and self._engine.features.concurrent_writers else 1)
            return declared, cutoff, target.path, self._engine.split(connection, target, pieces)

    def without_expired(
        self, stored: StoredPolicy, parts: Sequence[PhysicalTable]
    ) -> tuple[list[PhysicalTable], datetime]:
        """Those of a policy's leaves that cannot hold an expired row now, and when that was asked. Raises Blocked."""
        with self._engine.connection() as connection:
            self.armed(connection, stored)
            now = self._engine.now(connection)
            names = self._engine.unexpired_leaves(connection, self.declared(connection, stored), now)
        return [part for part in parts if part.name_in(stored.table) in names], now

    def look_again(self) -> None:
        """Forget what tables looked like, and the jobs of the last round."""
        self._described, self._planned = {}, {}

    def declared(self, connection: Connection, stored: StoredPolicy, name: TableName | None = None) -> Declared:
        """The policy as it holds for the whole table or one of its leaves, which looks as it did a moment ago."""
        return self._described_now(connection, stored, name or stored.table).declared

    def _described_now(self, connection: Connection, stored: StoredPolicy, name: TableName) -> _Described:
        found = self._described.get((stored.id, name))
        version = stored.version, stored.hold_version
        if found is None or found.version != version or monotonic() > found.until:
            declared = self._look(connection, stored, name)
            found = _Described(declared=declared, version=version, until=monotonic() + DESCRIBED_SECONDS)
            self._described[stored.id, name] = found
        return found

    def _look(self, connection: Connection, stored: StoredPolicy, name: TableName) -> Declared:
        if name.partition is None:
            return load_bound(self._engine, connection, stored)
        whole = self.declared(connection, stored)
        leaf = self._engine.leaf(connection, whole.table, name)
        if leaf is None:
            raise Drift(f"partition {name.partition} of table {stored.table} does not exist any more")
        return replace(whole, table=leaf, policy=stored.policy.for_partition(name.partition))

    def armed(self, connection: Connection, stored: StoredPolicy) -> str:
        """What the policy may delete from. Raises Blocked where that is not what it was declared on.

        Asked once for guard, plan and first task, which follow each other: every batch asks again by itself.
        """
        if stored.suspended is not None:
            raise Blocked(
                stored.suspended,
                "this database is a copy of the one in which the policy was declared",
                hint=f"if rows are to be deleted here, too: lapse resume URL {stored.table}",
            )
        described = self._described_now(connection, stored, stored.table)
        if described.armed is not None:
            return described.armed
        whole = described.declared
        if stored.armed is not None:
            armed = self._engine.check_armed(connection, whole, stored.armed)
        elif fingerprint(whole) == stored.fingerprint:
            # Declared with a version of Lapse that remembered no more than this.
            # On a connection of its own: what is installed stays, whatever becomes of the plan.
            with self._engine.connection() as renewing:
                self._engine.renew_parts(renewing, whole)
                armed = self._engine.check_armed(renewing, whole, self._engine.arm(renewing, whole))
        else:
            raise Blocked(
                BlockCode.COLUMN_CHANGED,
                f"a column of table {stored.table} that the policy or the paging depends on was changed",
                hint=f"check that the policy still means what it should, then: lapse resume URL {stored.table}",
            )
        if armed != stored.armed:
            # An account that may only look, as doctor's may, sees the same without writing it down.
            with suppress(NotPermitted), self._catalog.writing() as writing:
                policies.set_armed(writing, stored.id, armed, stored.fingerprint)
        described.armed = armed
        return armed

    @retried
    def block(self, stored: StoredPolicy, physical: PhysicalTable, blocked: Blocked, *, always: bool) -> Job | None:
        """Say why a table gets no job; returns the failed job that says so in the history.

        That is written when the reason is new, or `always`.
        """
        is_news = (physical.blocked, physical.blocked_reason) != (blocked.code, block_text(blocked))
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
        try:
            with self._catalog.writing() as connection:
                now = self._engine.now(connection)
                job_id = stored_jobs.create_job(
                    connection,
                    table_id=physical.id,
                    stored=stored,
                    name=physical.name_in(stored.table),
                    cutoff=now,
                    path=Path(kind=PathKind.PHYSICAL, evidence="not planned"),
                    fingerprint="",
                    ranges=(),
                    now=now,
                    owner=self._owner,
                )
                summary = JobSummary(error=error.message)
                stored_jobs.finish_job(
                    connection,
                    job_id,
                    JobStatus.FAILED,
                    reason=error.message,
                    counts=Counts(),
                    summary=summary,
                    now=now,
                )
                job = stored_jobs.get_job(connection, job_id)
        except JobExists:
            return self._active(physical)
        return self._announced(job)

    def behind(
        self, connection: Connection, stored: StoredPolicy, table_id: int, now: datetime, clean_at: datetime | None
    ) -> float:
        """The share of the promised time that has passed for a physical table."""
        known = [at for at in (stored_jobs.watermark(connection, table_id), clean_at) if at is not None]
        watermark = max(known, default=stored.created_at)
        return behind(stored.policy, watermark=watermark, now=now)


def _pause(failures: int) -> timedelta:
    return timedelta(seconds=min(BLOCKED_SECONDS * 2.0 ** min(failures, 10), MAX_BLOCKED_SECONDS))
