"""`lapse jobs`: what is going on now."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.app.records import job_record
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output, duration
from lapse.model.job import Job


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
        return
    if not listed:
        output.line(empty)
        return
    columns = ("job", "table", "status", "started (UTC)", "took", "deleted", "held")
    output.table(columns, [_row(job) for job in listed], right=("job", "took", "deleted", "held"), whole=columns[3:])
    reasons: dict[str, list[str]] = {}
    for job in listed:
        reason = job.reason or job.waiting_for
        if reason is not None:
            reasons.setdefault(reason, []).append(job.label)
    for reason, numbers in reasons.items():
        output.line(f"job{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}: {reason}", "yellow")


def deleted(jobs: Sequence[Job]) -> str:
    """By all of them together."""
    if not all(job.is_count_known for job in jobs):
        return "unknown"
    about = "about " if any(job.estimated for job in jobs) else ""
    return f"{about}{sum(job.counts.deleted for job in jobs):,}" if jobs else "-"


def _row(job: Job) -> tuple[object, ...]:
    started = job.started_at or job.created_at
    seconds = None if job.finished_at is None else (job.finished_at - started).total_seconds()
    return (
        job.label,
        job.table,
        _status(job),
        f"{started:%b %d %H:%M:%S}",
        "-" if seconds is None else f"{seconds:.1f} s" if seconds < 60 else duration(seconds),
        deleted([job]),
        f"{job.counts.held:,}",
    )


def _status(job: Job) -> str:
    if job.is_drop:
        return "partition dropped"
    words = job.status.replace("_", " ")
    is_shared = job.status.is_active and job.tasks_total > 1
    return f"{words}, {job.tasks_finished} of {job.tasks_total} tasks" if is_shared else words
