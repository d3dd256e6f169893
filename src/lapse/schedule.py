"""When a policy's next job is due. Pure: time comes in, time goes out."""

from __future__ import annotations

from datetime import UTC, datetime

from cronsim import CronSim

from lapse.model.parameters import cron_fields
from lapse.model.policy import Policy
from lapse.model.settings import HOURLY, Settings


def next_run(policy: Policy, settings: Settings, *, after: datetime) -> datetime:
    """The first time after `after` at which the policy falls due. Runs that were missed coalesce into one."""
    interval = policy.job_interval or (None if policy.job_cron else settings.job_run_interval)
    if interval is not None:
        return interval.added_to(after)
    return next(CronSim(cron_fields(policy.job_cron or HOURLY), after.astimezone(UTC)))


def recurrence(policy: Policy) -> str:
    """The schedule in words, as SHOW SCHEDULES shows it."""
    if policy.job_interval is not None:
        return f"every {policy.job_interval}"
    return policy.job_cron or HOURLY
