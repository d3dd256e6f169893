"""`lapse init`: a first file of policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lapse.cli.opening import Url, open_database
from lapse.cli.output import Output
from lapse.cli.policyfile import DEFAULT_FILE
from lapse.errors import UsageError


def init(
    url: Url = None,
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="The file to write; - is stdout.")
    ] = DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
) -> None:
    """Write a first file of policies: those there are, and proposals for other tables, commented out.

    Knows tables of Django, Celery, Airflow, Rails, Laravel and others, and columns such as expires_at and created_at.
    Changes nothing in the database.

    Example: `lapse init sqlite:///app.db --file lapse.toml`
    """
    output = Output()
    if str(file) != "-" and file.exists() and not force:
        raise UsageError(f"{file} is there already", hint="--force replaces it")
    with open_database(url) as database:
        text = database.draft()
    if str(file) == "-":
        output.out.file.write(text)
        return
    file.write_text(text, encoding="utf-8")
    output.line(f"Wrote {file}. Uncomment what you want, then run `lapse plan`.")
