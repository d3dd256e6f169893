"""New jobs, as stored: one per physical table at a time, with its tasks, or one that ends as it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError

from lapse.catalog.jobs import COUNT_NAMES, record_run
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.schema import job, task
from lapse.catalog.tasks import NOTHING_DONE, Progress, progress_values
from lapse.errors import JobExists
from lapse.model.job import Counts, Job, JobKey, JobStatus, JobSummary, KeyRange, Path, Task, TaskStatus
from lapse.model.table import TableName

_ADD, _ADD_TASK = insert(job), insert(task)


@dataclass(frozen=True, kw_only=True, slots=True)
class Created:
    """A new job; `task` is the first one of it, where that was claimed as it was created."""

    job: Job
    task: Task | None = None


def create_job(
    connection: Connection,
    *,
    table_id: int,
    stored: StoredPolicy,
    name: TableName,
    cutoff: datetime,
    path: Path,
    fingerprint: str,
    ranges: Sequence[KeyRange],
    now: datetime,
    owner: str | None,
    behind: float = 0.0,
    claims: bool = False,
    progress: Progress = NOTHING_DONE,
) -> Created:
    """Create a job and its tasks inside the caller's transaction, which must roll back on JobExists.

    `behind` is the share of the promised time that has passed. With `claims`, `owner` begins at once with the
    first task. `progress` is what has been done of the only task.
    """
    taken = claims and bool(ranges) and owner is not None
    status, started_at = (JobStatus.RUNNING, now) if taken else (JobStatus.WAITING, None)
    made = _made(
        table_id, stored, name, status, cutoff=cutoff, path=path, fingerprint=fingerprint, tasks=len(ranges), now=now
    )
    made = _insert(connection, replace(made, started_at=started_at), owner=owner, behind=behind)
    rows: list[dict[str, object]] = [
        {
            "job_id": made.id,
            "ordinal": ordinal,
            "range_start": span.start,
            "range_end": span.end,
            "status": TaskStatus.WAITING,
            "owner_id": None,
            "heartbeat_at": None,
            "fence": 0,
        }
        for ordinal, span in enumerate(ranges)
    ]
    lease: Task | None = None
    if progress is not NOTHING_DONE:
        first, *rows = rows
        rows = [first | progress_values(progress), *rows]
    if taken:
        first, *rows = rows
        claimed = {"status": TaskStatus.RUNNING, "owner_id": owner, "heartbeat_at": now, "fence": 1}
        result = connection.execute(_ADD_TASK, first | claimed)
        lease = Task(
            id=int(result.inserted_primary_key[0]),  # type: ignore[index]
            job_id=made.id,
            ordinal=0,
            range=ranges[0],
            cursor=progress.cursor,
            sweep=progress.sweep,
            fence=1,
            owner=owner,
            status=TaskStatus.RUNNING,
            counts=progress.counts,
        )
    if rows:
        connection.execute(_ADD_TASK, rows)
    return Created(job=made, task=lease)


def record_job(
    connection: Connection,
    *,
    table_id: int,
    stored: StoredPolicy,
    name: TableName,
    status: JobStatus,
    cutoff: datetime,
    path: Path,
    fingerprint: str,
    summary: JobSummary,
    now: datetime,
    owner: str | None,
    reason: str | None = None,
    counts: Counts | None = None,
) -> Job:
    """A job that ends as it begins, as it has nothing to do or cannot be planned; the table must have no active one.

    With `counts` it was one task, which the caller's transaction has done.
    """
    ended = _made(
        table_id,
        stored,
        name,
        status,
        cutoff=cutoff,
        path=path,
        fingerprint=fingerprint,
        tasks=0 if counts is None else 1,
        now=cutoff,
    )
    ended = replace(ended, reason=reason, finished_at=now, summary=summary)
    if counts is not None:
        ended = replace(ended, started_at=cutoff, tasks_finished=1, counts=counts)
    ended = _insert(connection, ended, owner=owner, behind=0.0)
    record_run(connection, JobKey.of(ended), status, counts=ended.counts, now=now, reason=reason)
    return ended


def _made(
    table_id: int,
    stored: StoredPolicy,
    name: TableName,
    status: JobStatus,
    *,
    cutoff: datetime,
    path: Path,
    fingerprint: str,
    tasks: int,
    now: datetime,
) -> Job:
    return Job(
        id=0,
        table_id=table_id,
        policy_id=stored.id,
        table=name,
        policy_version=stored.version,
        cutoff=cutoff,
        status=status,
        control=None,
        reason=None,
        fingerprint=fingerprint,
        created_at=now,
        started_at=None,
        finished_at=None,
        path=path,
        tasks_total=tasks,
        tasks_finished=0,
        counts=Counts(),
        hold_version=stored.hold_version,
        archive=stored.policy.archive,
        ledger_keys=stored.policy.ledger_keys,
    )


def _insert(connection: Connection, made: Job, *, owner: str | None, behind: float) -> Job:
    """With the number that the database gives it."""
    values = {
        "table_id": made.table_id,
        "active_table_id": made.table_id if made.status.is_active else None,
        "policy_id": made.policy_id,
        "policy_version": made.policy_version,
        "schema_name": made.table.schema or "",
        "table_name": made.table.name,
        "partition_name": made.table.partition or "",
        "partition_schema": made.table.partition_schema or "",
        "cutoff": made.cutoff,
        "status": made.status,
        "reason": made.reason,
        "path_kind": made.path.kind,
        "path_index": made.path.index,
        "path_evidence": made.path.evidence,
        "fingerprint": made.fingerprint,
        "created_at": made.created_at,
        "started_at": made.started_at,
        "finished_at": made.finished_at,
        "changed_at": made.finished_at or made.created_at,
        "owner_id": owner,
        "tasks_total": made.tasks_total,
        "behind": behind,
        **{name: getattr(made.counts, name) for name in COUNT_NAMES},
        "summary": made.summary.to_json() if made.summary else None,
        "hold_version": made.hold_version,
        "archive": made.archive,
        "ledger_keys": made.ledger_keys,
    }
    try:
        result = connection.execute(_ADD, values)
    except IntegrityError as error:
        raise JobExists(f"table {made.table.whole} already has an active job") from error
    return replace(made, id=int(result.inserted_primary_key[0]))  # type: ignore[index]
