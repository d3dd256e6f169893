"""The promise of a policy: expired rows are gone within `ttl_delete_within`.

The watermark of a table is the cutoff of its last complete job: every row that expired before it is gone. So no
expired row can have waited for longer than since then, which is what lateness says, without reading the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from lapse.model.job import Job
from lapse.model.policy import Policy

IN_DANGER = 0.5
"""Share of the promised time after which a job may work harder."""


class Standing(StrEnum):
    ON_TIME = "on time"
    LATE = "late"
    UNABLE = "unable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """`lateness` is the longest that an expired row can have been waiting; `reason` says why it cannot be kept."""

    standing: Standing
    watermark: datetime
    lateness: timedelta
    within: timedelta
    reason: str | None = None


def behind(policy: Policy, *, watermark: datetime, now: datetime) -> float:
    """The share of the promised time that has passed since the watermark."""
    lateness, within = _times(policy, watermark, now)
    return lateness / within


def promise(
    policy: Policy, *, declared_at: datetime, last_complete: Job | None, now: datetime, obstacle: str | None = None
) -> Promise:
    """`obstacle` is what keeps jobs from running now, if anything does."""
    watermark = last_complete.cutoff if last_complete else declared_at
    lateness, within = _times(policy, watermark, now)
    held = last_complete.counts.held if last_complete else 0
    reason = obstacle or (f"{held} expired rows cannot be deleted" if held else None)
    if lateness <= within and not held:
        return Promise(standing=Standing.ON_TIME, watermark=watermark, lateness=lateness, within=within)
    standing = Standing.UNABLE if reason else Standing.LATE
    return Promise(standing=standing, watermark=watermark, lateness=lateness, within=within, reason=reason)


def _times(policy: Policy, watermark: datetime, now: datetime) -> tuple[timedelta, timedelta]:
    """(lateness, within): a month is as long as the one that begins now."""
    return max(now - watermark, timedelta(0)), policy.delete_within.added_to(now) - now
