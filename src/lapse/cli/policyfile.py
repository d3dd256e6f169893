"""What plan, apply and lint begin with: a file, one of its environments, and the database that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lapse.app import Lapse, Plan, PolicyFile, Problem, read_file
from lapse.app.policyfile import FILE_NAME, Change, ChangeKind
from lapse.app.records import Record, table_record
from lapse.cli.databases import on_each
from lapse.cli.opening import open_database
from lapse.cli.output import Output, rows
from lapse.errors import UsageError

FileOption = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The file of policies.")]
EnvironmentOption = Annotated[
    str | None, typer.Option("--env", "-e", metavar="NAME", help="An environment of the file, with its own URL.")
]
PruneOption = Annotated[
    bool, typer.Option("--prune", help="Remove policies that the file does not mention, instead of leaving them.")
]
DEFAULT_FILE = Path(FILE_NAME)

_SIGNS = {ChangeKind.CREATE: ("+", "green"), ChangeKind.CHANGE: ("~", "yellow"), ChangeKind.REMOVE: ("-", "red")}

_DONE = {ChangeKind.CREATE: "created", ChangeKind.CHANGE: "changed", ChangeKind.REMOVE: "removed"}


def with_policies(
    output: Output,
    file: Path,
    environment: str | None,
    url: str | None,
    names: Sequence[str] | None,
    one: Callable[[Output, Lapse, PolicyFile], tuple[Record, int]],
    *,
    as_json: bool,
) -> None:
    """Ends the command, after one database or every database of the file."""
    if names and (environment or url):
        raise UsageError("--database names a database of the file: leave the URL and --env away")
    policies = read_file(file, environment)
    if url is None and policies.has_databases:
        on_each(output, file, names, lambda out, database, named: one(out, database, named.policies), as_json=as_json)
        return
    if names:
        raise UsageError(f"{file} has no [databases.NAME] entries")
    with open_database(url or policies.url) as database:
        record, code = one(output, database, policies)
    if as_json:
        output.json(record)
    if code:
        raise typer.Exit(code)


def show_plan(output: Output, plan: Plan) -> None:
    for change in plan.changes:
        _show_change(output, change)
    show_problems(output, plan.problems)
    _show_unmanaged(output, plan)
    words = ", ".join(f"{count} to {action}" for action, count in _counts(plan).items()) or "nothing to change"
    output.line(f"{words}, {plan.unchanged} unchanged", "bold")


def show_applied(output: Output, plan: Plan) -> None:
    """What `lapse apply` has done; a plan without problems."""
    for change in plan.changes:
        sign, style = _SIGNS[change.action]
        output.line(f"{sign} {change.table} ({change.place})", style)
        _show_fields(output, change)
    _show_unmanaged(output, plan)
    words = ", ".join(f"{count} {_DONE[action]}" for action, count in _counts(plan).items())
    output.line(f"Applied: {words}." if words else "Nothing to apply: every policy is as the file says.", "bold")


def _counts(plan: Plan) -> dict[ChangeKind, int]:
    found = {action: sum(change.action is action for change in plan.changes) for action in ChangeKind}
    return {action: count for action, count in found.items() if count}


def _show_unmanaged(output: Output, plan: Plan) -> None:
    for table in plan.unmanaged:
        output.notice(f"table {table} has a policy that the file does not mention; --prune would remove it")


def show_problems(output: Output, problems: tuple[Problem, ...] | list[Problem]) -> None:
    for problem in problems:
        output.line(f"! {problem.place}: {problem.table}: {problem.text}", "bold red")


def _show_change(output: Output, change: Change) -> None:
    sign, style = _SIGNS[change.action]
    output.line(f"{sign} {change.table} ({change.place})", style)
    _show_fields(output, change)
    if change.first_run is not None:
        first = change.first_run
        about = "" if first.exact else "about "
        output.line(f"    first run would delete {about}{first.expired:,} of {rows(first.rows)}")
        if first.held:
            output.line(f"    and would wait for confirmation: {first.held}", "yellow")


def _show_fields(output: Output, change: Change) -> None:
    for field in change.changed:
        before = "" if field.before is None else f"{field.before} → "
        output.line(f"    {field.name}: {before}{'unset' if field.after is None else field.after}")


def plan_record(plan: Plan) -> Record:
    return {
        "changes": [_change_record(change) for change in plan.changes],
        "problems": [problem_record(problem) for problem in plan.problems],
        "unmanaged": [table_record(name) for name in plan.unmanaged],
        "unchanged": plan.unchanged,
    }


def problem_record(problem: Problem) -> Record:
    return {"table": problem.table, "place": problem.place, "text": problem.text}


def _change_record(change: Change) -> Record:
    first = change.first_run
    return {
        "action": str(change.action),
        **table_record(change.table),
        "place": change.place,
        "changed": {field.name: {"before": field.before, "after": field.after} for field in change.changed},
        "statement": change.statement,
        "first_run": None
        if first is None
        else {"rows": first.rows, "expired": first.expired, "exact": first.exact, "held": first.held},
    }
