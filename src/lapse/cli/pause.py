"""`lapse pause`: stop deleting for a while."""

from __future__ import annotations

from lapse.app import Lapse
from lapse.cli.control import JobOption, control
from lapse.cli.opening import TableArgument, Url
from lapse.model.statement import JobAction


def pause(url: Url = None, table: TableArgument = None, job: JobOption = None) -> None:
    """Stop deleting from a table (sets ttl_pause), or pause one job; `lapse resume` goes on from there.

    Example: `lapse pause sqlite:///app.db events`
    """
    control(url, table, job, JobAction.PAUSE, _pause)


def _pause(database: Lapse, table: str) -> str:
    database.pause(table)
    return f"Table {table} is paused: no rows are deleted until it is resumed."
