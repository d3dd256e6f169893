"""The promise of a policy: expired rows are gone within `ttl_delete_within`. Judged here, for every surface alike.

The watermark of a table is the cutoff of its last clean job, which left no expired row behind: every row that expired
before it is gone. So no expired row can have waited for longer than since then, which is what lateness says, without
reading the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from lapse.catalog.jobs import LastJobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus
from lapse.model.policy import PAUSED_BY_POLICY, Policy
from lapse.model.settings import Settings
from lapse.model.statement import JobAction

IN_DANGER = 0.5
"""Share of the promised time after which a job may work harder."""


class Health(StrEnum):
    """From the best to the worst."""

    ON_TIME = "on_time"
    PAUSED = "paused"
    LATE = "late"
    BLOCKED = "blocked"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of one physical table at `now`; `job` is the active one."""

    now: datetime
    stored: StoredPolicy
    physical: PhysicalTable
    job: Job | None
    last: LastJobs
    settings: Settings
    has_workers: bool

    @property
    def is_due(self) -> bool:
        return self.physical.next_run_at is None or self.physical.next_run_at <= self.now

    @property
    def is_in_grace(self) -> bool:
        return self.stored.grace_until is not None and self.now < self.stored.grace_until


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """How a table keeps its promise. `code` and `reason` say why it does not, or what it waits for.

    `lateness` is the longest that an expired row can have been waiting. A table that is `halted` gets no job.
    """

    health: Health
    code: BlockCode | None
    reason: str | None
    halted: bool
    watermark: datetime
    lateness: timedelta
    within: timedelta

    @property
    def used(self) -> float:
        return self.lateness / self.within


def behind(policy: Policy, *, watermark: datetime, now: datetime) -> float:
    """The share of the promised time that has passed since the watermark."""
    lateness, within = _times(policy, watermark, now)
    return lateness / within


def promise(facts: Facts) -> Promise:
    known = [facts.last.clean.cutoff] if facts.last.clean else []
    known += [min(facts.physical.clean_at, facts.now)] if facts.physical.clean_at else []
    watermark = max(known, default=facts.stored.created_at)
    lateness, within = _times(facts.stored.policy, watermark, facts.now)
    found = _halted(facts)
    halted = found is not None
    health, code, reason = found or _running(facts, is_late=lateness > within)
    return Promise(
        health=health,
        code=code,
        reason=reason,
        halted=halted,
        watermark=watermark,
        lateness=lateness,
        within=within,
    )


_Judgement = tuple[Health, BlockCode | None, str | None]


def _halted(facts: Facts) -> _Judgement | None:
    """What keeps every job of the table from running, or the one that runs from deleting."""
    stored, settings, physical = facts.stored, facts.settings, facts.physical
    if stored.suspended is not None:
        text = f"this database is a copy of the one in which the policy was declared; lapse resume URL {stored.table}"
        return Health.BLOCKED, stored.suspended, text
    if stored.policy.pause:
        return Health.PAUSED, None, PAUSED_BY_POLICY
    if not settings.job_enable:
        return Health.PAUSED, None, settings.blocker(facts.now)
    if settings.clock_hold is not None:
        return Health.BLOCKED, BlockCode.CLOCK, settings.clock_hold
    if stored.held is not None and stored.policy.guard:
        return Health.BLOCKED, BlockCode.GUARD, stored.held
    if physical.blocked is not None:
        return Health.BLOCKED, physical.blocked, _since(physical)
    if facts.job is not None and facts.job.control == JobAction.PAUSE:
        return Health.PAUSED, None, facts.job.reason
    return None


def _since(physical: PhysicalTable) -> str | None:
    """What is tried again by itself has a beginning that matters; the rest waits for a person."""
    if physical.blocked_since is None or physical.blocked not in (BlockCode.LOCKED, BlockCode.GATE):
        return physical.blocked_reason
    return f"{physical.blocked_reason} (since {physical.blocked_since:%Y-%m-%d %H:%M:%S} UTC)"


def _running(facts: Facts, *, is_late: bool) -> _Judgement:
    job, ended, through = facts.job, facts.last.ended, facts.last.through
    if job is None and ended is not None and ended.status is JobStatus.TIMED_OUT:
        return Health.BLOCKED, BlockCode.TIMED_OUT, f"the last job timed out: {ended.reason}"
    if job is None and ended is not None and ended.status is JobStatus.FAILED:
        return Health.BLOCKED, BlockCode.ERROR, ended.reason or "the last job failed"
    if through is not None and through.counts.held:
        return Health.BLOCKED, BlockCode.ROWS_HELD, _held_rows(through)
    grace = None
    if facts.is_in_grace:
        assert facts.stored.grace_until is not None
        grace = grace_words(facts.stored.grace_until, facts.now)
    if is_late:
        return Health.LATE, BlockCode.GRACE if grace else None, grace or _why_late(facts)
    if grace:
        return Health.ON_TIME, BlockCode.GRACE, grace
    is_new = job is None and ended is None and facts.physical.clean_at is None
    if is_new and facts.is_due and not facts.has_workers:
        return Health.BLOCKED, BlockCode.NO_WORKER, "no job has run yet and no worker is running; lapse worker URL"
    return Health.ON_TIME, None, None


def grace_words(until: datetime, now: datetime) -> str:
    """How long workers leave a new or shortened policy alone."""
    seconds = ceil((until - now).total_seconds())
    left = f"{seconds} s" if seconds < 60 else f"{ceil(seconds / 60)} min"
    if seconds > 2 * 3600:
        left = f"{ceil(seconds / 3600)} h" if seconds <= 2 * 86_400 else f"{ceil(seconds / 86_400)} days"
    return f"deletes nothing for another {left}, until {until:%Y-%m-%d %H:%M:%S} UTC"


def _held_rows(job: Job) -> str:
    return f"{job.counts.held:,} expired rows cannot be deleted: a foreign key, a trigger or an error holds them"


def _why_late(facts: Facts) -> str:
    closed = facts.settings.blocker(facts.now)
    if closed is not None:
        return closed
    if facts.job is not None:
        return facts.job.reason or facts.job.waiting_for or "the job is at work"
    through = facts.last.through
    if through is not None and through.counts.skipped:
        return f"{through.counts.skipped:,} expired rows were locked by other sessions"
    return "no job has finished in time" if facts.has_workers else "no job has finished in time; no worker is running"


def _times(policy: Policy, watermark: datetime, now: datetime) -> tuple[timedelta, timedelta]:
    """(lateness, within): a month is as long as the one that begins now."""
    return max(now - watermark, timedelta(0)), policy.delete_within.added_to(now) - now
