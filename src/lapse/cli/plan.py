"""`lapse plan`: what a file of policies would change."""

from __future__ import annotations

from lapse.app import Lapse, PolicyFile
from lapse.app.records import Record
from lapse.cli.databases import DatabaseOption
from lapse.cli.failures import EXIT_FAILED, EXIT_INCOMPLETE
from lapse.cli.opening import Json, Url
from lapse.cli.output import Output
from lapse.cli.policyfile import (
    DEFAULT_FILE,
    EnvironmentOption,
    FileOption,
    PruneOption,
    plan_record,
    show_plan,
    with_policies,
)


def plan(
    url: Url = None,
    file: FileOption = DEFAULT_FILE,
    environment: EnvironmentOption = None,
    names: DatabaseOption = None,
    prune: PruneOption = False,
    as_json: Json = False,
) -> None:
    """Compare a file of policies with the database and show what `lapse apply` would change. Changes nothing.

    For each change it says what the first run would delete. Exit code 0: nothing to change; 3: changes are pending;
    1: an entry cannot be done. A file with `[databases.NAME]` entries is compared with all of them, or with those that
    `--database` names.

    Example: `lapse plan sqlite:///app.db --file lapse.toml`
    """
    output = Output()

    def show(output: Output, database: Lapse, policies: PolicyFile) -> tuple[Record, int]:
        found = database.plan(policies, prune=prune)
        if not as_json:
            show_plan(output, found)
        return plan_record(found), EXIT_FAILED if found.problems else EXIT_INCOMPLETE if found.changes else 0

    with_policies(output, file, environment, url, names, show, as_json=as_json)
