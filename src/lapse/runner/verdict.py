"""May a job go on? Decided in one place, from what is stored, for tasks at work and jobs that wait alike."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from lapse.catalog.policies import StoredPolicy
from lapse.model.job import PAUSED_BY_REQUEST, Job, JobStatus
from lapse.model.policy import PAUSED_BY_POLICY
from lapse.model.settings import Settings
from lapse.model.statement import JobAction


class PauseCode(StrEnum):
    """Why a job is paused, as metrics count it."""

    REQUEST = "request"
    POLICY = "ttl_pause"
    WINDOW = "window"
    CLOCK = "clock"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`status` is what the job becomes: None goes on, PAUSED waits, any other ends it. `pause` says why it waits."""

    status: JobStatus | None = None
    reason: str | None = None
    pause: PauseCode | None = None

    @property
    def goes_on(self) -> bool:
        return self.status is None

    @property
    def ends(self) -> bool:
        return self.status is not None and self.status is not JobStatus.PAUSED


GO_ON = Verdict()


def judge(job: Job, stored: StoredPolicy | None, settings: Settings, now: datetime) -> Verdict:
    """The first reason wins; reasons to end come before reasons to pause."""
    if job.control == JobAction.CANCEL:
        return Verdict(status=JobStatus.CANCELLED, reason="cancelled by request")
    if stored is None:
        return Verdict(status=JobStatus.CANCELLED, reason="the policy was removed")
    if job.hold_version != stored.hold_version:
        return Verdict(status=JobStatus.CANCELLED, reason="what is held, or archived, was changed")
    if not settings.job_enable:
        return Verdict(status=JobStatus.CANCELLED, reason="tidb_ttl_job_enable is OFF")
    if stored.suspended is not None:
        return Verdict(status=JobStatus.CANCELLED, reason="this database is a copy, and its policies are suspended")
    if settings.clock_hold is not None:
        # A clock that jumped says nothing about how long the job has taken.
        return _paused(PauseCode.CLOCK, settings.clock_hold)
    if now - (job.started_at or job.created_at) > timedelta(seconds=settings.job_timeout.approximate_seconds):
        return Verdict(status=JobStatus.TIMED_OUT, reason=f"not done after {settings.job_timeout}")
    if job.control == JobAction.PAUSE:
        return _paused(PauseCode.REQUEST, PAUSED_BY_REQUEST)
    if stored.policy.pause:
        return _paused(PauseCode.POLICY, PAUSED_BY_POLICY)
    blocker = settings.blocker(now)
    if blocker is None:
        return GO_ON
    return _paused(PauseCode.OTHER if settings.window_is_open(now) else PauseCode.WINDOW, blocker)


def _paused(code: PauseCode, reason: str) -> Verdict:
    return Verdict(status=JobStatus.PAUSED, reason=reason, pause=code)
