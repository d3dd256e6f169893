"""`lapse pause`, `lapse resume`, `lapse cancel`: each takes a table, or one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from lapse.app import Lapse
from lapse.cli.opening import TableArgument, Url, open_database, shifted, url_and_table
from lapse.cli.output import Output
from lapse.errors import UsageError
from lapse.model.statement import JobAction

JobOption = Annotated[int | None, typer.Option("--job", metavar="ID", help="One job instead of a table.")]
Clock = Annotated[bool, typer.Option("--clock", help="Trust the database's clock again after it jumped ahead.")]


def pause(url: Url = None, table: TableArgument = None, job: JobOption = None) -> None:
    """Stop deleting from a table (sets ttl_pause), or pause one job; `lapse resume` goes on from there.

    Example: `lapse pause sqlite:///app.db events`
    """
    _control(url, table, job, JobAction.PAUSE, _pause)


def _pause(database: Lapse, table: str) -> str:
    database.pause(table)
    return f"Table {table} is paused: no rows are deleted until it is resumed."


def resume(url: Url = None, table: TableArgument = None, job: JobOption = None, clock: Clock = False) -> None:
    """Go on with a table, or a job, that was paused, or confirm a first run that waits for confirmation.

    A job continues where it stopped. Confirming lets the policy delete as many rows as have expired.

    Example: `lapse resume sqlite:///app.db events`
    """
    if clock:
        if table is not None or job is not None:
            raise UsageError("--clock is about the whole database: give no table and no job")
        with open_database(url) as database:
            trusted = database.confirm_clock()
        Output().line("The clock is trusted again." if trusted else "The clock was trusted already.")
        return
    _control(url, table, job, JobAction.RESUME, _resume)


def _resume(database: Lapse, table: str) -> str:
    database.resume(table)
    return f"Table {table} is resumed."


def cancel(url: Url = None, table: TableArgument = None, job: JobOption = None) -> None:
    """Cancel the active jobs of a table, or one job. The policy stays: the next run deletes what is left.

    Example: `lapse cancel sqlite:///app.db --job 17`
    """
    _control(url, table, job, JobAction.CANCEL, _cancel)


def _cancel(database: Lapse, table: str) -> str:
    jobs = database.cancel(table)
    if not jobs:
        return f"Table {table} has no active job."
    return f"Table {table}: " + ", ".join(f"job {job.id} is {job.status}" for job in jobs) + "."


def _control(
    url: str | None, table: str | None, job: int | None, action: JobAction, on_table: Callable[[Lapse, str], str]
) -> None:
    """Apply `action` to a job, or `on_table`, which says what it did, to a table."""
    output = Output()
    if job is None:
        url, name = url_and_table(url, table)
        with open_database(url) as database:
            output.line(on_table(database, name))
        return
    url, table = shifted(url, table)
    if table is not None:
        raise UsageError("a table and --job are mutually exclusive")
    with open_database(url) as database:
        changed = database.control(job, action)
    output.line(f"Job {changed.id} of table {changed.table} is {changed.status}.")
