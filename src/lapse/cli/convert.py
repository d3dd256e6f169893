"""`lapse convert`: TTL DDL from one dialect to another."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lapse import app
from lapse.cli.opening import script_text
from lapse.cli.output import Output

_ONE_OF = ", ".join(app.CONVERT_TARGETS)
Dialect = StrEnum("Dialect", {name: name for name in app.CONVERT_TARGETS})  # type: ignore[misc]


def convert(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="An SQL script; without it, stdin.")] = None,
    to: Annotated[Dialect, typer.Option(help=f"The dialect to write: {_ONE_OF}.")] = ...,  # type: ignore[assignment]
    source: Annotated[
        Dialect | None, typer.Option("--from", help=f"The dialect to read: {_ONE_OF}; guessed when left out.")
    ] = (None),
) -> None:
    """Write the TTL clauses of an SQL script in another dialect; everything else stays byte for byte.

    What the other dialect has no words for is left out with a notice, or refused when rows would expire otherwise.

    Example: `lapse convert schema.sql --to tidb`
    """
    text = script_text(file)
    result = app.convert(text, str(source) if source else None, str(to))
    sys.stdout.write(result.text if result.text.endswith("\n") else f"{result.text}\n")
    output = Output()
    for notice in result.notices:
        output.notice(notice)
