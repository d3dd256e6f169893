"""What happens while jobs run, for progress bars, logs and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from lapse.engines.base import Batch
from lapse.errors import Blocked
from lapse.model.blocked import BlockCode
from lapse.model.job import Job
from lapse.model.table import TableName


class Cause(StrEnum):
    """Why a task waits, as a word that metrics can count by; the reason in full is a sentence for people."""

    RATE_LIMIT = "rate_limit"
    RETRY = "retry"
    GATE = "gate"
    YIELD = "yield"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDone:
    """`label` is the table's name in metrics."""

    job: Job
    label: str | None
    batch: Batch
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDone:
    """A worker is through with a task, for good or for now, after `seconds` of wall time."""

    job: Job
    label: str | None
    seconds: float


class HeldKind(StrEnum):
    """What keeps expired rows in their table until a person does something."""

    FIRST_RUN = "first_run"
    ROWS = "rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """`fix` is the command that resolves it, or shows what does."""

    table: TableName
    kind: HeldKind
    reason: str
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LockWait:
    """A lock of another session that a job waits for; a `table` of None is the whole database."""

    table: TableName | None
    since: datetime

    @property
    def what(self) -> str:
        return "the database" if self.table is None else f"table {self.table}"

    def __str__(self) -> str:
        return f"{self.what} is locked by another session, since {self.since:%Y-%m-%d %H:%M:%S} UTC"


class Listener(Protocol):
    """Derive from `NullListener` to hear some of it only."""

    def job_created(self, job: Job) -> None: ...

    def job_ended(self, job: Job) -> None: ...

    def table_blocked(self, table: TableName, why: Blocked) -> None: ...

    def table_unblocked(self, table: TableName, code: BlockCode, seconds: float) -> None: ...

    def locked(self, event: LockWait) -> None: ...

    def unlocked(self, event: LockWait, seconds: float) -> None: ...

    def held(self, event: Held) -> None: ...

    def released(self, event: Held) -> None: ...

    def service_failed(self, service: str) -> None: ...

    def batch_done(self, event: BatchDone) -> None: ...

    def task_done(self, event: TaskDone) -> None: ...

    def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None: ...


class NullListener:
    """Listens and says nothing."""

    def job_created(self, job: Job) -> None:
        pass

    def job_ended(self, job: Job) -> None:
        pass

    def table_blocked(self, table: TableName, why: Blocked) -> None:
        pass

    def table_unblocked(self, table: TableName, code: BlockCode, seconds: float) -> None:
        pass

    def locked(self, event: LockWait) -> None:
        pass

    def unlocked(self, event: LockWait, seconds: float) -> None:
        pass

    def held(self, event: Held) -> None:
        pass

    def released(self, event: Held) -> None:
        pass

    def service_failed(self, service: str) -> None:
        pass

    def batch_done(self, event: BatchDone) -> None:
        pass

    def task_done(self, event: TaskDone) -> None:
        pass

    def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
        pass


class MultiListener:
    """Tells every one of them."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def job_created(self, job: Job) -> None:
        for listener in self._listeners:
            listener.job_created(job)

    def job_ended(self, job: Job) -> None:
        for listener in self._listeners:
            listener.job_ended(job)

    def table_blocked(self, table: TableName, why: Blocked) -> None:
        for listener in self._listeners:
            listener.table_blocked(table, why)

    def table_unblocked(self, table: TableName, code: BlockCode, seconds: float) -> None:
        for listener in self._listeners:
            listener.table_unblocked(table, code, seconds)

    def locked(self, event: LockWait) -> None:
        for listener in self._listeners:
            listener.locked(event)

    def unlocked(self, event: LockWait, seconds: float) -> None:
        for listener in self._listeners:
            listener.unlocked(event, seconds)

    def held(self, event: Held) -> None:
        for listener in self._listeners:
            listener.held(event)

    def released(self, event: Held) -> None:
        for listener in self._listeners:
            listener.released(event)

    def service_failed(self, service: str) -> None:
        for listener in self._listeners:
            listener.service_failed(service)

    def batch_done(self, event: BatchDone) -> None:
        for listener in self._listeners:
            listener.batch_done(event)

    def task_done(self, event: TaskDone) -> None:
        for listener in self._listeners:
            listener.task_done(event)

    def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
        for listener in self._listeners:
            listener.waiting(job, seconds, reason, cause)
