"""`lapse resume`: go on deleting."""

from __future__ import annotations

from typing import Annotated

import typer

from lapse.app import Lapse
from lapse.cli.control import JobOption, control
from lapse.cli.opening import TableArgument, Url, open_database
from lapse.cli.output import Output
from lapse.errors import UsageError
from lapse.model.statement import JobAction

Clock = Annotated[bool, typer.Option("--clock", help="Trust the database's clock again after it jumped ahead.")]


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
    control(url, table, job, JobAction.RESUME, _resume)


def _resume(database: Lapse, table: str) -> str:
    database.resume(table)
    return f"Table {table} is resumed."
