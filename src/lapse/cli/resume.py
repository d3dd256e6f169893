"""`lapse resume`: go on deleting."""

from __future__ import annotations

from lapse.app import Lapse
from lapse.cli.control import JobOption, control
from lapse.cli.opening import TableArgument, Url
from lapse.model.statement import JobAction


def resume(url: Url = None, table: TableArgument = None, job: JobOption = None) -> None:
    """Go on with a table, or a job, that was paused, or confirm a first run that was held.

    A job continues where it stopped. Confirming lets the policy delete as many rows as have expired.

    Example: `lapse resume sqlite:///app.db events`
    """
    control(url, table, job, JobAction.RESUME, _resume)


def _resume(database: Lapse, table: str) -> str:
    database.resume(table)
    return f"Table {table} is resumed."
