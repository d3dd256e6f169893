"""`lapse preview`: what a run would do."""

from __future__ import annotations

from lapse.app import Preview
from lapse.app.records import expiry_words, preview_record
from lapse.cli.opening import Json, TableArgument, Url, open_database, url_and_table
from lapse.cli.output import Output, moment, rows, size


def preview(url: Url = None, table: TableArgument = None, as_json: Json = False) -> None:
    """Show what a run would do to a table now, and change nothing.

    Rows and bytes that would go, how they are found, foreign keys that matter, and what could be better. The very
    condition of a run decides.

    Example: `lapse preview sqlite:///app.db events`
    """
    url, table = url_and_table(url, table)
    output = Output()
    with open_database(url) as database:
        previews = database.preview(table)
    if as_json:
        output.json([preview_record(each) for each in previews])
        return
    for number, each in enumerate(previews):
        if number:
            output.line()
        show(output, each)


def show(output: Output, preview: Preview) -> None:
    survey = preview.survey
    about = "" if survey.exact else "about "
    share = f" ({survey.expired / survey.rows:.0%})" if survey.rows else ""
    output.line(f"Table {preview.table}: rows expire {expiry_words(preview.policy)}", "bold")
    output.line(f"  would delete  {about}{survey.expired:,} of {rows(survey.rows)}{share}, {size(survey.bytes)}")
    if survey.expired:
        output.line(f"  their times   {moment(survey.oldest)} to {moment(survey.newest)} UTC")
    output.line(f"  cutoff        {moment(preview.cutoff)} UTC")
    output.line(f"  path          {preview.path.evidence}")
    output.line(f"  condition     {preview.condition}")
    for reference in preview.references:
        columns = ", ".join(reference.columns)
        output.line(f"  foreign key   {reference.table}({columns}) ON DELETE {reference.action}")
    for advice in preview.advice:
        output.line(f"  advice        {advice.text}", "yellow")
        if advice.statement:
            output.line(f"                {advice.statement}")
    if preview.sample:
        output.line()
        names = list(preview.sample[0])
        output.table(names, [[row[name] for name in names] for row in preview.sample], title="For example")
