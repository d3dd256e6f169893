"""Does every policy keep its promise? On time, late, unable or paused, and by how much."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Connection

from lapse.app.status import TableStatus, table_statuses
from lapse.catalog import jobs as stored_jobs
from lapse.catalog import settings
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import Engine
from lapse.model.job import Job, JobStatus

FAILURES = (JobStatus.FAILED, JobStatus.TIMED_OUT)


class Health(StrEnum):
    ON_TIME = "on_time"
    LATE = "late"
    UNABLE = "unable"
    PAUSED = "paused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Rows as `ttl_row_stats_poll_interval` counted them."""

    rows: int
    expired: int
    counted_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyHealth:
    """One policy with all its physical tables; `lateness` is that of the one furthest behind."""

    stored: StoredPolicy
    health: Health
    why: str | None
    lateness: timedelta
    promise: timedelta
    parts: tuple[TableStatus, ...]
    counted: Counted | None
    last_success_at: datetime | None

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Active ones."""
        return tuple(part.current for part in self.parts if part.current is not None)

    @property
    def last(self) -> Job | None:
        """The newest job that has ended."""
        return max((part.last for part in self.parts if part.last is not None), key=lambda job: job.id, default=None)

    @property
    def next_run_at(self) -> datetime | None:
        """None is at once."""
        times = [part.next_run_at for part in self.parts]
        return None if None in times else min((at for at in times if at is not None), default=None)

    @property
    def is_due(self) -> bool:
        return not self.jobs and any(part.state == "due" for part in self.parts)

    @property
    def held(self) -> int:
        """Rows that the newest jobs could not delete."""
        return sum(part.last.counts.held for part in self.parts if part.last is not None)

    @property
    def is_failing(self) -> bool:
        return any(
            part.state == "trouble" or part.is_disarmed or (part.last and part.last.status in FAILURES)
            for part in self.parts
        )

    @property
    def promise_used(self) -> float:
        return self.lateness / self.promise


def policy_healths(connection: Connection, now: datetime, engine: Engine) -> list[PolicyHealth]:
    finished = stored_jobs.newest_finished(connection)
    current = settings.load_settings(connection)
    stopped = None if current.job_enable and not current.clock_hold else current.obstacle(now)
    by_policy: dict[int, list[TableStatus]] = {}
    for status in table_statuses(connection, now, engine):
        by_policy.setdefault(status.stored.id, []).append(status)
    return [_health(parts, finished, stopped) for parts in by_policy.values()]


def _health(
    parts: Sequence[TableStatus], finished: dict[int, stored_jobs.Finished], stopped: str | None
) -> PolicyHealth:
    stored = parts[0].stored
    known = {part.table_id: finished.get(part.table_id) for part in parts}
    furthest = max((part.promise for part in parts), key=lambda kept: kept.lateness)
    lateness, promise = furthest.lateness, furthest.within
    health, why = _judge(parts, lateness, promise, stopped)
    return PolicyHealth(
        stored=stored,
        health=health,
        why=why,
        lateness=lateness,
        promise=promise,
        parts=tuple(parts),
        counted=_counted(parts),
        last_success_at=max((done.finished_at for done in known.values() if done), default=None),
    )


def _judge(
    parts: Sequence[TableStatus], lateness: timedelta, promise: timedelta, stopped: str | None
) -> tuple[Health, str | None]:
    disarmed = next((part for part in parts if part.is_disarmed), None)
    if disarmed is not None:
        # Nobody asked for this pause, and nobody may know of it: after a failover it would last for ever.
        return Health.UNABLE, disarmed.reason
    if parts[0].stored.policy.pause:
        return Health.PAUSED, next((part.reason for part in parts if part.state == "paused"), None) or "ttl_pause is on"
    if stopped is not None:
        return Health.PAUSED, stopped
    for part in parts:
        if part.state in ("trouble", "held"):
            return Health.UNABLE, part.reason
        if part.current is None and part.last is not None and part.last.status in FAILURES:
            return Health.UNABLE, part.last.reason or f"the last job {part.last.status}"
    if lateness > promise:
        reasons = [part.current.reason for part in parts if part.current is not None and part.current.reason]
        return Health.LATE, reasons[0] if reasons else "no job has finished in time"
    return Health.ON_TIME, None


def _counted(parts: Sequence[TableStatus]) -> Counted | None:
    """Only where every physical table was counted: a part of the sum would look like the whole."""
    texts = [part.statistics for part in parts]
    found = [json.loads(text) for text in texts if text is not None]
    if not found or len(found) < len(texts):
        return None
    return Counted(
        rows=sum(each["total_rows"] for each in found),
        expired=sum(each["total_expired_rows"] for each in found),
        counted_at=min(datetime.fromisoformat(each["counted_at"]) for each in found),
    )
