"""`lapse plan`: what a file of policies would change."""

from __future__ import annotations

import typer

from lapse.cli.failures import EXIT_FAILED, EXIT_INCOMPLETE
from lapse.cli.opening import Json, Url
from lapse.cli.output import Output
from lapse.cli.policyfile import (
    DEFAULT_FILE,
    EnvironmentOption,
    FileOption,
    PruneOption,
    open_file,
    plan_record,
    show_plan,
)


def plan(
    url: Url = None,
    file: FileOption = DEFAULT_FILE,
    environment: EnvironmentOption = None,
    prune: PruneOption = False,
    as_json: Json = False,
) -> None:
    """Compare a file of policies with the database and show what `lapse apply` would change. Changes nothing.

    For each change it says what the first run would delete. Exit code 0: nothing to change; 3: changes are pending;
    1: an entry cannot be done.

    Example: `lapse plan sqlite:///app.db --file lapse.toml`
    """
    output = Output()
    policies, database = open_file(file, environment, url)
    with database:
        found = database.plan(policies, prune=prune)
    if as_json:
        output.json(plan_record(found))
    else:
        show_plan(output, found)
    if found.problems:
        raise typer.Exit(EXIT_FAILED)
    if found.changes:
        raise typer.Exit(EXIT_INCOMPLETE)
