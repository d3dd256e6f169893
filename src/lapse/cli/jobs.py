"""`lapse jobs`: what is going on now."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.app.records import job_record
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output, moment
from lapse.model.job import Job, JobStatus, PathKind


def jobs(url: Url = None, as_json: Json = False) -> None:
    """List the jobs that are active now: waiting, running, paused or being cancelled.

    Example: `lapse jobs sqlite:///app.db`
    """
    output = Output()
    with open_database(url) as database:
        active = database.jobs()
    show(output, active, as_json=as_json, empty="No job is active.")


def show(output: Output, listed: Sequence[Job], *, as_json: bool, empty: str) -> None:
    if as_json:
        output.json([job_record(job) for job in listed])
    elif not listed:
        output.line(empty)
    else:
        columns = ("job", "table", "status", "started (UTC)", "ended (UTC)", "tasks", "deleted", "held", "why")
        output.table(columns, [_row(job) for job in listed], right=("job", "deleted", "held"))


def deleted(job: Job) -> str:
    return f"{'about ' if job.estimated else ''}{job.counts.deleted:,}"


def is_drop(job: Job) -> bool:
    """Did it drop a partition, instead of deleting rows?"""
    return job.path.kind is PathKind.PARTITION and job.status is JobStatus.FINISHED


def _row(job: Job) -> tuple[object, ...]:
    return (
        job.id,
        job.table,
        job.status,
        moment(job.started_at),
        moment(job.finished_at),
        f"{job.tasks_finished}/{job.tasks_total}",
        deleted(job),
        f"{job.counts.held:,}",
        job.reason or ("partition dropped" if is_drop(job) else "-"),
    )
