"""How every table with a policy is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.catalog import jobs as stored_jobs
from lapse.catalog import policies, settings
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.engines.base import Engine
from lapse.model.job import Job, JobStatus, PathKind
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner.identity import DISARMED
from lapse.runner.promise import Promise, promise


@dataclass(frozen=True, kw_only=True, slots=True)
class TableStatus:
    """`state` is one word (idle, due, running, waiting, paused, cancelling, held, trouble), `reason` says why."""

    table: TableName
    table_id: int
    stored: StoredPolicy
    state: str
    reason: str | None
    next_run_at: datetime | None
    current: Job | None
    last: Job | None
    statistics: str | None
    promise: Promise
    is_disarmed: bool = False
    native: Mapping[str, int] = field(default_factory=dict)
    """What the engine counts where it deletes by itself; of the whole server."""


def table_statuses(connection: Connection, now: datetime, engine: Engine) -> list[TableStatus]:
    """One row per physical table."""
    current = settings.load_settings(connection)
    active = {job.table_id: job for job in stored_jobs.active_jobs(connection)}
    last = stored_jobs.last_jobs(connection)
    complete = stored_jobs.last_jobs(connection, complete=True)
    by_policy = {stored.id: stored for stored in policies.list_policies(connection)}
    rows = [
        _status(
            by_policy[physical.policy_id],
            physical,
            active.get(physical.id),
            (last.get(physical.id), complete.get(physical.id)),
            current,
            now,
            engine,
        )
        for physical in policies.list_tables(connection)
        if physical.policy_id in by_policy
    ]
    if any(_is_native(row) for row in rows):
        counters = engine.native_counters(connection)
        rows = [replace(row, native=counters) if _is_native(row) else row for row in rows]
    return sorted(rows, key=lambda row: str(row.table))


def _is_native(row: TableStatus) -> bool:
    job = row.current or row.last
    return job is not None and job.path.kind is PathKind.NATIVE


def _status(
    stored: StoredPolicy,
    physical: PhysicalTable,
    job: Job | None,
    last: tuple[Job | None, Job | None],
    current: Settings,
    now: datetime,
    engine: Engine,
) -> TableStatus:
    """`last` are the last job that ended and the last that finished."""
    disarmed = stored.policy.pause and physical.trouble == DISARMED
    pause = why_disarmed(engine) if disarmed else "ttl_pause is on" if stored.policy.pause else None
    state, reason = _state(stored, physical, job, pause, current, now)
    obstacle = pause or current.obstacle(now) or physical.trouble
    if obstacle is None and stored.policy.guard:
        obstacle = stored.held
    return TableStatus(
        table=TableName(stored.table.name, stored.table.schema, physical.partition),
        table_id=physical.id,
        stored=stored,
        state=state,
        reason=reason,
        next_run_at=physical.next_run_at,
        current=job,
        last=last[0],
        statistics=physical.statistics,
        is_disarmed=disarmed,
        promise=promise(
            stored.policy, declared_at=stored.created_at, last_complete=last[1], now=now, obstacle=obstacle
        ),
    )


def why_disarmed(engine: Engine) -> str:
    """Says what to do about it, after a failover as well."""
    return f"{DISARMED}, after a failover, too" if engine.features.failover_looks_like_a_copy else DISARMED


def _state(
    stored: StoredPolicy, physical: PhysicalTable, job: Job | None, pause: str | None, current: Settings, now: datetime
) -> tuple[str, str | None]:
    if job is not None:
        return str(job.status), job.reason
    if pause is not None:
        return str(JobStatus.PAUSED), pause
    if not current.job_enable or current.clock_hold:
        return str(JobStatus.PAUSED), current.obstacle(now)
    if stored.held is not None and stored.policy.guard:
        return "held", stored.held
    if physical.trouble is not None:
        return "trouble", physical.trouble
    due = physical.next_run_at is None or physical.next_run_at <= now
    return ("due", current.obstacle(now)) if due else ("idle", None)
