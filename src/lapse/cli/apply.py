"""`lapse apply`: make the database have the policies of a file."""

from __future__ import annotations

from lapse.app import Lapse, PolicyFile
from lapse.app.records import Record
from lapse.cli.databases import DatabaseOption
from lapse.cli.failures import EXIT_FAILED
from lapse.cli.opening import Json, Url
from lapse.cli.output import Output
from lapse.cli.policyfile import (
    DEFAULT_FILE,
    EnvironmentOption,
    FileOption,
    PruneOption,
    plan_record,
    show_applied,
    show_plan,
    with_policies,
)


def apply(
    url: Url = None,
    file: FileOption = DEFAULT_FILE,
    environment: EnvironmentOption = None,
    names: DatabaseOption = None,
    prune: PruneOption = False,
    as_json: Json = False,
) -> None:
    """Make the database have the policies of a file, as `lapse plan` shows. Deletes no rows: that is for the next run.

    If one entry cannot be done, nothing is changed and the exit code is 1. Applying again changes nothing. A file with
    `[databases.NAME]` entries is applied to all of them, or to those that `--database` names, each by itself.

    Example: `lapse apply sqlite:///app.db --file lapse.toml`
    """
    output = Output()

    def do(output: Output, database: Lapse, policies: PolicyFile) -> tuple[Record, int]:
        found = database.plan(policies, prune=prune)
        notices = () if found.problems else database.apply(found)
        if not as_json:
            show_plan(output, found) if found.problems else show_applied(output, found)
        for notice in notices:
            output.notice(notice)
        if found.problems:
            output.hint("nothing was changed")
        return plan_record(found), EXIT_FAILED if found.problems else 0

    with_policies(output, file, environment, url, names, do, as_json=as_json)
