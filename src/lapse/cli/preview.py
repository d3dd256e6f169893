"""`lapse preview`: what a run would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from lapse.app import Forecast, Preview
from lapse.app.forecast import together
from lapse.app.preview import Outlook, outlook
from lapse.app.records import expiry_words, preview_record
from lapse.cli import chart
from lapse.cli.opening import Json, Url, open_database, url_and_table
from lapse.cli.output import Output, duration, moment, rows, size
from lapse.engines.base import Advice
from lapse.model.archive import destination
from lapse.model.job import Path, PathKind
from lapse.runner.promise import grace_words

_DURATION = "DURATION"


def preview(
    url: Url = None,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="A table, with a TTL policy or without.")] = None,
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Try a policy: rows expire --after this column's time.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar=_DURATION, help="How long rows live; without --column, since they were last written."),
    ] = None,
    expression: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Try a policy: rows expire at the value of this expression.")
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="The zone of a column that stores none, for a policy to try.")
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar=_DURATION, help="Forecast as if this were the TTL; with --column the same as --after."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Count every row, even in a large table.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="The SQL condition, and each partition.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a run would do to a table now, and what expires in the coming days. Changes nothing.

    Works before a policy is declared: --column and --after, --after alone or --expression try one, on any table.
    Rows and bytes that would go, rows that foreign keys hold, rows that go with them, how they are found, what could be
    better, and a forecast of 30 days. The very condition of a run decides. A large table is judged by its statistics or
    a sample of its rows, with the margin of error; --exact reads it all.

    Example: `lapse preview sqlite:///app.db events --column created_at --after '30 days'`
    """
    url, table = url_and_table(url, table)
    output = Output()
    with open_database(url) as database:
        previews = database.preview(
            table, exact=exact, ttl=ttl, column=column, after=after, expression=expression, time_zone=time_zone
        )
    if as_json:
        output.json([preview_record(each) for each in previews])
    else:
        show_all(output, previews, verbose=verbose)


ADVISED_STATEMENTS = 2
"""Of one piece of advice for a partitioned table as a whole, which may have thousands of partitions."""


def show_all(output: Output, previews: Sequence[Preview], *, verbose: bool = False) -> None:
    """A partitioned table as one, its partitions where they are asked for."""
    if not previews:
        output.line("The table has no partitions, so there is nothing to expire.")
        return
    if len(previews) > 1:
        _show_total(output, previews, verbose=verbose)
    if len(previews) == 1 or verbose:
        for number, each in enumerate(previews):
            if number or len(previews) > 1:
                output.line()
            show(output, each, verbose=verbose)


def _show_total(output: Output, previews: Sequence[Preview], *, verbose: bool) -> None:
    first = previews[0]
    output.line(f"Table {first.table.whole}, {len(previews)} partitions: {_expiry(first)}", "bold")
    found = outlook([each.survey for each in previews], [each.consequences for each in previews])
    _show_outlook(output, found)
    kinds = Counter(_kind(each) for each in previews)
    output.line(f"  path          {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
    seconds = [each.seconds for each in previews if each.seconds is not None]
    if found.expired and seconds:
        output.line(f"  would take    about {duration(sum(seconds))} at the pace of the last runs")
    _show_archive(output, first)
    _show_grace(output, first)
    _show_advice(output, [advice for each in previews for advice in each.advice], most=ADVISED_STATEMENTS)
    if not verbose:
        output.line("  partitions    -v shows each of them")
    show_forecast(output, together([each.forecast for each in previews]))


def _show_archive(output: Output, preview: Preview) -> None:
    policy = preview.policy
    if policy.archive is not None:
        kept = "" if policy.archive_keep is None else f", and are kept there for {policy.archive_keep}"
        output.line(f"  archive       rows move to {destination(policy.archive)}{kept}")
        if policy.partition_drop:
            output.line("                one by one: partitions are emptied first, and dropped by a later run")


def _kind(preview: Preview) -> str:
    if preview.path.kind is PathKind.PARTITION:
        return "dropped whole"
    return "emptied row by row" if preview.survey.expired else "with nothing expired"


def _expiry(preview: Preview) -> str:
    words = f"rows expire {expiry_words(preview.policy)}"
    return f"if {words.replace('expire', 'expired', 1)} (not declared)" if preview.is_candidate else words


def show(output: Output, preview: Preview, *, verbose: bool = False) -> None:
    output.line(f"Table {preview.table}: {_expiry(preview)}", "bold")
    _show_survey(output, preview)
    _show_grace(output, preview)
    output.line(f"  cutoff        {moment(preview.cutoff)} UTC")
    output.line(f"  path          {_path(preview.path)}")
    _show_archive(output, preview)
    if verbose:
        output.line(f"  condition     {preview.condition}")
    for child in preview.children:
        reference = child.reference
        columns = ", ".join(reference.columns)
        output.line(f"  foreign key   {reference.table}({columns}) ON DELETE {reference.action}")
    _show_advice(output, preview.advice)
    if preview.sample:
        output.line()
        names = list(preview.sample[0])
        output.table(names, [[row[name] for name in names] for row in preview.sample], title="For example")
    show_forecast(output, preview.forecast)


def _show_advice(output: Output, found: Sequence[Advice], *, most: int | None = None) -> None:
    """Each text once, with what it says to run for each partition, of which `most` are shown."""
    statements: dict[str, list[str]] = {}
    for advice in found:
        listed = statements.setdefault(advice.text, [])
        if advice.statement and advice.statement not in listed:
            listed.append(advice.statement)
    for text, listed in statements.items():
        output.line(f"  advice        {text}", "yellow")
        for statement in listed[:most]:
            output.line(f"                {statement}")
        if most is not None and len(listed) > most:
            output.line(
                f"                and {len(listed) - most} more for other partitions: `lapse doctor` lists them"
            )


def _path(path: Path) -> str:
    return f"the whole partition is dropped: {path.evidence}" if path.kind is PathKind.PARTITION else path.evidence


def _show_survey(output: Output, preview: Preview) -> None:
    survey = preview.survey
    _show_outlook(output, preview.outlook)
    if preview.note:
        output.line(f"  note          {preview.note}")
    elif not survey.exact:
        output.line(f"  estimated by  {survey.method}, give or take {rows(survey.margin)}")
    if survey.expired and survey.newest is None and survey.oldest is not None:
        output.line(f"  time range    from {moment(survey.oldest)} UTC")
    elif survey.expired and survey.newest is not None:
        output.line(f"  time range    {moment(survey.oldest)} to {moment(survey.newest)} UTC")
    if survey.expired and preview.seconds is not None:
        output.line(f"  would take    about {duration(preview.seconds)} at the pace of the last runs")


def _show_outlook(output: Output, found: Outlook) -> None:
    output.line(f"  {str(found).replace('delete ', 'delete  ', 1)}, {size(found.bytes)}")
    about = "" if found.followed else "about "
    if found.held:
        stay, them = ("row stays", "it") if found.held == 1 else ("rows stay", "them")
        holders = ", ".join(map(str, found.holders))
        _warn(output, f"held          {about}{found.held:,} expired {stay}: rows of {holders} refer to {them}")
    for each in found.touched:
        if each.deleted:
            _warn(output, f"with them     {about}{rows(each.deleted)} of {each.table}, by ON DELETE CASCADE")
        if each.unset:
            words = f"{about}{rows(each.unset)} of {each.table} lose their reference"
            _warn(output, f"with them     {words}, by ON DELETE SET NULL or SET DEFAULT")
    if found.unknown:
        names = ", ".join(map(str, found.unknown))
        _warn(output, f"not counted   rows of {names} that refer to them: too many, or not readable with this role")


def _warn(output: Output, text: str) -> None:
    output.line(f"  {text}", "yellow")


def _show_grace(output: Output, preview: Preview) -> None:
    if preview.grace_until is not None:
        words = grace_words(preview.grace_until, preview.cutoff)
        output.line(f"  grace         a worker {words}; `lapse run` does not wait")


def show_forecast(output: Output, forecast: Forecast) -> None:
    output.line()
    title = f"Forecast if rows lived for {forecast.ttl}" if forecast.ttl else "Forecast"
    about = "" if forecast.exact else "about "
    week, all_days = forecast.total(7), forecast.total(len(forecast.days))
    output.line(f"{title}: {about}{rows(week)} expire within 7 days, {all_days:,} within {len(forecast.days)}", "bold")
    if forecast.ttl:
        output.line(f"  {about}{rows(forecast.expired)} would have expired already")
    if all_days:
        lines = chart.columns([day.rows for day in forecast.days])
        for line in lines:
            output.line(f"  {line}", "cyan")
        labels = [(number, f"{forecast.days[number].start:%d %b}") for number in range(0, len(forecast.days), 7)]
        indent = lines[0].index("┤") + 1
        output.line("  " + chart.axis(len(forecast.days), labels, indent=indent), "dim")
    if forecast.steady is not None:
        steady = forecast.steady
        output.line(
            f"  Steady state: about {rows(steady.rows)} ({size(steady.bytes)}),"
            f" at {rows(round(steady.rows_per_day))} a day, each kept for {steady.ttl}"
        )
