"""`lapse history`: what jobs have done."""

from __future__ import annotations

from typing import Annotated

import typer

from lapse.app import HISTORY_LIMIT
from lapse.cli import jobs
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output


def history(
    url: Url = None,
    table: Annotated[str | None, typer.Option("--table", "-t", help="Jobs of this table only.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")] = HISTORY_LIMIT,
    as_json: Json = False,
) -> None:
    """List jobs, newest first, with what became of them and how many rows they deleted.

    Example: `lapse history sqlite:///app.db --table events --limit 10`
    """
    output = Output()
    with open_database(url) as database:
        found = database.history(table, limit=limit)
    jobs.show(output, found, as_json=as_json, empty="No job has run yet.")
