"""How far an active job has come, how fast it goes and what holds it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from lapse.catalog import tasks
from lapse.catalog.tasks import TaskState
from lapse.engines.base import Engine
from lapse.model.job import Job, JobStatus, TaskStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProgress:
    """`fraction` of the key space that was worked through, None where it cannot be told; `rate` is rows per second."""

    job: Job
    tasks: tuple[TaskState, ...]
    fraction: float | None
    elapsed: timedelta
    rate: float

    @property
    def eta(self) -> timedelta | None:
        if not self.fraction or self.job.status is not JobStatus.RUNNING:
            return None
        return self.elapsed * ((1 - self.fraction) / self.fraction)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the job, or some of its tasks, are held up now."""
        waiting = (state.pause_reason for state in self.tasks if state.task.has_begun)
        return tuple(dict.fromkeys(reason for reason in (self.job.reason, *waiting) if reason))


def jobs_progress(engine: Engine, connection: Connection, jobs: Sequence[Job], now: datetime) -> list[JobProgress]:
    states = tasks.task_states(connection, [job.id for job in jobs])
    return [_progress(engine, job, states[job.id], now) for job in jobs]


def _progress(engine: Engine, job: Job, states: Sequence[TaskState], now: datetime) -> JobProgress:
    elapsed = (job.finished_at or now) - (job.started_at or job.created_at)
    seconds = max(elapsed.total_seconds(), 1e-3)
    return JobProgress(
        job=job,
        tasks=tuple(states),
        fraction=_fraction(engine, states) if job.status.is_active else 1.0,
        elapsed=max(elapsed, timedelta(0)),
        rate=job.counts.deleted / seconds,
    )


def _fraction(engine: Engine, states: Sequence[TaskState]) -> float | None:
    """None when not a single task can tell how far it is."""
    shares = []
    for state in states:
        if state.task.status is TaskStatus.FINISHED:
            shares.append(1.0)
        elif (share := engine.covered(state.task.range, state.task.cursor)) is not None:
            shares.append(share)
    if not shares or (len(states) == 1 and shares == [0.0] and states[0].task.counts.selected):
        return None
    return sum(shares) / len(states)
