"""Commands on the databases of a file: one after the other, each with its own answer, and one exit code for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lapse.app import Lapse
from lapse.app.databases import Databases, Named
from lapse.app.policyfile import FILE_NAME
from lapse.cli.failures import EXIT_FAILED, EXIT_INCOMPLETE
from lapse.cli.opening import GATE_ENVIRONMENT
from lapse.cli.output import Output
from lapse.errors import LapseError, UsageError
from lapse.model.secret import mask

DatabaseOption = Annotated[
    list[str] | None,
    typer.Option("--database", metavar="NAME", help="This database of the file, or several; all without it."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help=f"The databases of this file, instead of URL. With --database: {FILE_NAME}."
    ),
]

Answer = tuple[object, int]
"""What `--json` prints of one database, and the exit code."""
One = Callable[[Output, Lapse, Named], Answer]


def file_of(config: Path | None, names: Sequence[str] | None, url: str | None) -> Path | None:
    """The file whose databases are meant; None where one URL is."""
    if config is None and not names:
        return None
    if url is not None:
        raise UsageError("a URL or the databases of a file, not both", hint="leave the URL away")
    return config or Path(FILE_NAME)


def open_databases(file: Path) -> Databases:
    return Databases.read(file, gate_sql=os.environ.get(GATE_ENVIRONMENT))


def on_each(output: Output, file: Path, names: Sequence[str] | None, one: One, *, as_json: bool) -> None:
    """Ends the command: with 1 if any database failed, else with 3 if any is incomplete."""
    answers: dict[str, object] = {}
    codes = [0]
    for found in open_databases(file).find(names or ()):
        if not as_json:
            output.line(f"{found.name}:", "bold")
        try:
            if not isinstance(found, Named):
                raise found.error
            with found.open() as database:
                answers[found.name], code = one(output, database, found)
        except LapseError as error:
            url = found.url if isinstance(found, Named) else None
            message, hint = mask(error.message, url), None if error.hint is None else mask(error.hint, url)
            answers[found.name], code = {"error": message, "hint": hint}, EXIT_FAILED
            output.problem("error", f"{found.name}: {message}")
            if hint is not None:
                output.hint(hint)
        codes.append(code)
    if as_json:
        output.json(answers)
    worst = EXIT_FAILED if EXIT_FAILED in codes else max(codes)
    assert worst in (0, EXIT_FAILED, EXIT_INCOMPLETE)
    if worst:
        raise typer.Exit(worst)
