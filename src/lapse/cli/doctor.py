"""`lapse doctor`: what is wrong, and what could be better."""

from __future__ import annotations

from typing import Annotated

import typer

from lapse.app import Finding, Level
from lapse.app.records import finding_record
from lapse.cli.failures import EXIT_FAILED
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output

_STYLES = {Level.OK: "green", Level.ADVICE: "yellow", Level.PROBLEM: "bold red"}


def doctor(
    url: Url = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired safely.")] = False,
    as_json: Json = False,
) -> None:
    """Look for what is wrong or could be better, each with the command that fixes it.

    Privileges, tables that went away, missing triggers, changed columns, indexes, foreign keys, comments that declare
    nothing, implausible times, clocks, vacuum, lateness, workers. Exit code 1 when a problem is left.

    Example: `lapse doctor sqlite:///app.db --repair`
    """
    output = Output()
    with open_database(url) as database:
        findings = database.doctor(repair=repair)
    if as_json:
        output.json([finding_record(finding) for finding in findings])
    else:
        for finding in findings:
            _show(output, finding)
        if not findings:
            output.line("No table has a TTL policy; nothing to examine.")
    if any(finding.level is Level.PROBLEM and not finding.fixed for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _show(output: Output, finding: Finding) -> None:
    word = "fixed" if finding.fixed else str(finding.level)
    style = "green" if finding.fixed else _STYLES[finding.level]
    output.line(f"{word:8} {finding.subject}: {finding.text}", style)
    if finding.fix and not finding.fixed:
        output.line(f"         {finding.fix}")
