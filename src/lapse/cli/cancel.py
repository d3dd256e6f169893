"""`lapse cancel`: end a job early."""

from __future__ import annotations

from lapse.app import Lapse
from lapse.cli.control import JobOption, control
from lapse.cli.opening import TableArgument, Url
from lapse.model.statement import JobAction


def cancel(url: Url = None, table: TableArgument = None, job: JobOption = None) -> None:
    """Cancel the active jobs of a table, or one job. The policy stays: the next run deletes what is left.

    Example: `lapse cancel sqlite:///app.db --job 17`
    """
    control(url, table, job, JobAction.CANCEL, _cancel)


def _cancel(database: Lapse, table: str) -> str:
    jobs = database.cancel(table)
    if not jobs:
        return f"Table {table} has no active job."
    return f"Table {table}: " + ", ".join(f"job {job.id} is {job.status}" for job in jobs) + "."
