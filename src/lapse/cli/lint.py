"""`lapse lint`: has every table a policy, or a reason for having none?"""

from __future__ import annotations

import typer

from lapse.cli.failures import EXIT_FAILED
from lapse.cli.opening import Json, Url
from lapse.cli.output import Output
from lapse.cli.policyfile import (
    DEFAULT_FILE,
    EnvironmentOption,
    FileOption,
    open_file,
    problem_record,
    show_problems,
)


def lint(
    url: Url = None,
    file: FileOption = DEFAULT_FILE,
    environment: EnvironmentOption = None,
    as_json: Json = False,
) -> None:
    """Check that the file has a policy, or a reason for having none, for every table of the database.

    Exit code 1 when a table is missing in the file, or an entry has no table.

    Example: `lapse lint sqlite:///app.db --file lapse.toml`
    """
    output = Output()
    policies, database = open_file(file, environment, url)
    with database:
        problems = database.lint(policies)
    if as_json:
        output.json([problem_record(problem) for problem in problems])
    elif problems:
        show_problems(output, problems)
    else:
        output.line("Every table has a policy, or a reason for having none.", "green")
    if problems:
        raise typer.Exit(EXIT_FAILED)
