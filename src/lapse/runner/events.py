"""What happens while jobs run, for progress bars, logs and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lapse.engines.base import Batch
from lapse.model.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDone:
    """`label` is the table's name in metrics."""

    job: Job
    label: str | None
    batch: Batch
    seconds: float


class Listener(Protocol):
    def job_created(self, job: Job) -> None: ...

    def job_ended(self, job: Job) -> None: ...

    def batch_done(self, event: BatchDone) -> None: ...

    def waiting(self, job: Job, seconds: float, reason: str) -> None: ...


class Silent:
    """Listens and says nothing."""

    def job_created(self, job: Job) -> None:
        pass

    def job_ended(self, job: Job) -> None:
        pass

    def batch_done(self, event: BatchDone) -> None:
        pass

    def waiting(self, job: Job, seconds: float, reason: str) -> None:
        pass
