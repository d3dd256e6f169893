"""`lapse preview`: what a run would do."""

from __future__ import annotations

from typing import Annotated

import typer

from lapse.app import Forecast, Preview
from lapse.app.records import expiry_words, preview_record
from lapse.cli import chart
from lapse.cli.opening import Json, TableArgument, Url, open_database, url_and_table
from lapse.cli.output import Output, duration, moment, rows, size


def preview(
    url: Url = None,
    table: TableArgument = None,
    exact: Annotated[bool, typer.Option("--exact", help="Count every row, even in a large table.")] = False,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Forecast as if this were the TTL, such as '14 days'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a run would do to a table now, and what expires in the coming days. Changes nothing.

    Rows and bytes that would go, how they are found, foreign keys that matter, what could be better, and a forecast
    of 30 days. The very condition of a run decides. A large table is judged by its statistics or a sample of its rows,
    with the margin of error; --exact reads it all.

    Example: `lapse preview sqlite:///app.db events --ttl '14 days'`
    """
    url, table = url_and_table(url, table)
    output = Output()
    with open_database(url) as database:
        previews = database.preview(table, exact=exact, ttl=ttl)
    if as_json:
        output.json([preview_record(each) for each in previews])
        return
    for number, each in enumerate(previews):
        if number:
            output.line()
        show(output, each)


def show(output: Output, preview: Preview) -> None:
    output.line(f"Table {preview.table}: rows expire {expiry_words(preview.policy)}", "bold")
    _show_survey(output, preview)
    output.line(f"  cutoff        {moment(preview.cutoff)} UTC")
    output.line(f"  path          {preview.path.evidence}")
    output.line(f"  condition     {preview.condition}")
    for child in preview.children:
        reference = child.reference
        per_row = "" if child.per_row is None else f", about {child.per_row:.2g} rows for each row here"
        columns = ", ".join(reference.columns)
        output.line(f"  foreign key   {reference.table}({columns}) ON DELETE {reference.action}{per_row}")
    for advice in preview.advice:
        output.line(f"  advice        {advice.text}", "yellow")
        if advice.statement:
            output.line(f"                {advice.statement}")
    if preview.sample:
        output.line()
        names = list(preview.sample[0])
        output.table(names, [[row[name] for name in names] for row in preview.sample], title="For example")
    show_forecast(output, preview.forecast)


def _show_survey(output: Output, preview: Preview) -> None:
    survey = preview.survey
    about = "" if survey.exact else "about "
    share = f" ({survey.expired / survey.rows:.0%})" if survey.rows else ""
    output.line(f"  would delete  {about}{survey.expired:,} of {rows(survey.rows)}{share}, {size(survey.bytes)}")
    if not survey.exact:
        output.line(f"  estimated by  {survey.method}, give or take {rows(survey.margin)}")
    if survey.expired and survey.newest is None and survey.oldest is not None:
        output.line(f"  their times   from {moment(survey.oldest)} UTC")
    elif survey.expired and survey.newest is not None:
        output.line(f"  their times   {moment(survey.oldest)} to {moment(survey.newest)} UTC")
    if survey.expired and preview.seconds is not None:
        output.line(f"  would take    about {duration(preview.seconds)} at the pace of the last runs")


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
            f"  In the long run about {rows(steady.rows)}, {size(steady.bytes)}: {steady.rows_per_day:,.0f} come a day"
            f" and each lives for {steady.ttl}."
        )
