"""How every table with a policy is doing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from lapse.catalog import jobs as stored_jobs
from lapse.catalog import policies, settings
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.model.job import Job, JobStatus
from lapse.model.settings import Settings
from lapse.model.table import TableName


@dataclass(frozen=True, kw_only=True, slots=True)
class TableStatus:
    """`state` is one word (idle, due, running, waiting, paused, cancelling, held, trouble), `reason` says why."""

    table: TableName
    stored: StoredPolicy
    state: str
    reason: str | None
    next_run_at: datetime | None
    current: Job | None
    last: Job | None
    statistics: str | None


def table_statuses(connection: Connection, now: datetime) -> list[TableStatus]:
    """One row per physical table."""
    current = settings.load_settings(connection)
    active = {job.table_id: job for job in stored_jobs.active_jobs(connection)}
    last = stored_jobs.last_jobs(connection)
    by_policy = {stored.id: stored for stored in policies.list_policies(connection)}
    rows = [
        _status(by_policy[physical.policy_id], physical, active.get(physical.id), last.get(physical.id), current, now)
        for physical in policies.list_tables(connection)
        if physical.policy_id in by_policy
    ]
    return sorted(rows, key=lambda row: str(row.table))


def _status(
    stored: StoredPolicy,
    physical: PhysicalTable,
    job: Job | None,
    last: Job | None,
    current: Settings,
    now: datetime,
) -> TableStatus:
    state, reason = _state(stored, physical, job, current, now)
    return TableStatus(
        table=TableName(stored.table.name, stored.table.schema, physical.partition),
        stored=stored,
        state=state,
        reason=reason,
        next_run_at=physical.next_run_at,
        current=job,
        last=last,
        statistics=physical.statistics,
    )


def _state(
    stored: StoredPolicy, physical: PhysicalTable, job: Job | None, current: Settings, now: datetime
) -> tuple[str, str | None]:
    if job is not None:
        return str(job.status), job.reason
    if stored.policy.pause:
        return str(JobStatus.PAUSED), "ttl_pause is on"
    if not current.job_enable:
        return str(JobStatus.PAUSED), "tidb_ttl_job_enable is OFF"
    if stored.held is not None and stored.policy.guard:
        return "held", stored.held
    if physical.trouble is not None:
        return "trouble", physical.trouble
    if physical.next_run_at is None or physical.next_run_at <= now:
        return "due", None if current.window_is_open(now) else "outside the schedule window"
    return "idle", None
