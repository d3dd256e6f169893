"""Jobs, tasks and what they report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from lapse.model.table import TableName

PAUSED_BY_REQUEST = "paused by request"


class JobStatus(StrEnum):
    """What became of a job, or what it is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    """No expired row that could be deleted is left."""
    INCOMPLETE = "incomplete"
    """It went through the whole table, and left rows that other sessions had locked; they are tried again soon."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    FAILED = "failed"

    @property
    def is_active(self) -> bool:
        return self in ACTIVE_STATUSES


THROUGH = (JobStatus.FINISHED, JobStatus.INCOMPLETE)
"""The job has looked at every row."""
ACTIVE_STATUSES = (JobStatus.WAITING, JobStatus.RUNNING, JobStatus.PAUSED, JobStatus.CANCELLING)
"""A physical table has at most one job in one of these."""


class TaskStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class PathKind(StrEnum):
    """How a job finds the expired rows."""

    PARTITION = "partition"
    INDEX = "index"
    PHYSICAL = "physical"
    NATIVE = "native"


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """`index` is named for the index path; `evidence` says why this path was chosen. One that `finds_nothing`, which a
    job does not remember, leads to rows that cannot have expired."""

    kind: PathKind
    index: str | None = None
    evidence: str = ""
    finds_nothing: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRange:
    """`[start, end)` in the engine's own encoding; None is unbounded."""

    start: str | None = None
    end: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Rows of one task or job. `deleted` are rows that really went.

    Still there are those that were `held`, by a foreign key, a trigger or an error, and those that were `skipped`
    because another session had locked them.
    """

    selected: int = 0
    deleted: int = 0
    held: int = 0
    skipped: int = 0
    errors: int = 0
    batches: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            selected=self.selected + other.selected,
            deleted=self.deleted + other.deleted,
            held=self.held + other.held,
            skipped=self.skipped + other.skipped,
            errors=self.errors + other.errors,
            batches=self.batches + other.batches,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSummary:
    """What an ended job came to, under the names that TiDB's `last_job_summary` has, and more.

    `task_seconds` is the time of all its tasks together, whose parts are `select_seconds`, `delete_seconds`,
    `waited_seconds` and `other_seconds`; `waits` says how long they waited for what. `error` is why it failed before it
    had tasks, `scan_task_err` what its tasks met last.
    """

    total_rows: int = 0
    success_rows: int = 0
    error_rows: int = 0
    held_rows: int = 0
    skipped_rows: int = 0
    batches: int = 0
    total_scan_task: int = 0
    finished_scan_task: int = 0
    wall_seconds: float = 0.0
    task_seconds: float = 0.0
    select_seconds: float = 0.0
    delete_seconds: float = 0.0
    waited_seconds: float = 0.0
    other_seconds: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)
    scan_task_err: str = ""
    error: str = ""

    @classmethod
    def from_json(cls, text: str) -> JobSummary:
        """Also of one that an earlier version wrote, with fewer fields."""
        known = json.loads(text)
        return cls(**{name: value for name, value in known.items() if name in cls.__dataclass_fields__})

    def to_json(self) -> str:
        return json.dumps(self.record())

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobKey:
    """What is fixed about a job from its creation on: the ledger has it beside what the job came to."""

    id: int
    table: TableName
    policy_version: int
    cutoff: datetime
    archive: str | None = None
    ledger_keys: bool = False

    @classmethod
    def of(cls, job: Job) -> JobKey:
        version, cutoff = job.policy_version, job.cutoff
        return cls(
            id=job.id,
            table=job.table,
            policy_version=version,
            cutoff=cutoff,
            archive=job.archive,
            ledger_keys=job.ledger_keys,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """`control` is what a person asked of it; `fingerprint` what its table looked like when it was created.

    `waiting_for` is why a running job rests right now.
    """

    id: int
    table_id: int
    policy_id: int
    table: TableName
    policy_version: int
    cutoff: datetime
    status: JobStatus
    control: str | None
    reason: str | None
    fingerprint: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    path: Path
    tasks_total: int
    tasks_finished: int
    counts: Counts
    summary: JobSummary | None = None
    waiting_for: str | None = None
    hold_version: int = 0
    """Of its policy when the job was planned: with another, rows are held that it does not know of."""
    archive: str | None = None
    """Where its rows go; `counts.deleted` of them went there, and `restored` of those came back."""
    restored: int = 0
    ledger_keys: bool = False
    """Are the keys of its rows on record?"""
    native_id: str | None = None
    """Of a job that the database ran by itself, by its own TTL; its other numbers are 0."""

    @property
    def label(self) -> str:
        """As people are shown it."""
        return str(self.id) if self.native_id is None else self.native_id[:8]

    @property
    def is_count_known(self) -> bool:
        """Does the database tell how many rows a job of its own has deleted? Of one that did not finish it does not."""
        return self.native_id is None or self.status is JobStatus.FINISHED

    @property
    def estimated(self) -> bool:
        """Are its counts what the engine's own TTL reports, and not rows that Lapse deleted?"""
        return self.path.kind is PathKind.NATIVE

    @property
    def is_drop(self) -> bool:
        """Did it drop a partition, instead of deleting rows? One that was held stays; so does one whose rows
        go one by one, where some of them came late."""
        if self.path.kind is not PathKind.PARTITION or self.status is not JobStatus.FINISHED:
            return False
        is_emptied_first = self.archive is not None or self.ledger_keys
        return not self.counts.held and not (is_emptied_first and self.counts.deleted)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """`fence` grows with every claim: a write that carries an older one is refused. `failures` are those in a row."""

    id: int
    job_id: int
    ordinal: int
    range: KeyRange
    cursor: str | None
    sweep: int
    fence: int
    owner: str | None
    status: TaskStatus
    counts: Counts
    failures: int = 0

    @property
    def is_new(self) -> bool:
        """Was it claimed for the first time just now, with nothing done yet?"""
        return self.fence == 1 and not self.counts.batches

    @property
    def has_begun(self) -> bool:
        """Is it at work, or was it given back because of an error, to be tried again soon?"""
        return self.status is TaskStatus.RUNNING or (self.status is TaskStatus.WAITING and self.failures > 0)
