"""A job's life: planned and created in one transaction, settled when its tasks are done or it was told to stop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, new_jobs, policies, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.jobs import Before
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.tasks import Progress, Spent
from lapse.engines.base import Batch, BoundPolicy, Target
from lapse.errors import BadData, Blocked, Drift, JobExists, LapseError, NotPermitted, Refused, Retryable
from lapse.model.blocked import BlockCode
from lapse.model.job import Counts, Job, JobKey, JobStatus, JobSummary, KeyRange, Path, PathKind, Task
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner.atonce import AtOnce, Done
from lapse.runner.cascades import refuse_cascade
from lapse.runner.describing import DESCRIBED_SECONDS, Describer
from lapse.runner.events import Held, HeldKind, Listener
from lapse.runner.exports import refuse_unwritable
from lapse.runner.policy_manager import fingerprint
from lapse.runner.promise import behind
from lapse.runner.retry import retried
from lapse.runner.verdict import judge
from lapse.schedule import next_run

MAX_TASKS = 64
SHARED_ROWS = 200_000
"""A table with as many rows is worth sharing between two tasks, where they do not wait for each other."""
MISSED_BEATS = 2
"""An owner that has been silent for this many heartbeat intervals is taken for dead."""


CLEAN_FOR = tuple(timedelta(hours=hours) for hours in (1, 2, 4, 8, 16, 24))
"""A leaf whose bounds say that it cannot hold an expired row for one of these is not looked at for so long, unless it
gets other bounds or its policy is changed."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a task of a job begins with. `behind` is the share of the promised time that has passed."""

    job: Job
    stored: StoredPolicy
    physical: PhysicalTable | None
    behind: float
    target: Target | None = None
    """As it was planned here, a moment ago."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A job, and the task of it that was claimed when it was created."""

    job: Job | None
    task: Task | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """`most` rows may be deleted at once, where that is all of the job; 0 where it is not tried."""

    declared: BoundPolicy
    target: Target
    cutoff: datetime
    ranges: list[KeyRange]
    most: int


class JobKeeper(Describer):
    def __init__(self, catalog: Catalog, owner: str, listener: Listener) -> None:
        super().__init__(catalog)
        self._owner = owner
        self.listener = listener
        self._planned: dict[int, tuple[Planned, float]] = {}
        self._held_before: dict[int, int] = {}
        """Job → rows that could not be deleted when its table was last gone through, where that was asked just now."""
        self._blocks: dict[int, str] = {}
        """Physical table → why it was blocked when this process last wrote that down."""

    def create(
        self, stored: StoredPolicy, physical: PhysicalTable, current: Settings, *, ends_grace: bool = False
    ) -> Job | None:
        """The new job of a physical table, or the one that another worker has just created; None if that has ended.

        Raises Blocked, or whatever else keeps the job from being planned. It `ends_grace` where a person has asked for
        it: then there is nothing left to wait for.
        """
        return self.begin(stored, physical, current, ends_grace=ends_grace).job

    @retried
    def begin(
        self,
        stored: StoredPolicy,
        physical: PhysicalTable,
        current: Settings,
        *,
        ends_grace: bool = False,
        claims: Callable[[], bool] = lambda: False,
        at_once: AtOnce | None = None,
    ) -> Begun:
        """As `create`; if it `claims`, this worker begins at once with a task that is the only one of the new job.

        A small job is done and recorded by `at_once`, and has ended.
        """
        ends_grace = ends_grace and stored.grace_until is not None
        most = 0 if at_once is None or ends_grace else at_once.most_rows(stored, current)
        with self._engine.connection() as connection:
            plan = self._plan(connection, stored, physical, most)
            if not plan.most:
                return self._begun(connection, stored, physical, current, plan, ends_grace=ends_grace, claims=claims)
        done = None if at_once is None else self._do_at_once(at_once, stored, physical, current, plan)
        if isinstance(done, Begun):
            return done
        with self._engine.connection() as connection:
            plan = plan if done is None else replace(plan, ranges=[])
            return self._begun(connection, stored, physical, current, plan, ends_grace=ends_grace, claims=claims)

    def _begun(
        self,
        connection: Connection,
        stored: StoredPolicy,
        physical: PhysicalTable,
        current: Settings,
        plan: _Plan,
        *,
        ends_grace: bool,
        claims: Callable[[], bool],
    ) -> Begun:
        taken = claims()
        try:
            with self._catalog.writing_on(connection, durable=False) as writing:
                begun = self._create(writing, stored, physical, current, plan, ends_grace=ends_grace, claims=taken)
        except JobExists:
            return Begun(job=self._active(connection, physical))
        assert begun.job is not None
        if physical.blocked is not None:
            self._tell_unblocked(begun.job.table, physical, plan.cutoff)
        self._announced(begun.job)
        return begun

    def _do_at_once(
        self, at_once: AtOnce, stored: StoredPolicy, physical: PhysicalTable, current: Settings, plan: _Plan
    ) -> Begun | Done | None:
        """The job, where it was done; Done where there was nothing to do, and None where it goes the ordinary way."""

        def record(connection: Connection, batch: Batch, seconds: float) -> Job:
            bound = self._catalog.bind(connection)
            before = self._take(bound, stored, physical, current, plan, is_clean=True, waits=False)
            counts = Counts(selected=batch.selected, deleted=batch.deleted, batches=1)
            spent = Spent(
                lasted=seconds, worked=seconds, locked=seconds - batch.read_seconds, counts=counts, tasks=1, finished=1
            )
            clock = self._engine.clock
            # The database's time, without asking for it once more.
            now = plan.cutoff + timedelta(seconds=seconds) if clock is None else clock.now()
            ended = self._recorded(bound, stored, physical, plan, spent, now=now, counts=counts)
            self._held_before[ended.id] = before.held
            return ended

        (span,) = plan.ranges
        try:
            done = at_once.run(plan.target, span, plan.most, record)
        except JobExists:
            with self._engine.connection() as connection:
                return Begun(job=self._active(connection, physical))
        if done is None or done.job is None:
            return done
        job = done.job
        if done.batch.armed is not None and done.batch.armed != plan.target.armed:
            self.renew_armed(stored, done.batch.armed, known=plan.target.armed)
        if physical.blocked is not None:
            self._tell_unblocked(job.table, physical, plan.cutoff)
        self.listener.job_created(job)
        at_once.tell(done, job, str(stored.table) if stored.policy.label_metrics else None)
        self.announce_end(job)
        at_once.rest(done, job)
        return Begun(job=job)

    def _create(
        self,
        connection: Connection,
        stored: StoredPolicy,
        physical: PhysicalTable,
        current: Settings,
        plan: _Plan,
        *,
        ends_grace: bool,
        claims: bool,
    ) -> Begun:
        # The policy's row before its tables', as in everything else that locks both: no two wait for each other.
        if ends_grace:
            policies.end_grace(connection, stored.id)
        before = self._take(connection, stored, physical, current, plan, is_clean=not plan.ranges)
        if not plan.ranges:
            ended = self._recorded(connection, stored, physical, plan, Spent(), now=self._engine.now(connection))
            self._held_before[ended.id] = before.held
            return Begun(job=ended)
        late = self._lateness(stored, before, plan.cutoff, physical.clean_at)
        made = new_jobs.create_job(
            connection,
            table_id=physical.id,
            stored=stored,
            name=physical.name_in(stored.table),
            cutoff=plan.cutoff,
            path=plan.target.path,
            fingerprint=fingerprint(plan.declared),
            ranges=plan.ranges,
            now=plan.cutoff,
            owner=self._owner,
            behind=late,
            claims=claims,
        )
        self._held_before[made.job.id] = before.held
        planned = Planned(job=made.job, stored=stored, physical=physical, behind=late, target=plan.target)
        self._planned[made.job.id] = planned, monotonic() + DESCRIBED_SECONDS
        return Begun(job=made.job, task=made.task)

    def _take(
        self,
        connection: Connection,
        stored: StoredPolicy,
        physical: PhysicalTable,
        current: Settings,
        plan: _Plan,
        *,
        is_clean: bool,
        waits: bool = True,
    ) -> Before:
        """The table, for a new job. Raises JobExists where another worker has it, or the plan is none any more."""
        if not policies.is_current(connection, stored, waits=waits):
            raise JobExists(f"the policy of table {stored.table}, or what is held, was changed while a job was planned")
        due = next_run(stored.policy, current, after=plan.cutoff)
        if not policies.take_table(connection, physical, due, is_clean=is_clean):
            raise JobExists(f"another worker has taken table {stored.table}")
        return stored_jobs.before(connection, physical.id)

    def _recorded(
        self,
        connection: Connection,
        stored: StoredPolicy,
        physical: PhysicalTable,
        plan: _Plan,
        spent: Spent,
        *,
        now: datetime,
        counts: Counts | None = None,
    ) -> Job:
        """A job that ends as it begins."""
        return new_jobs.record_job(
            connection,
            table_id=physical.id,
            stored=stored,
            name=physical.name_in(stored.table),
            status=JobStatus.FINISHED,
            cutoff=plan.cutoff,
            path=plan.target.path,
            fingerprint=fingerprint(plan.declared),
            summary=spent.summary(since=plan.cutoff, now=now),
            now=now,
            owner=self._owner,
            counts=counts,
        )

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
        connection = self._catalog.bind(connection)
        job = stored_jobs.get_job(connection, job_id)
        stored = policies.get_policy(connection, job.policy_id)
        if stored is None:
            raise Drift("the policy was removed")
        physical = policies.get_table(connection, job.table_id)
        before = stored_jobs.before(connection, job.table_id)
        late = self._lateness(stored, before, now, physical.clean_at if physical else None)
        return Planned(job=job, stored=stored, physical=physical, behind=late)

    def _announced(self, job: Job) -> Job:
        self.listener.job_created(job)
        if not job.status.is_active:
            self.announce_end(job)
        return job

    def announce_end(self, job: Job) -> None:
        self.listener.job_ended(job)
        before = self._held_before.pop(job.id, None)
        if job.status is not JobStatus.FINISHED or (before is not None and bool(before) is bool(job.counts.held)):
            return
        with self._catalog.reading() as connection:
            if before is None:
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

    def _active(self, connection: Connection, physical: PhysicalTable) -> Job | None:
        active = stored_jobs.active_jobs(self._catalog.bind(connection))
        return next((job for job in active if job.table_id == physical.id), None)

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

    def _plan(self, connection: Connection, stored: StoredPolicy, physical: PhysicalTable, most: int) -> _Plan:
        """A table of at `most` so many rows is not looked into: its one batch is the look."""
        with self._engine.one_look(connection):
            declared = self.declared(connection, stored, physical.name_in(stored.table))
            armed = self.armed(connection, stored)
            refuse_unwritable(self._catalog.bind(connection), stored)
            cutoff = self._engine.now(connection)
            refuse_cascade(self._catalog, connection, self.declared(connection, stored).table, cutoff)
            target = self._engine.target(connection, declared, cutoff, armed=armed)
            rows = self._engine.planned_rows(connection, target)
            pieces = min(MAX_TASKS, rows // self._engine.features.rows_per_task)
            pieces = max(pieces, 2 if rows >= SHARED_ROWS and self._engine.features.concurrent_writers else 1)
            ranges = self._engine.split(connection, target, pieces, looks=rows > most)
            if rows > most or len(ranges) != 1:
                most = 0
            return _Plan(declared=declared, target=target, cutoff=cutoff, ranges=ranges, most=most)

    def look_again(self) -> None:
        """Forget what tables looked like, and the jobs of the last round."""
        super().look_again()
        self._planned, self._held_before = {}, {}

    def without_expired(
        self, stored: StoredPolicy, parts: Sequence[PhysicalTable]
    ) -> list[tuple[PhysicalTable, datetime]]:
        """Those of a policy's leaves that cannot hold an expired row now, and how long they cannot. Raises Blocked."""
        names = [part.name_in(stored.table) for part in parts]
        with self._engine.connection() as connection:
            self.armed(connection, stored)
            now = self._engine.now(connection)
            declared, until = self.declared(connection, stored), now + CLEAN_FOR[-1]
            found = self._engine.clean_leaves(connection, declared, names, now, until=until)
        # Few different times, so that they are written down together.
        steps = [now, *(now + step for step in CLEAN_FOR)]
        known = ((part, found[name]) for part, name in zip(parts, names, strict=True) if name in found)
        return [(part, steps[max(0, bisect_right(steps, end) - 1)]) for part, end in known]

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

    def _lateness(self, stored: StoredPolicy, before: Before, now: datetime, clean_at: datetime | None) -> float:
        """The share of the promised time that has passed for a physical table."""
        known = [at for at in (before.watermark, clean_at) if at is not None]
        return behind(stored.policy, watermark=max(known, default=stored.created_at), now=now)


def _pause(failures: int) -> timedelta:
    return timedelta(seconds=min(BLOCKED_SECONDS * 2.0 ** min(failures, 10), MAX_BLOCKED_SECONDS))
