"""`lapse apply`: make the database have the policies of a file."""

from __future__ import annotations

import typer

from lapse.cli.failures import EXIT_FAILED
from lapse.cli.opening import Json, Url
from lapse.cli.output import Output
from lapse.cli.policyfile import (
    DEFAULT_FILE,
    EnvironmentOption,
    FileOption,
    PruneOption,
    open_file,
    plan_record,
    show_applied,
    show_plan,
)


def apply(
    url: Url = None,
    file: FileOption = DEFAULT_FILE,
    environment: EnvironmentOption = None,
    prune: PruneOption = False,
    as_json: Json = False,
) -> None:
    """Make the database have the policies of a file, as `lapse plan` shows. Deletes no rows: that is for the next run.

    If one entry cannot be done, nothing is changed and the exit code is 1. Applying again changes nothing.

    Example: `lapse apply sqlite:///app.db --file lapse.toml`
    """
    output = Output()
    policies, database = open_file(file, environment, url)
    with database:
        found = database.plan(policies, prune=prune)
        notices = () if found.problems else database.apply(found)
    if as_json:
        output.json(plan_record(found))
    elif found.problems:
        show_plan(output, found)
    else:
        show_applied(output, found)
    for notice in notices:
        output.notice(notice)
    if found.problems:
        output.hint("nothing was changed")
        raise typer.Exit(EXIT_FAILED)
