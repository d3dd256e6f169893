"""How every table with a policy is doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from lapse.catalog import jobs as stored_jobs
from lapse.catalog import policies
from lapse.catalog.jobs import LastJobs
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.workers import WorkerRow
from lapse.engines.base import Engine
from lapse.model.blocked import BlockCode
from lapse.model.job import Job
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner.jobs import stale_before
from lapse.runner.promise import Facts, Promise, promise

DUE, GRACE, IDLE = "due", "grace", "idle"


@dataclass(frozen=True, kw_only=True, slots=True)
class TableStatus:
    """`state` is one word (idle, grace, due, running, waiting, paused, cancelling, blocked), `reason` says why."""

    table: TableName
    table_id: int
    stored: StoredPolicy
    state: str
    reason: str | None
    next_run_at: datetime | None
    current: Job | None
    last: Job | None
    last_success_at: datetime | None
    statistics: str | None
    promise: Promise
    last_through: Job | None = None
    """The newest job that went through the whole table: its counts tell what is still there."""
    blocked_since: datetime | None = None
    grace_until: datetime | None = None
    """Workers delete nothing before, which is still to come."""
    native: Mapping[str, int] = field(default_factory=dict)
    """What the engine counts where it deletes by itself; of the whole server."""

    @property
    def blocked(self) -> BlockCode | None:
        """The code of what keeps its rows, or some of them, from being deleted."""
        return self.promise.code

    @property
    def is_estimated(self) -> bool:
        """Are the newest counts those of the engine's own TTL?"""
        job = self.current or self.last
        return job is not None and job.estimated

    @property
    def held(self) -> int:
        """Rows that the newest job could not delete."""
        return self.last_through.counts.held if self.last_through else 0

    @property
    def locked(self) -> int:
        """Rows that the newest job passed by because other sessions had locked them."""
        return self.last_through.counts.skipped if self.last_through else 0


def table_statuses(
    connection: Connection,
    engine: Engine,
    *,
    now: datetime,
    settings: Settings,
    stored: Sequence[StoredPolicy],
    jobs: Sequence[Job],
    workers: Sequence[WorkerRow],
) -> list[TableStatus]:
    """One row per physical table; `jobs` are the active ones."""
    active = {job.table_id: job for job in jobs}
    last = stored_jobs.last_jobs(connection)
    beats = [worker.heartbeat_at for worker in workers]
    has_workers = any(beat >= stale_before(now, settings) for beat in beats)
    signs = [*beats, *(job.started_at or job.created_at for job in active.values())]
    if active and max(signs) < now - _beat_due(settings):
        # Nothing was written for a while. Their worker's own batches hold the lock for moments only.
        blocker = engine.write_blocker(connection)
        active = {key: replace(job, waiting_for=job.waiting_for or blocker) for key, job in active.items()}
    by_policy = {each.id: each for each in stored}
    rows = [
        _status(
            Facts(
                now=now,
                stored=by_policy[physical.policy_id],
                physical=physical,
                job=active.get(physical.id),
                last=last.get(physical.id, LastJobs()),
                settings=settings,
                has_workers=has_workers,
            )
        )
        for physical in policies.list_tables(connection)
        if physical.policy_id in by_policy
    ]
    if any(row.is_estimated for row in rows):
        counters = engine.native_counters(connection)
        rows = [replace(row, native=counters) if row.is_estimated else row for row in rows]
    return sorted(rows, key=lambda row: str(row.table))


def _beat_due(current: Settings) -> timedelta:
    """Workers beat twice in an interval; a second more is the machine's."""
    return timedelta(seconds=current.heartbeat_interval.approximate_seconds / 2 + 1)


def _status(facts: Facts) -> TableStatus:
    found = promise(facts)
    state, reason = _state(facts, found)
    return TableStatus(
        table=facts.physical.name_in(facts.stored.table),
        table_id=facts.physical.id,
        stored=facts.stored,
        state=state,
        reason=reason,
        next_run_at=facts.physical.next_run_at,
        current=facts.job,
        last=facts.last.ended,
        last_success_at=facts.last.finished.finished_at if facts.last.finished else None,
        statistics=facts.physical.statistics,
        promise=found,
        last_through=facts.last.through,
        blocked_since=facts.physical.blocked_since,
        grace_until=facts.stored.grace_until if facts.is_in_grace else None,
    )


def _state(facts: Facts, found: Promise) -> tuple[str, str | None]:
    if found.halted:
        return str(found.health), found.reason
    if facts.job is not None:
        return str(facts.job.status), facts.job.reason
    if found.code is BlockCode.GRACE:
        return GRACE, found.reason
    return (DUE, facts.settings.blocker(facts.now)) if facts.is_due else (IDLE, None)
