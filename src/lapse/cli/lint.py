"""`lapse lint`: has every table a policy, or a reason for having none?"""

from __future__ import annotations

import typer

from lapse.app import PolicyFile, read_file
from lapse.cli.failures import EXIT_FAILED
from lapse.cli.opening import Json, Url, database_url, open_database
from lapse.cli.output import Output
from lapse.cli.policyfile import (
    DEFAULT_FILE,
    EnvironmentOption,
    FileOption,
    problem_record,
    show_problems,
)


def lint(
    url: Url = None,
    file: FileOption = DEFAULT_FILE,
    environment: EnvironmentOption = None,
    as_json: Json = False,
) -> None:
    """Check a file of policies, and that it has a policy, or a reason for having none, for every table of the database.

    Without a database the file alone is checked: its keys, values and contradictions. Exit code 1 when a table is
    missing in the file, or an entry has no table; 2 for a mistake in the file.

    Example: `lapse lint sqlite:///app.db --file lapse.toml`
    """
    output = Output()
    policies = read_file(file, environment, needs_url=False)
    address = database_url(url or policies.url)
    if address is None:
        _show_alone(output, policies, as_json=as_json)
        return
    with open_database(address) as database:
        problems = database.lint(policies)
    if as_json:
        output.json([problem_record(problem) for problem in problems])
    elif problems:
        show_problems(output, problems)
    else:
        output.line("Every table has a policy, or a reason for having none.", "green")
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _show_alone(output: Output, policies: PolicyFile, *, as_json: bool) -> None:
    if as_json:
        output.json([])
    excluded = sum(entry.exclude is not None for entry in policies.tables)
    declared = len(policies.tables) - excluded
    words = (
        f"{policies.path}: {_counted(declared, 'policy', 'policies')}, {_counted(excluded, 'exclusion', 'exclusions')}"
    )
    if not as_json:
        output.line(f"{words}, no mistakes", "green")
    output.notice("no database was given, so the file was not compared with its tables")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
