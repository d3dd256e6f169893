"""How fast a table's rows are deleted, by what the last jobs did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapse.model.job import Job, JobStatus
from lapse.model.policy import Policy

JOBS_LOOKED_AT = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedPace:
    rows_per_second: float

    def seconds_for(self, rows: int) -> float:
        return rows / self.rows_per_second


def pace_of(policy: Policy, jobs: Sequence[Job]) -> ExpectedPace | None:
    """From a table's last jobs, newest first; None where none of them has deleted anything and no limit says it."""
    limit = policy.delete_rate_limit or None
    deleted, seconds = 0, 0.0
    for job in jobs[:JOBS_LOOKED_AT]:
        if job.status is JobStatus.FINISHED and job.counts.deleted and job.summary:
            deleted += job.counts.deleted
            # By the stopwatch of its tasks, which worked side by side or one after the other.
            seconds += job.summary.task_seconds
    if not deleted or seconds <= 0:
        return None if limit is None else ExpectedPace(rows_per_second=limit)
    pace = deleted / seconds
    return ExpectedPace(rows_per_second=pace if limit is None else min(pace, limit))
