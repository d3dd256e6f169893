"""`lapse archive`, `lapse restore`, `lapse undo`: where expired rows went, and how they come back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lapse.cli.opening import Json, TableArgument, Url, open_database, read_moment, shifted, url_and_table
from lapse.cli.output import Output, moment, rows, size
from lapse.errors import InvalidValue, UsageError

if TYPE_CHECKING:
    from lapse.app.archiving import ArchivedJob
    from lapse.runner.restoring import Progress, Restored

FAILED, INCOMPLETE = 1, 3

Verify = Annotated[bool, typer.Option("--verify", help="Compare with what the jobs have counted; exit code 1 if not.")]
JobOption = Annotated[int | None, typer.Option("--job", metavar="N", help="Only what this job has archived.")]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Only rows archived then or later.")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only rows archived before then.")]
Where = Annotated[str | None, typer.Option(metavar="EXPR", help="Only these rows, written as ttl_filter is.")]
Into = Annotated[str | None, typer.Option(metavar="TABLE", help="Another table, which has the same columns.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be restored; change nothing.")]
Keep = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long restored rows are held. Default: 7 days; '0 seconds' holds none."),
]
IgnoreMissing = Annotated[
    bool, typer.Option("--ignore-missing-columns", help="Leave out what columns held that the table has lost.")
]


def archive(url: Url = None, table: TableArgument = None, verify: Verify = False, as_json: Json = False) -> None:
    """List what is in the archives: for each job how many rows, from when, and where.

    `--verify` compares the rows that are there with those that the job has moved and that were restored since, reads
    every file and compares it with what was recorded, and ends with exit code 1 where something differs. Rows that
    `ttl_archive_keep` has removed are no difference.

    Example: `lapse archive sqlite:///app.db events`
    """
    from lapse.app.archiving import ArchiveState
    from lapse.app.records import archived_record

    url, table = shifted(url, table)
    output = Output()
    with open_database(url) as database:
        found = database.archive(table, verify=verify)
    if as_json:
        output.json([archived_record(each) for each in found])
    elif not found:
        output.line("Nothing is archived.")
    else:
        _show(output, found)
    wrong = [each for each in found if each.verdict is ArchiveState.WRONG]
    if verify and wrong:
        for each in wrong:
            for problem in each.problems or (_difference(each),):
                output.problem("error", problem)
        raise typer.Exit(FAILED)


def _show(output: Output, found: list[ArchivedJob]) -> None:
    """A table for each archive: its address is too long for a column."""
    archives = dict.fromkeys((each.table, each.archive) for each in found)
    for table, archive in archives:
        jobs = [each for each in found if (each.table, each.archive) == (table, archive)]
        files = sum(each.files for each in jobs)
        counted = f" ({files:,} {'file' if files == 1 else 'files'})" if files else ""
        output.line(f"Table {table}, archived in {archive}{counted}")
        _show_jobs(output, jobs)


def _show_jobs(output: Output, jobs: list[ArchivedJob]) -> None:
    columns = ("job", "rows", "restored", "size", "archived (UTC)", "state")
    listed = [
        (
            each.job,
            f"{each.rows:,}",
            f"{each.restored:,}",
            size(each.bytes),
            _span(each.first, each.last),
            each.verdict,
        )
        for each in jobs
    ]
    output.table(columns, listed, right=("job", "rows", "restored", "size"), whole=columns)


def _span(first: datetime | None, last: datetime | None) -> str:
    """Of one day to the minute, of more by their days."""
    if first is None or last is None:
        return "-"
    first, last = first.astimezone(UTC), last.astimezone(UTC)
    if first.date() != last.date():
        return f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return f"{first:%Y-%m-%d %H:%M}" + (f" to {last:%H:%M}" if f"{first:%H:%M}" != f"{last:%H:%M}" else "")


def _difference(each: ArchivedJob) -> str:
    expected = (each.moved or 0) - each.restored
    return f"job {each.job}: {rows(expected)} should be in {each.archive}, and {each.rows:,} are"


def restore(
    url: Url = None,
    table: TableArgument = None,
    job: JobOption = None,
    since: From = None,
    until: To = None,
    where: Where = None,
    into: Into = None,
    dry_run: DryRun = False,
    keep: Keep = None,
    ignore_missing_columns: IgnoreMissing = False,
    as_json: Json = False,
) -> None:
    """Put archived rows back into their table, and hold them there for a while.

    Rows go back in small batches; the command can be stopped and run again at any time. A row whose key is in the table
    is left in the archive, and so is one that the table refuses; the exit code is then 3. Columns that were added since
    get their defaults. Where the policy has a managed column, rows get a new expiry instead of a hold.

    Example: `lapse restore sqlite:///app.db events --where "account = 4711" --dry-run`
    """
    url, name = url_and_table(url, table)
    with open_database(url) as database:
        done = database.restore(
            name,
            job=job,
            since=read_moment(since, "--from"),
            until=read_moment(until, "--to"),
            where=where,
            into=into,
            dry_run=dry_run,
            keep=keep,
            ignore_missing_columns=ignore_missing_columns,
            progress=None if as_json else _progress(Output()),
        )
    _report(done, as_json=as_json)


def undo(
    url: Url = None,
    number: Annotated[str | None, typer.Argument(metavar="JOB", help="Its number; `lapse history` lists them.")] = None,
    dry_run: DryRun = False,
    keep: Keep = None,
    as_json: Json = False,
) -> None:
    """Restore everything that one job has deleted, from the archive of its table.

    Example: `lapse undo sqlite:///app.db 17`
    """
    url, number = shifted(url, number)
    if number is None:
        raise UsageError("say which job", hint="`lapse archive URL` lists those whose rows can be restored")
    if not number.isdecimal():
        raise InvalidValue("JOB", number, "is not the number of a job", hint="`lapse archive URL` lists them")
    with open_database(url) as database:
        done = database.undo(int(number), keep=keep, dry_run=dry_run, progress=None if as_json else _progress(Output()))
    _report(done, as_json=as_json)


def _progress(output: Output) -> Progress:
    """A line for every tenth of the rows, where there are many."""
    from lapse.runner.restoring import FIRST_BATCH

    told, waited = 0, ""

    def tell(done: Restored) -> None:
        nonlocal told, waited
        tenths = 10 * (done.restored + done.existing + done.refused) // max(done.rows, 1)
        if done.waiting is not None:
            if done.waiting != waited:
                output.notice(f"waiting: {done.waiting}")
            waited = done.waiting
        elif done.rows > FIRST_BATCH and told < tenths < 10:
            told = tenths
            output.notice(f"{done.restored:,} of {rows(done.rows)} restored")

    return tell


def _report(done: Restored, *, as_json: bool) -> None:
    output = Output()
    if as_json:
        from lapse.app.records import restored_record

        output.json(restored_record(done))
    elif done.dry_run:
        output.line(f"{rows(done.rows - done.existing)} of {done.archive} would be restored into table {done.table}.")
    elif not done.rows:
        output.line(f"There is nothing to restore in {done.archive}.")
    else:
        output.line(f"{rows(done.restored)} restored from {done.archive} into table {done.table}.")
    if not as_json:
        _explain(output, done)
    if done.refused:
        raise typer.Exit(INCOMPLETE)


def _explain(output: Output, done: Restored) -> None:
    if done.existing:
        output.line(f"{rows(done.existing)} left in the archive: their key is in the table.")
    if done.dropped:
        output.line(f"Not restored, as the table has no such column any more: {', '.join(done.dropped)}.")
    if done.hold is not None:
        output.line(
            f"Hold {done.hold.id} keeps {done.hold.rows} until {moment(done.hold.until)} UTC;"
            f" `lapse release URL {done.hold.id}` ends it."
        )
    if done.refused:
        output.problem("error", f"{rows(done.refused)} left in the archive: the table refused them: {done.reason}")
