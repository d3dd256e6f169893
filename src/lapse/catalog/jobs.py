"""Jobs as stored: controlled by a flag, ended once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)

from lapse.catalog import ledger, ledger_keys
from lapse.catalog.schema import LARGEST_ID, Instant, job, task
from lapse.errors import NotFound, PolicyConflict
from lapse.model.job import (
    PAUSED_BY_REQUEST,
    THROUGH,
    Counts,
    Job,
    JobKey,
    JobStatus,
    JobSummary,
    Path,
    PathKind,
    TaskStatus,
)
from lapse.model.ledger import EntryKind
from lapse.model.statement import JobAction
from lapse.model.table import TableName


def get_job(connection: Connection, job_id: int) -> Job:
    # What no column can hold is the id of no job.
    known = 0 <= job_id <= LARGEST_ID
    row = connection.execute(_by_id(), {"wanted_id": job_id}).mappings().first() if known else None
    if row is None:
        raise NotFound(f"there is no job {job_id}", hint="`lapse jobs` lists the jobs")
    return _job(row)


def active_jobs(connection: Connection) -> list[Job]:
    return [_job(row) for row in connection.execute(_active()).mappings()]


def recent_jobs(connection: Connection, *, limit: int, name: TableName | None = None) -> list[Job]:
    """Newest first; active ones included."""
    query = _query().order_by(job.c.job_id.desc()).limit(limit)
    if name is not None:
        query = query.where(job.c.schema_name == (name.schema or ""), job.c.table_name == name.name)
    return [_job(row) for row in connection.execute(query).mappings()]


def archived_from(connection: Connection, archive: str, *, but: int | None) -> set[TableName]:
    """The tables whose rows jobs have moved there, those of one policy left out."""
    found = select(job.c.table_name, job.c.schema_name).where(job.c.archive == archive, job.c.deleted > 0).distinct()
    others = found if but is None else found.where(job.c.policy_id != but)
    return {TableName(name, schema or None) for name, schema in connection.execute(others)}


def archiving_jobs(connection: Connection, archive: str) -> list[Job]:
    """Those that have moved rows there, the oldest first."""
    query = _query().where(job.c.archive == archive).order_by(job.c.job_id)
    return [each for row in connection.execute(query).mappings() if (each := _job(row)).counts.deleted]


def archives(connection: Connection) -> list[tuple[TableName, str]]:
    """Where jobs have moved rows to, with the table that they came from."""
    found = select(job.c.table_name, job.c.schema_name, job.c.archive).where(
        job.c.archive.is_not(None), job.c.deleted > 0
    )
    return [(TableName(name, schema or None), text) for name, schema, text in connection.execute(found.distinct())]


def last_archive(connection: Connection, name: TableName) -> str | None:
    """Where the last job that archived rows of a table put them."""
    found = select(job.c.archive).where(job.c.schema_name == (name.schema or ""), job.c.table_name == name.name)
    newest = found.where(job.c.archive.is_not(None)).order_by(job.c.job_id.desc()).limit(1)
    archive: str | None = connection.execute(newest).scalar()
    return archive


def count_restored(
    connection: Connection, table: TableName, archive: str, rows: Mapping[int, int], now: datetime
) -> None:
    """Rows that came back, by job; of jobs that the history has forgotten the ledger alone tells."""
    if rows:
        counted = {"restored": sum(rows.values()), "archive": archive, "jobs": rows}
        ledger.record(connection, EntryKind.RESTORED, now=now, table=table, after=counted)
    for job_id, number in rows.items():
        connection.execute(update(job).where(job.c.job_id == job_id).values(restored=job.c.restored + number))


@dataclass(frozen=True, kw_only=True, slots=True)
class LastJobs:
    """Of one physical table: the newest job that `ended`, that went `through` the whole table, that `finished`, and
    that was `clean`, which left no expired row behind."""

    ended: Job | None = None
    through: Job | None = None
    finished: Job | None = None
    clean: Job | None = None


def last_jobs(connection: Connection) -> dict[int, LastJobs]:
    """By physical table; those that never had a job are missing."""
    ended = job.c.finished_at.is_not(None)
    finished = job.c.status == JobStatus.FINISHED
    kinds = (ended, job.c.status.in_(THROUGH), finished, and_(finished, job.c.held == 0))
    newest = (select(func.max(job.c.job_id)).where(kind).group_by(job.c.table_id) for kind in kinds)
    query = _query().where(or_(*(job.c.job_id.in_(each) for each in newest))).order_by(job.c.job_id)
    found: dict[int, LastJobs] = {}
    for row in connection.execute(query).mappings():
        each = _job(row)
        known = replace(found.get(each.table_id, LastJobs()), ended=each)
        if each.status in THROUGH:
            known = replace(known, through=each)
        if each.status is JobStatus.FINISHED:
            known = replace(known, finished=each, clean=known.clean if each.counts.held else each)
        found[each.table_id] = known
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """What earlier jobs of a physical table came to: the `watermark` is the cutoff of the newest that finished, as rows
    left since then may have been locked; `held` rows could not be deleted by the newest that went through it."""

    watermark: datetime | None
    held: int


def before(connection: Connection, table_id: int) -> Before:
    newest = connection.execute(_newest(THROUGH), {"wanted_id": table_id}).first()
    if newest is None:
        return Before(watermark=None, held=0)
    if newest.status == JobStatus.FINISHED:
        return Before(watermark=newest.cutoff, held=int(newest.held))
    finished = connection.execute(_newest((JobStatus.FINISHED,)), {"wanted_id": table_id}).first()
    return Before(watermark=None if finished is None else finished.cutoff, held=int(newest.held))


@cache
def _newest(states: tuple[JobStatus, ...]) -> Select[Any]:
    found = select(job.c.status, job.c.cutoff, job.c.held).where(job.c.table_id == bindparam("wanted_id"))
    return found.where(job.c.status.in_(states)).order_by(job.c.job_id.desc()).limit(1)


def held_before(connection: Connection, ended: Job) -> int:
    """How many rows the last job before this one that went through the same physical table could not delete."""
    earlier = select(job.c.held).where(
        job.c.table_id == ended.table_id, job.c.status.in_(THROUGH), job.c.job_id < ended.id
    )
    return int(connection.execute(earlier.order_by(job.c.job_id.desc()).limit(1)).scalar() or 0)


def deleted_per_day(connection: Connection, *, since: datetime) -> dict[int, dict[date, int]]:
    """Rows deleted by jobs that ended since then: policy → day in UTC → rows."""
    day = func.date(job.c.finished_at)
    query = (
        select(job.c.policy_id, day.label("day"), func.sum(job.c.deleted).label("deleted"))
        .where(job.c.finished_at >= since)
        .group_by(job.c.policy_id, day)
    )
    found: dict[int, dict[date, int]] = {}
    for row in connection.execute(query):
        # A date on servers, text on SQLite.
        when = date.fromisoformat(row.day) if isinstance(row.day, str) else row.day
        found.setdefault(row.policy_id, {})[when] = int(row.deleted)
    return found


def start_job(connection: Connection, job_id: int, *, owner: str, now: datetime) -> None:
    connection.execute(
        update(job)
        .where(job.c.job_id == job_id, job.c.status == JobStatus.WAITING)
        .values(
            status=JobStatus.RUNNING,
            reason=None,
            owner_id=owner,
            started_at=func.coalesce(job.c.started_at, now),
            changed_at=now,
        )
    )


def mark_job(connection: Connection, job_id: int, status: JobStatus, reason: str | None, now: datetime) -> None:
    """Change what an active job is doing, or what is said about it: then it does so since as long as before."""
    since = case((job.c.status != status, literal(now, Instant)), else_=job.c.changed_at)
    connection.execute(
        update(job)
        .where(job.c.job_id == job_id, job.c.active_table_id.is_not(None))
        # In this order: MySQL computes with what it has just assigned.
        .ordered_values((job.c.changed_at, since), (job.c.status, status), (job.c.reason, reason))
    )


def request(connection: Connection, job_id: int, action: JobAction, now: datetime) -> Job:
    """Ask for a job to pause, go on or be cancelled; the workers at it obey."""
    found = get_job(connection, job_id)
    if not found.status.is_active:
        raise PolicyConflict(f"job {job_id} has ended ({found.status}), so it cannot {action}")
    if found.status is JobStatus.CANCELLING:
        raise PolicyConflict(f"job {job_id} is being cancelled, so it cannot {action}")
    values: dict[str, object] = {"control": None if action is JobAction.RESUME else str(action), "changed_at": now}
    if action is JobAction.CANCEL:
        values |= {"status": JobStatus.CANCELLING, "reason": "cancelled by request"}
    elif action is JobAction.PAUSE:
        values |= {"status": JobStatus.PAUSED, "reason": PAUSED_BY_REQUEST}
    else:
        values |= {"status": JobStatus.WAITING, "reason": None}
    connection.execute(update(job).where(job.c.job_id == job_id).values(**values))
    before, after = {"job": job_id, "status": str(found.status)}, {"job": job_id, "status": str(values["status"])}
    ledger.record(connection, _KINDS[action], now=now, table=found.table, before=before, after=after)
    return get_job(connection, job_id)


def finish_job(
    connection: Connection,
    key: JobKey,
    status: JobStatus,
    *,
    counts: Counts,
    summary: JobSummary,
    now: datetime,
    reason: str | None = None,
    has_tasks: bool = True,
) -> bool:
    """End a job with what its tasks, which go, came to; False if it had ended already.

    `has_tasks`: some may be left, besides what the caller has removed.
    """
    values = {
        "status": status,
        "reason": reason,
        "summary": summary.to_json(),
        "active_table_id": None,
        "control": None,
        "finished_at": now,
        "changed_at": now,
        **{name: getattr(counts, name) for name in COUNT_NAMES},
    }
    result = connection.execute(_ENDED, {"ended_id": key.id, **values})
    if has_tasks:
        connection.execute(_WITHOUT_TASKS, {"ended_id": key.id})
    if result.rowcount != 1:
        return False
    record_run(connection, key, status, counts=counts, now=now, reason=reason)
    return True


def record_run(
    connection: Connection, key: JobKey, status: JobStatus, *, counts: Counts, now: datetime, reason: str | None
) -> None:
    found = {
        "job": key.id,
        "status": str(status),
        "policy_version": key.policy_version,
        "cutoff": key.cutoff,
        **{name: getattr(counts, name) for name in COUNT_NAMES},
    }
    told = {"partition": key.table.partition, "archive": key.archive, "reason": reason}
    found |= {name: text for name, text in told.items() if text is not None}
    if key.ledger_keys:
        found["keys"] = ledger_keys.summary(connection, key.id)
    ledger.record(connection, EntryKind.RUN, now=now, table=key.table, after=found)


def ended(
    job: Job, status: JobStatus, *, reason: str | None, counts: Counts, summary: JobSummary, now: datetime
) -> Job:
    """As `get_job` tells of one that `finish_job` has just ended."""
    finished = job.tasks_total if status in THROUGH else 0
    return replace(
        job,
        status=status,
        control=None,
        reason=reason,
        finished_at=now,
        tasks_finished=finished,
        counts=counts,
        summary=summary,
        waiting_for=None,
    )


def forget_jobs(connection: Connection, *, before: datetime) -> int:
    """Lapse's own TTL: drop ended jobs from the history, the oldest first and so many at a time."""
    old = select(job.c.job_id).where(job.c.finished_at <= before).order_by(job.c.finished_at).limit(FORGOTTEN_AT_ONCE)
    ids = connection.execute(old).scalars().all()
    return connection.execute(delete(job).where(job.c.job_id.in_(ids))).rowcount if ids else 0


_KINDS = {JobAction.PAUSE: EntryKind.PAUSED, JobAction.RESUME: EntryKind.RESUMED, JobAction.CANCEL: EntryKind.CANCELLED}
_WITHOUT_TASKS = delete(task).where(task.c.job_id == bindparam("ended_id"))
_ENDED = update(job).where(job.c.job_id == bindparam("ended_id"), job.c.active_table_id.is_not(None))
FORGOTTEN_AT_ONCE = 1_000
COUNT_NAMES = ("selected", "deleted", "held", "skipped", "errors", "batches")


@cache
def _query(*of: ColumnElement[bool]) -> Select[Any]:
    """A job with its tasks' counts added up, while they are there; `of` says which tasks, where not all are wanted.

    Built once: that takes longer than running it.
    """
    at_work = task.c.status == TaskStatus.RUNNING
    # Because of an error, such as a lock that was not to be had: it still waits for the same.
    given_back = and_(task.c.status == TaskStatus.WAITING, task.c.failures > 0)
    found = (
        select(
            task.c.job_id,
            func.sum(case((task.c.status == TaskStatus.FINISHED, 1), else_=0)).label("finished"),
            func.max(case((or_(at_work, given_back), task.c.pause_reason))).label("waiting_for"),
            *(func.sum(task.c[name]).label(name) for name in COUNT_NAMES),
        )
        .where(*of)
        .group_by(task.c.job_id)
        .subquery("found")
    )
    # The tasks of an ended job are gone, and its own columns hold what they came to.
    counted = [func.coalesce(found.c[name], job.c[name]).label(f"total_{name}") for name in COUNT_NAMES]
    finished = func.coalesce(found.c.finished, 0).label("tasks_finished")
    joined = job.outerjoin(found, found.c.job_id == job.c.job_id)
    return select(job, finished, found.c.waiting_for, *counted).select_from(joined)


@cache
def _by_id() -> Select[Any]:
    # Said of the tasks as well: not every engine finds out by itself that it need not add up all of them.
    return _query(task.c.job_id == bindparam("wanted_id")).where(job.c.job_id == bindparam("wanted_id"))


@cache
def _active() -> Select[Any]:
    return _query().where(job.c.active_table_id.is_not(None)).order_by(job.c.job_id)


def _job(row: RowMapping) -> Job:
    ended = row["finished_at"] is not None
    return Job(
        id=row["job_id"],
        table_id=row["table_id"],
        policy_id=row["policy_id"],
        table=TableName(
            row["table_name"],
            row["schema_name"] or None,
            row["partition_name"] or None,
            row["partition_schema"] or None,
        ),
        policy_version=row["policy_version"],
        cutoff=row["cutoff"],
        status=JobStatus(row["status"]),
        control=row["control"],
        reason=row["reason"],
        fingerprint=row["fingerprint"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        path=Path(kind=PathKind(row["path_kind"]), index=row["path_index"], evidence=row["path_evidence"]),
        tasks_total=row["tasks_total"],
        tasks_finished=int(row["tasks_total" if ended and row["status"] in THROUGH else "tasks_finished"]),
        counts=Counts(**{name: int(row[f"total_{name}"]) for name in COUNT_NAMES}),
        summary=JobSummary.from_json(row["summary"]) if row["summary"] else None,
        waiting_for=row["waiting_for"],
        hold_version=row["hold_version"],
        archive=row["archive"],
        restored=int(row["restored"]),
        ledger_keys=bool(row["ledger_keys"]),
    )
