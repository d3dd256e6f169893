"""Tasks and their leases: claimed by one worker, fenced against all others.

A lease is the triple of owner, heartbeat and fence. Every write names the fence it was claimed with; a claim raises
it. So a worker that was taken over writes nothing any more, whatever it believes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    text,
    update,
)

from lapse.catalog.schema import job, meta, policy, task
from lapse.errors import Fenced
from lapse.model.job import Counts, JobStatus, JobSummary, KeyRange, Task, TaskStatus

_CLAIMABLE_JOBS = (JobStatus.WAITING, JobStatus.RUNNING)
CANDIDATES = 16
"""Tasks that a claim tries in turn, when others are claiming, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a task has done so far, all runs of it together.

    It lasted as long as it worked, waited and kept its books; of its work, the transactions were `locked_seconds`.
    `waits` says how long it waited for what.
    """

    cursor: str | None
    sweep: int
    counts: Counts
    worked_seconds: float
    waited_seconds: float
    locked_seconds: float = 0.0
    lasted_seconds: float = 0.0
    pause_reason: str | None = None
    last_error: str | None = None
    waits: Mapping[str, float] = field(default_factory=dict)


NOTHING_DONE = Progress(cursor=None, sweep=0, counts=Counts(), worked_seconds=0.0, waited_seconds=0.0)
"""Of a task that was never claimed before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskState:
    """A task with what its worker reports about it."""

    task: Task
    heartbeat_at: datetime | None
    worked_seconds: float
    waited_seconds: float
    pause_reason: str | None
    last_error: str | None


def claimable_tasks(
    connection: Connection, *, stale_before: datetime, awake_at: datetime, jobs: Collection[int] | None = None
) -> list[Task]:
    """Waiting tasks, and those whose owner has been silent since `stale_before`, in the order to try them.

    A task that failed is left alone until its pause is over, by the server's real time: `awake_at`.

    The table with fewest runners comes first, among equals the one furthest behind its promise: a huge table never
    starves the others. `jobs` limits the choice to these. Nothing is locked: some engines would lock all that were
    sorted.
    """
    wanted = {"stale_before": stale_before, "awake_at": awake_at} | ({} if jobs is None else {"jobs": list(jobs)})
    rows = connection.execute(_claimable(limited=jobs is not None), wanted).mappings().all()
    return [_task(row, fence=row["fence"], owner=row["owner_id"]) for row in rows]


def claim_task(connection: Connection, candidates: Sequence[Task], *, owner: str, now: datetime) -> Task | None:
    """Take the first of these that no other worker has taken since: the fence lets one claim win."""
    for found in candidates:
        fence = found.fence + 1
        values = {"status": TaskStatus.RUNNING, "owner_id": owner, "heartbeat_at": now, "fence": fence}
        taken = connection.execute(_LEASED, {"lease_id": found.id, "lease_fence": found.fence, **values})
        if taken.rowcount == 1:
            return replace(found, fence=fence, owner=owner)
    return None


def lock_claims(connection: Connection) -> None:
    """Let one worker at a time count the running tasks and claim another."""
    connection.execute(select(meta.c.value).with_for_update()).all()


def running_tasks(connection: Connection, *, stale_before: datetime) -> int:
    """Tasks at work in the whole fleet."""
    query = select(func.count()).where(task.c.status == TaskStatus.RUNNING, task.c.heartbeat_at >= stale_before)
    return int(connection.execute(query.select_from(task)).scalar_one())


def save_progress(connection: Connection, lease: Task, progress: Progress) -> None:
    """The checkpoint; raises Fenced when the lease is lost, and then the caller's transaction must roll back."""
    _write(connection, lease, **progress_values(progress))


def saving(lease: Task, progress: Progress, schema: str | None) -> tuple[str, dict[str, int]]:
    """The checkpoint for a server that makes several batches by itself, after that progress: SQL with names in braces,
    and the values of all but `cursor` and `rows`, which are a batch's own. It changes no row when the lease is lost,
    and then the transaction must roll back."""
    counts = progress.counts
    values = {
        "task": lease.id,
        "fence": lease.fence,
        "sweep": progress.sweep,
        "held": counts.held,
        "skipped": counts.skipped,
        "errors": counts.errors,
    }
    return f"UPDATE {f'{schema}.' if schema else ''}{task.name} {_SAVING}", values


_SAVING = (
    "SET position = {cursor}, sweep = {sweep}, held = {held}, skipped = {skipped}, errors = {errors},"
    " batches = batches + 1, selected = selected + {rows}, deleted = deleted + {rows}"
    " WHERE task_id = {task} AND fence = {fence}"
)


def beat(connection: Connection, leases: Sequence[Task], now: datetime) -> list[int]:
    """Say that these tasks are being worked on; returns the ids of those whose lease is lost."""
    lost = []
    for lease in leases:
        result = connection.execute(
            update(task).where(task.c.task_id == lease.id, task.c.fence == lease.fence).values(heartbeat_at=now)
        )
        if result.rowcount != 1:
            lost.append(lease.id)
    return lost


def resign_task(connection: Connection, lease: Task, progress: Progress) -> None:
    """Give the task back, to be taken up from its cursor by any worker."""
    _write(connection, lease, status=TaskStatus.WAITING, owner_id=None, heartbeat_at=None, **progress_values(progress))


def postpone_task(connection: Connection, task_id: int, *, failures: int, not_before: datetime) -> None:
    """A task that was given back because of an error is not claimed before then."""
    connection.execute(
        update(task)
        .where(task.c.task_id == task_id, task.c.status == TaskStatus.WAITING)
        .values(failures=failures, not_before=not_before)
    )


def finish_task(connection: Connection, lease: Task, progress: Progress) -> None:
    """The fence grows: whatever its worker still writes is refused."""
    _write(connection, lease, status=TaskStatus.FINISHED, fence=lease.fence + 1, **progress_values(progress))


def end_task(connection: Connection, lease: Task) -> None:
    """A job ends with its only task: what that came to is in the job's row, written in the same transaction."""
    _addresses.pop(lease.id, None)
    if connection.execute(_END, {"lease_id": lease.id, "lease_fence": lease.fence}).rowcount != 1:
        raise _fenced(lease)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a job's tasks did and where their time went, whose parts add up to `lasted`. `waits` says how long they
    waited for what, `errors` what they met last, `pauses` why they rested when they were last seen."""

    lasted: float = 0.0
    worked: float = 0.0
    locked: float = 0.0
    waited: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    pauses: tuple[str, ...] = ()
    counts: Counts = field(default_factory=Counts)
    tasks: int = 0
    finished: int = 0

    @classmethod
    def of(cls, progress: Progress) -> Spent:
        """What a job has done whose only task has come to its end."""
        return cls(
            lasted=progress.lasted_seconds,
            worked=progress.worked_seconds,
            locked=progress.locked_seconds,
            waited=progress.waited_seconds,
            waits={reason: round(seconds, 3) for reason, seconds in progress.waits.items()},
            errors=(progress.last_error,) if progress.last_error else (),
            pauses=(progress.pause_reason,) if progress.pause_reason else (),
            counts=progress.counts,
            tasks=1,
            finished=1,
        )

    @property
    def other(self) -> float:
        return max(0.0, self.lasted - self.worked - self.waited)

    def summary(self, *, since: datetime, now: datetime) -> JobSummary:
        """Of a job that began then and ends now."""
        counts = self.counts
        return JobSummary(
            total_rows=counts.selected,
            success_rows=counts.deleted,
            error_rows=counts.errors,
            held_rows=counts.held,
            skipped_rows=counts.skipped,
            batches=counts.batches,
            total_scan_task=self.tasks,
            finished_scan_task=self.finished,
            wall_seconds=round((now - since).total_seconds(), 3),
            task_seconds=round(self.lasted, 3),
            select_seconds=round(self.worked - self.locked, 3),
            delete_seconds=round(self.locked, 3),
            waited_seconds=round(self.waited, 3),
            other_seconds=round(self.other, 3),
            waits=self.waits,
            scan_task_err="; ".join(self.errors)[:1000],
        )


def spent(connection: Connection, job_id: int, *, locked: bool = False) -> Spent:
    """All tasks of a job together; with `locked`, nothing is added to it before the caller's transaction ends."""
    query = select(task).where(task.c.job_id == job_id).order_by(task.c.ordinal)
    rows = connection.execute(query.with_for_update() if locked else query).mappings().all()
    waits: Counter[str] = Counter()
    for row in rows:
        waits.update(json.loads(row["waits"] or "{}"))
    return Spent(
        lasted=sum(row["lasted_seconds"] for row in rows),
        worked=sum(row["worked_seconds"] for row in rows),
        locked=sum(row["locked_seconds"] for row in rows),
        waited=sum(row["waited_seconds"] for row in rows),
        waits={reason: round(seconds, 3) for reason, seconds in waits.items()},
        errors=tuple(dict.fromkeys(row["last_error"] for row in rows if row["last_error"])),
        pauses=tuple(dict.fromkeys(row["pause_reason"] for row in rows if row["pause_reason"])),
        counts=sum((_counts(row) for row in rows), Counts()),
        tasks=len(rows),
        finished=sum(row["status"] == TaskStatus.FINISHED for row in rows),
    )


def task_states(connection: Connection, job_ids: Collection[int]) -> dict[int, list[TaskState]]:
    """Job → its tasks, for all of them at once."""
    found: dict[int, list[TaskState]] = {job_id: [] for job_id in job_ids}
    if not found:
        return found
    wanted = select(task).where(task.c.job_id.in_(list(found))).order_by(task.c.job_id, task.c.ordinal)
    for row in connection.execute(wanted).mappings():
        found[row["job_id"]].append(
            TaskState(
                task=_task(row, fence=row["fence"], owner=row["owner_id"]),
                heartbeat_at=row["heartbeat_at"],
                worked_seconds=row["worked_seconds"],
                waited_seconds=row["waited_seconds"],
                pause_reason=row["pause_reason"],
                last_error=row["last_error"],
            )
        )
    return found


def progress_of(connection: Connection, task_id: int, *, locked: bool = False) -> Progress:
    """`locked`: it stays so until the caller's transaction ends."""
    query = select(task).where(task.c.task_id == task_id)
    row = connection.execute(query.with_for_update() if locked else query).mappings().first()
    if row is None:
        raise Fenced(f"task {task_id} has ended")
    return Progress(
        cursor=row["position"],
        sweep=row["sweep"],
        counts=_counts(row),
        worked_seconds=row["worked_seconds"],
        waited_seconds=row["waited_seconds"],
        locked_seconds=row["locked_seconds"],
        lasted_seconds=row["lasted_seconds"],
        pause_reason=row["pause_reason"],
        last_error=row["last_error"],
        waits=json.loads(row["waits"] or "{}"),
    )


def live_owners(connection: Connection, job_id: int, *, stale_before: datetime) -> int:
    """How many tasks of a job are being worked on right now."""
    query = select(func.count()).where(
        task.c.job_id == job_id, task.c.status == TaskStatus.RUNNING, task.c.heartbeat_at >= stale_before
    )
    return int(connection.execute(query.select_from(task)).scalar_one())


@cache
def _claimable(*, limited: bool) -> Select[Any]:
    """Built once: that takes longer than running it."""
    mate = task.alias("mate")
    runners = (
        select(func.count())
        .where(mate.c.job_id == task.c.job_id, mate.c.status == TaskStatus.RUNNING)
        .scalar_subquery()
    )
    free = or_(
        and_(
            task.c.status == TaskStatus.WAITING,
            or_(task.c.not_before.is_(None), task.c.not_before <= bindparam("awake_at")),
        ),
        and_(task.c.status == TaskStatus.RUNNING, task.c.heartbeat_at < bindparam("stale_before")),
    )
    query = (
        select(task)
        .join(job, job.c.job_id == task.c.job_id)
        # A job that was planned before a hold was placed does not know of it.
        .join(policy, (policy.c.policy_id == job.c.policy_id) & (policy.c.hold_version == job.c.hold_version))
        .where(free, job.c.status.in_(_CLAIMABLE_JOBS))
    )
    if limited:
        query = query.where(task.c.job_id.in_(bindparam("jobs", expanding=True)))
    return query.order_by(runners, job.c.behind.desc(), task.c.job_id, task.c.ordinal).limit(CANDIDATES)


_LEASED = update(task).where(task.c.task_id == bindparam("lease_id"), task.c.fence == bindparam("lease_fence"))
"""Built once: it is executed with every batch, and building it anew took longer than running it."""


_END = delete(task).where(task.c.task_id == bindparam("lease_id"), task.c.fence == bindparam("lease_fence"))
_ADDRESS: ColumnElement[str] = literal_column("CAST(ctid AS text)")
_LEASED_ANYWHERE = _LEASED.returning(_ADDRESS)
_LEASED_HERE = _LEASED_ANYWHERE.where(text("ctid = CAST(:lease_address AS tid)"))
_addresses: dict[int, str] = {}
"""Task → where PostgreSQL keeps the newest version of its row, as this process last knew."""


def _write(connection: Connection, lease: Task, **values: object) -> None:
    wanted = {"lease_id": lease.id, "lease_fence": lease.fence, **values}
    if not _update(connection, lease.id, wanted):
        raise _fenced(lease)


def _fenced(lease: Task) -> Fenced:
    return Fenced(f"task {lease.id} of job {lease.job_id} belongs to another worker now")


def _update(connection: Connection, task_id: int, wanted: dict[str, object]) -> bool:
    if connection.dialect.name != "postgresql":
        return connection.execute(_LEASED, wanted).rowcount == 1
    # While an old snapshot is open no version of the row can be cleaned up, and an index leads to all of them, one for
    # each batch. By its address the newest is found at once; the fence is compared all the same.
    known = _addresses.pop(task_id, None)
    address = connection.execute(_LEASED_HERE, wanted | {"lease_address": known}).scalar() if known else None
    address = address or connection.execute(_LEASED_ANYWHERE, wanted).scalar()
    if address is not None and wanted.get("status") is None:
        _addresses[task_id] = address
    return address is not None


def progress_values(progress: Progress) -> dict[str, object]:
    """Columns of a task's row."""
    counts = progress.counts
    return {
        "position": progress.cursor,
        "sweep": progress.sweep,
        "selected": counts.selected,
        "deleted": counts.deleted,
        "held": counts.held,
        "skipped": counts.skipped,
        "errors": counts.errors,
        "batches": counts.batches,
        "worked_seconds": progress.worked_seconds,
        "waited_seconds": progress.waited_seconds,
        "locked_seconds": progress.locked_seconds,
        "lasted_seconds": progress.lasted_seconds,
        "pause_reason": progress.pause_reason,
        "last_error": progress.last_error,
        "waits": json.dumps(dict(progress.waits)) if progress.waits else None,
    }


def _counts(row: RowMapping) -> Counts:
    return Counts(
        selected=row["selected"],
        deleted=row["deleted"],
        held=row["held"],
        skipped=row["skipped"],
        errors=row["errors"],
        batches=row["batches"],
    )


def _task(row: RowMapping, *, fence: int, owner: str | None) -> Task:
    return Task(
        id=row["task_id"],
        job_id=row["job_id"],
        ordinal=row["ordinal"],
        range=KeyRange(start=row["range_start"], end=row["range_end"]),
        cursor=row["position"],
        sweep=row["sweep"],
        fence=fence,
        owner=owner,
        status=TaskStatus(row["status"]),
        counts=_counts(row),
        failures=row["failures"],
    )
