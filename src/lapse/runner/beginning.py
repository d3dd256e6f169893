"""How a job begins: planned, then created with its tasks, or done at once, in one transaction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, new_jobs, policies
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.jobs import Before
from lapse.catalog.new_jobs import Created
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.tasks import NOTHING_DONE, Progress, Spent
from lapse.engines.base import Batch, BoundPolicy, Target
from lapse.errors import Drift, JobExists, LapseError
from lapse.model.job import Counts, Job, JobStatus, KeyRange, Task
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
from lapse.schedule import next_run

MAX_TASKS = 64
SHARED_ROWS = 200_000
"""A table with as many rows is worth sharing between two tasks, where they do not wait for each other."""
CLEAN_FOR = tuple(timedelta(hours=hours) for hours in (1, 2, 4, 8, 16, 24))
"""A leaf whose bounds say that it cannot hold an expired row for one of these is not looked at for so long, unless it
gets other bounds or its policy is changed."""


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
    """`most` rows may be deleted in the transaction that creates the job; 0 where that is not tried. It `may_go_on`
    after that."""

    stored: StoredPolicy
    physical: PhysicalTable
    settings: Settings
    declared: BoundPolicy
    target: Target
    cutoff: datetime
    ranges: list[KeyRange]
    most: int
    may_go_on: bool


class JobMaker(Describer):
    def __init__(self, catalog: Catalog, owner: str, listener: Listener) -> None:
        super().__init__(catalog)
        self._owner = owner
        self.listener = listener
        self._planned: dict[int, tuple[Planned, float]] = {}
        self._held_before: dict[int, int] = {}
        """Job → rows that could not be deleted when its table was last gone through, where that was asked just now."""

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
        """As `create`; if it `claims`, this worker begins at once with the first task of the new job.

        A small job is done and recorded by `at_once`, and has ended.
        """
        ends_grace = ends_grace and stored.grace_until is not None
        with self._engine.connection() as connection:
            plan = self._plan(connection, stored, physical, current, at_once)
            if not plan.most:
                return self._begun(connection, plan, ends_grace=ends_grace, claims=claims)
        done = None if at_once is None else self._do_at_once(at_once, plan, ends_grace=ends_grace, claims=claims)
        if isinstance(done, Begun):
            return done
        with self._engine.connection() as connection:
            # What was planned for one batch has not been looked into.
            plan = self._plan(connection, stored, physical, current, None) if done is None else replace(plan, ranges=[])
            return self._begun(connection, plan, ends_grace=ends_grace, claims=claims)

    def _begun(self, connection: Connection, plan: _Plan, *, ends_grace: bool, claims: Callable[[], bool]) -> Begun:
        physical, taken = plan.physical, claims()
        self.keep_armed(plan.stored, plan.target.armed)
        try:
            with self._catalog.writing_on(connection, durable=False) as writing:
                begun = self._create(writing, plan, ends_grace=ends_grace, claims=taken)
        except JobExists:
            return Begun(job=self._active(connection, physical))
        assert begun.job is not None
        if physical.blocked is not None:
            self._tell_unblocked(begun.job.table, physical, plan.cutoff)
        self._announced(begun.job)
        return begun

    def _do_at_once(
        self, at_once: AtOnce, plan: _Plan, *, ends_grace: bool, claims: Callable[[], bool]
    ) -> Begun | Done | None:
        """The job, where it was begun; Done where there was nothing to do, and None where it goes the ordinary way."""
        stored, physical = plan.stored, plan.physical
        taken = plan.may_go_on and claims()
        renewed: str | None = None

        def record(connection: Connection, batch: Batch, seconds: float) -> Created:
            nonlocal renewed
            bound, armed = self._catalog.bind(connection), batch.armed or plan.target.armed
            # Leaves of one policy are done by several workers at the same time, each of which would wait for its row.
            renewed = armed if physical.partition is None and self.is_new(stored, armed) else None
            changes = renewed is not None or ends_grace
            before = self._take(bound, plan, is_clean=batch.done, waits=False, changes=changes)
            if renewed is not None:
                self.write_armed(bound, stored, renewed, known=stored.armed)
            if ends_grace:
                policies.end_grace(bound, stored.id)
            counts = Counts(selected=batch.selected, deleted=batch.deleted, batches=1)
            progress = Progress(
                cursor=batch.cursor,
                sweep=0,
                counts=counts,
                worked_seconds=seconds,
                waited_seconds=0.0,
                locked_seconds=seconds - batch.read_seconds,
                lasted_seconds=seconds,
            )
            if not batch.done:
                return self._made(bound, plan, before, claims=taken, progress=progress)
            clock = self._engine.clock
            # The database's time, without asking for it once more.
            now = plan.cutoff + timedelta(seconds=seconds) if clock is None else clock.now()
            ended = self._recorded(bound, plan, Spent.of(progress), now=now, counts=counts)
            self._held_before[ended.id] = before.held
            return Created(job=ended)

        (span,) = plan.ranges
        timeout = plan.settings.statement_timeout.approximate_seconds
        try:
            done = at_once.run(replace(plan.target, statement_seconds=timeout), span, plan.most, record)
        except JobExists:
            with self._engine.connection() as connection:
                return Begun(job=self._active(connection, physical))
        if done is None or done.made is None:
            return done
        job = done.made.job
        if renewed is not None:
            self.note_armed(stored, renewed, known=stored.armed)
        else:
            self.keep_armed(stored, done.batch.armed or plan.target.armed)
        if physical.blocked is not None:
            self._tell_unblocked(job.table, physical, plan.cutoff)
        # Listeners count what comes after it.
        self.listener.job_created(replace(job, counts=Counts()))
        at_once.tell(done, job, str(stored.table) if stored.policy.label_metrics else None)
        if not job.status.is_active:
            self.announce_end(job)
        at_once.rest(done, job)
        return Begun(job=job, task=done.made.task)

    def _create(self, connection: Connection, plan: _Plan, *, ends_grace: bool, claims: bool) -> Begun:
        stored = plan.stored
        # The policy's row before its tables', as in everything else that locks both: no two wait for each other.
        if ends_grace:
            policies.end_grace(connection, stored.id)
        before = self._take(connection, plan, is_clean=not plan.ranges)
        if not plan.ranges:
            ended = self._recorded(connection, plan, Spent(), now=self._engine.now(connection))
            self._held_before[ended.id] = before.held
            return Begun(job=ended)
        made = self._made(connection, plan, before, claims=claims)
        return Begun(job=made.job, task=made.task)

    def _made(
        self,
        connection: Connection,
        plan: _Plan,
        before: Before,
        *,
        claims: bool,
        progress: Progress = NOTHING_DONE,
    ) -> Created:
        """A job that goes on, with its tasks."""
        stored, physical = plan.stored, plan.physical
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
            progress=progress,
        )
        self._held_before[made.job.id] = before.held
        planned = Planned(job=made.job, stored=stored, physical=physical, behind=late, target=plan.target)
        self._planned[made.job.id] = planned, monotonic() + DESCRIBED_SECONDS
        return made

    def _take(
        self, connection: Connection, plan: _Plan, *, is_clean: bool, waits: bool = True, changes: bool = False
    ) -> Before:
        """The table, for a new job. Raises JobExists where another worker has it, or the plan is none any more."""
        stored, physical = plan.stored, plan.physical
        if not policies.is_current(connection, stored, waits=waits, changes=changes):
            raise JobExists(f"the policy of table {stored.table}, or what is held, was changed while a job was planned")
        due = next_run(stored.policy, plan.settings, after=plan.cutoff)
        if not policies.take_table(connection, physical, due, is_clean=is_clean):
            raise JobExists(f"another worker has taken table {stored.table}")
        return stored_jobs.before(connection, physical.id)

    def _recorded(
        self, connection: Connection, plan: _Plan, spent: Spent, *, now: datetime, counts: Counts | None = None
    ) -> Job:
        """A job that ends as it begins."""
        return new_jobs.record_job(
            connection,
            table_id=plan.physical.id,
            stored=plan.stored,
            name=plan.physical.name_in(plan.stored.table),
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

    def _plan(
        self,
        connection: Connection,
        stored: StoredPolicy,
        physical: PhysicalTable,
        current: Settings,
        at_once: AtOnce | None,
    ) -> _Plan:
        """A small table whose job is done `at_once` is not looked into: its one batch is the look."""
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
            most = 0 if at_once is None else at_once.limit_for(stored, current, target, rows, physical.id)
            # Where the server knows no number of rows, it says that there are none.
            may_go_on = AtOnce.may_go_on(rows)
            ranges = self._engine.split(connection, target, pieces, looks=may_go_on or not most)
            most = most if len(ranges) == 1 else 0
            return _Plan(
                stored=stored,
                physical=physical,
                settings=current,
                declared=declared,
                target=target,
                cutoff=cutoff,
                ranges=ranges,
                most=most,
                may_go_on=may_go_on,
            )

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

    def _lateness(self, stored: StoredPolicy, before: Before, now: datetime, clean_at: datetime | None) -> float:
        """The share of the promised time that has passed for a physical table."""
        known = [at for at in (before.watermark, clean_at) if at is not None]
        return behind(stored.policy, watermark=max(known, default=stored.created_at), now=now)
