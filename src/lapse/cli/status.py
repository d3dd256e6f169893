"""`lapse status`: how every table with a policy is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from lapse.app import CommentProblem, Health, Lapse, PolicyHealth, TableStatus
from lapse.app.databases import Named
from lapse.app.records import Record, comment_record, deletion_words, expiry_words, status_record
from lapse.cli.databases import ConfigOption, DatabaseOption, file_of, on_each
from lapse.cli.jobs import deleted
from lapse.cli.opening import Json, Url, database_url, open_database
from lapse.cli.output import Output
from lapse.cli.stores import Stores, show_stores, store_statuses
from lapse.errors import CatalogMissing
from lapse.model.blocked import BlockCode

_STYLES = {Health.LATE: "yellow", Health.BLOCKED: "red"}


def status(
    url: Url = None,
    stores: Stores = None,
    names: DatabaseOption = None,
    config: ConfigOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Each partition, not only the table.")] = False,
    as_json: Json = False,
) -> None:
    """List the tables with a TTL policy: when their rows expire, what is going on, what the last job did.

    A table is on time while expired rows are gone within the policy's `ttl_delete_within`; otherwise it is late,
    paused or blocked, and the reason is shown below. Policies that a comment proposes are listed with what accepts
    them. With `--kv` the key-value stores are listed, too, or alone where no database is given. With `--config` or
    `--database` every database of a file is shown; one that cannot be reached makes the exit code 1.

    Example: `lapse status sqlite:///app.db --json`
    """
    output, kept = Output(), store_statuses(stores or [])
    file = file_of(config, names, url)
    if file is not None:
        on_each(output, file, names, partial(_show, verbose=verbose, as_json=as_json), as_json=as_json)
    elif kept and database_url(url) is None:
        output.json([asdict(each) for each in kept]) if as_json else show_stores(output, kept)
    else:
        with open_database(url) as database:
            records, _ = _show(output, database, verbose=verbose, as_json=as_json)
        if as_json:
            output.json([*records, *map(asdict, kept)])
    if file is None and kept and database_url(url) is not None and not as_json:
        show_stores(output, kept)


def _show(
    output: Output, database: Lapse, named: Named | None = None, *, verbose: bool, as_json: bool
) -> tuple[list[Record], int]:
    comments = [each for each in database.comments() if each.stored is None]
    try:
        healths = database.health()
    except CatalogMissing:
        if not comments and named is None:
            raise
        healths = []
    statuses = [part for health in healths for part in health.parts]
    if as_json:
        ordered = sorted(statuses, key=lambda part: str(part.table))
        return [*map(status_record, ordered), *map(comment_record, comments)], 0
    if not healths:
        output.line("No table has a TTL policy.")
    else:
        _show_tables(output, healths, verbose=verbose)
        for counters in [each.native for each in statuses if each.native][:1]:
            output.line("the engine counts " + ", ".join(f"{name} {value:,}" for name, value in counters.items()))
    for comment in comments:
        show_comment(output, comment)
    return [], 0


def show_comment(output: Output, comment: CommentProblem) -> None:
    expires = "" if comment.policy is None else f" (rows expire {expiry_words(comment.policy)})"
    output.line(f"{comment.table}: {comment.reason}{expires}", "yellow")
    if comment.fix:
        output.line(f"  {comment.fix}")


def _show_tables(output: Output, healths: Sequence[PolicyHealth], *, verbose: bool) -> None:
    rows: list[tuple[object, ...]] = []
    reasons: dict[tuple[str, str | None], list[str]] = {}
    for health in sorted(healths, key=lambda each: str(each.stored.table)):
        rows.append(_policy_row(health))
        if verbose and len(health.parts) > 1:
            rows += [_part_row(part) for part in health.parts]
        reason = _reason(health)
        if reason is not None:
            style = None if health.blocked is BlockCode.GRACE else _STYLES.get(health.health)
            reasons.setdefault((reason, style), []).append(str(health.stored.table))
    columns = ("table", "state", "rows expire", "next (UTC)", "deleted")
    output.table(columns, rows, right=("deleted",), whole=columns[3:])
    for (reason, style), tables in reasons.items():
        output.line(f"{', '.join(tables)}: {reason}", style)


def _policy_row(health: PolicyHealth) -> tuple[object, ...]:
    newest = [job for part in health.parts if (job := part.current or part.last) is not None]
    table = health.stored.table
    return (
        f"{table} ({len(health.parts)} partitions)" if len(health.parts) > 1 else table,
        health_words(health),
        deletion_words(health.stored),
        _short(health.starts_at),
        deleted(newest),
    )


def _part_row(part: TableStatus) -> tuple[object, ...]:
    newest = part.current or part.last
    shown = deleted([] if newest is None else [newest])
    return f"  {part.table.partition}", _state(part.promise.health, [part.state]), "", _short(part.next_run_at), shown


def health_words(health: PolicyHealth) -> str:
    return _state(health.health, [part.state for part in health.parts])


def _state(health: Health, states: Sequence[str]) -> str:
    """The verdict, and what is going on where that is more than waiting for the next run."""
    doing = next((state for state in ("running", "waiting", "cancelling", "grace") if state in states), None)
    return health.words if doing is None else f"{health.words}, {doing}"


def _reason(health: PolicyHealth) -> str | None:
    return health.why if health.why is not None else waits_for(health)


def waits_for(health: PolicyHealth) -> str | None:
    """What a job that is active rests for."""
    waiting = (part.current.reason or part.current.waiting_for for part in health.parts if part.current is not None)
    return next((reason for reason in waiting if reason), None)


def _short(at: datetime | None) -> str:
    """To the minute: a schedule has no seconds."""
    return "-" if at is None else f"{at.astimezone(UTC):%b %d %H:%M}"
