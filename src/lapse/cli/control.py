"""What pause, resume and cancel have in common: a table, or one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from lapse.app import Lapse
from lapse.cli.opening import open_database, shifted, url_and_table
from lapse.cli.output import Output
from lapse.errors import UsageError
from lapse.model.statement import JobAction

JobOption = Annotated[int | None, typer.Option("--job", metavar="ID", help="One job instead of a table.")]


def control(
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
