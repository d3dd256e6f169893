"""Which tables are due, and the jobs for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from lapse.catalog import Catalog, policies, settings, workers
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.errors import Drift
from lapse.model.job import Job, JobStatus
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner import declared as declaring
from lapse.runner.clockwatch import ClockWatch
from lapse.runner.comments import CommentReader
from lapse.runner.guard import Guard
from lapse.runner.identity import DISARMED, IdentityGuard
from lapse.runner.jobs import JobKeeper
from lapse.runner.retry import retried
from lapse.runner.verdict import judge
from lapse.schedule import next_run

SYNC_SECONDS = 60.0
"""A new partition is seen this soon."""
WORKER_MEMORY = timedelta(hours=1)
"""How long a worker that died stays in the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A table that was due, or asked for, and got no job; `held` ones wait for somebody to confirm them."""

    table: TableName
    reason: str
    held: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """One round of the scheduler: the jobs that are active now, and what was skipped."""

    jobs: tuple[Job, ...]
    skipped: tuple[Skip, ...] = ()


class Scheduler:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._keeper = keeper
        self._watch = ClockWatch()
        self._synced_at: dict[int, float] = {}
        self._identity = IdentityGuard(catalog)
        self._guard = Guard(catalog, keeper)
        self.comments = CommentReader(catalog)

    def run_once(self, *, only: StoredPolicy | None = None) -> Tick:
        """Settle what is active and create what is due; with `only`, that policy's jobs whether due or not."""
        self._keeper.look_again()
        self._identity.run_once()
        problems = {problem.table: problem.reason for problem in self.comments.refresh()}
        with self._catalog.reading() as connection:
            now = self._catalog.engine.now(connection)
            current = settings.load_settings(connection)
            # Read again where one was given: the guard or a comment may have changed it.
            everything = policies.list_policies(connection)
            known = [p for p in everything if only is None or p.id == only.id]
            tables = policies.list_tables(connection)
            active = stored_jobs.active_jobs(connection)
        current = self._check_clock(now, current)
        by_id = {stored.id: stored for stored in everything}
        jobs: dict[int, Job] = {}
        for job in active:
            if _is_unsettled(job, by_id.get(job.policy_id), current, now):
                job = self._keeper.settle(job.id)
            if job.status.is_active and (only is None or job.policy_id == only.id):
                jobs[job.id] = job
        skipped = [Skip(table=table, reason=reason) for table, reason in problems.items()] if only is None else []
        for stored in known:
            if stored.source == policies.COMMENT and stored.table in problems:
                continue
            parts = [physical for physical in tables if physical.policy_id == stored.id]
            if only is not None or self._is_stale(stored, parts, now):
                parts = self._sync(stored, parts, {other.table for other in everything} - {stored.table})
            due = [physical for physical in parts if only is not None or _is_due(physical, now)]
            reasons = {physical.id: _why_not(stored, physical, current, now) for physical in due}
            free = [physical for physical in due if reasons[physical.id] is None]
            held = self._guard.why_held(stored, parts) if free else stored.held if stored.policy.guard else None
            if held is not None:
                self._look_again_later(stored, free, current, now)
                skipped += [
                    Skip(table=_name(stored, part), reason=reasons.get(part.id) or held, held=True) for part in parts
                ]
                continue
            for physical in due:
                reason = reasons[physical.id]
                if reason is not None:
                    skipped.append(Skip(table=_name(stored, physical), reason=reason))
                elif (made := self._keeper.create(stored, physical, current)) is not None:
                    jobs[made.id] = made
        self._forget(now, current)
        return Tick(jobs=tuple(jobs.values()), skipped=tuple(skipped))

    @retried
    def _look_again_later(
        self, stored: StoredPolicy, held: list[PhysicalTable], current: Settings, now: datetime
    ) -> None:
        """At the time of its next run: the rows may be others then."""
        if held:
            with self._catalog.writing() as connection:
                for physical in held:
                    policies.set_next_run(connection, physical.id, next_run(stored.policy, current, after=now))

    def _check_clock(self, now: datetime, current: Settings) -> Settings:
        jump = self._watch.jump(now)
        if jump is None:
            return current
        reason = f"the database's clock jumped ahead by {jump}; confirm with lapse resume --clock"
        with self._catalog.writing() as connection:
            settings.hold_clock(connection, reason, now)
            return settings.load_settings(connection)

    def _is_stale(self, stored: StoredPolicy, known: list[PhysicalTable], now: datetime) -> bool:
        """Tables are looked at when one is due, and else only now and then, for new partitions."""
        looked_at = self._synced_at.get(stored.id, float("-inf"))
        due = not known or any(_is_due(physical, now) for physical in known)
        return (due and not stored.policy.pause) or monotonic() - looked_at > SYNC_SECONDS

    @retried
    def _sync(
        self, stored: StoredPolicy, known: list[PhysicalTable], others: Collection[TableName]
    ) -> list[PhysicalTable]:
        partitions = self._partitions(stored, others)
        self._synced_at[stored.id] = monotonic()
        if {physical.partition for physical in known} == set(partitions):
            return known
        with self._catalog.writing() as connection:
            return policies.sync_tables(connection, stored.id, partitions)

    def _partitions(self, stored: StoredPolicy, others: Collection[TableName]) -> list[str | None]:
        """Of the policy's table; `[None]` for a plain table, and for one that is gone: its job says so."""
        engine = self._catalog.engine
        with engine.connection() as connection:
            try:
                table = self._keeper.declared(connection, stored, None).table
            except Drift:
                return [None]
            return declaring.partitions(engine, connection, table, others)

    @retried
    def _forget(self, now: datetime, current: Settings) -> None:
        before = current.history_retention.subtracted_from(now)
        with self._catalog.reading() as connection:
            old = stored_jobs.has_jobs(connection, before=before)
            dead = any(row.heartbeat_at < now - WORKER_MEMORY for row in workers.list_workers(connection))
        if old or dead:
            with self._catalog.writing() as connection:
                stored_jobs.forget_jobs(connection, before=before)
                workers.forget_workers(connection, silent_since=now - WORKER_MEMORY)


def _is_unsettled(job: Job, stored: StoredPolicy | None, current: Settings, now: datetime) -> bool:
    """Does a job's status say something else than its tasks, or than what was asked of it?"""
    verdict = judge(job, stored, current, now)
    if job.tasks_finished >= job.tasks_total or verdict.ends:
        return True
    if verdict.goes_on:
        return job.status in (JobStatus.PAUSED, JobStatus.CANCELLING)
    return (job.status, job.reason) != (verdict.status, verdict.reason)


def _is_due(physical: PhysicalTable, now: datetime) -> bool:
    """A table that never had a job is due at once."""
    return physical.next_run_at is None or physical.next_run_at <= now


def _why_not(stored: StoredPolicy, physical: PhysicalTable, current: Settings, now: datetime) -> str | None:
    if stored.policy.pause and current.job_enable:
        return DISARMED if physical.trouble == DISARMED else "ttl_pause is on"
    return current.obstacle(now)


def _name(stored: StoredPolicy, physical: PhysicalTable) -> TableName:
    return TableName(stored.table.name, stored.table.schema, physical.partition)
