"""Does every policy keep its promise? The worst of its physical tables, as `runner.promise` judges them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lapse.app.status import DUE, TableStatus
from lapse.catalog.policies import StoredPolicy
from lapse.model.blocked import BlockCode
from lapse.model.job import Job
from lapse.runner.promise import Health, Promise

_BADNESS = {health: number for number, health in enumerate(Health)}
NO_FAILURE = (BlockCode.GUARD, BlockCode.ROWS_HELD, BlockCode.NO_WORKER)


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
    verdict: Promise
    lateness: timedelta
    promise: timedelta
    parts: tuple[TableStatus, ...]
    counted: Counted | None
    last_success_at: datetime | None

    @property
    def health(self) -> Health:
        return self.verdict.health

    @property
    def why(self) -> str | None:
        return self.verdict.reason

    @property
    def blocked(self) -> BlockCode | None:
        return self.verdict.code

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
    def starts_at(self) -> datetime | None:
        """When a worker starts the next job: when it is due, and no earlier than the grace period ends."""
        ends = [part.grace_until for part in self.parts if part.grace_until is not None]
        return max([*ends, *([] if self.next_run_at is None else [self.next_run_at])], default=None)

    @property
    def is_due(self) -> bool:
        return not self.jobs and any(part.state == DUE for part in self.parts)

    @property
    def held(self) -> int:
        """Rows that the newest jobs could not delete."""
        return sum(part.held for part in self.parts)

    @property
    def locked(self) -> int:
        """Rows that the newest jobs passed by because other sessions had locked them."""
        return sum(part.locked for part in self.parts)

    @property
    def is_failing(self) -> bool:
        """Can no job run, or did the newest one fail? A person who is asked, and rows that are held, are no failure."""
        return any(part.promise.health is Health.BLOCKED and part.promise.code not in NO_FAILURE for part in self.parts)

    @property
    def promise_used(self) -> float:
        return self.lateness / self.promise


def policy_healths(statuses: Sequence[TableStatus]) -> list[PolicyHealth]:
    by_policy: dict[int, list[TableStatus]] = {}
    for status in statuses:
        by_policy.setdefault(status.stored.id, []).append(status)
    return [_health(parts) for parts in by_policy.values()]


def _health(parts: Sequence[TableStatus]) -> PolicyHealth:
    furthest = max((part.promise for part in parts), key=lambda kept: kept.lateness)
    succeeded = [part.last_success_at for part in parts if part.last_success_at is not None]
    return PolicyHealth(
        stored=parts[0].stored,
        verdict=max((part.promise for part in parts), key=lambda kept: (_BADNESS[kept.health], kept.lateness)),
        lateness=furthest.lateness,
        promise=furthest.within,
        parts=tuple(parts),
        counted=_counted(parts),
        last_success_at=max(succeeded, default=None),
    )


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
