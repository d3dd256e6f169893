"""`lapse sql`: run SQL, TTL statements included."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lapse.app import Session
from lapse.cli.opening import Url, open_database, script_text
from lapse.cli.output import Output
from lapse.cli.repl import Repl
from lapse.cli.resultset import ResultFormat, write
from lapse.errors import LapseError, TtlSyntaxError, UsageError


def sql(
    url: Url = None,
    command: Annotated[str | None, typer.Option("--command", "-c", metavar="SQL", help="Statements to run.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A script to run; - is stdin.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Rows as a JSON array of objects.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Rows as CSV with a header.")] = False,
) -> None:
    """Run SQL, with the TTL statements of CockroachDB, TiDB and MyRocks, on any engine.

    Each statement commits by itself unless the text says BEGIN. Without -c or -f a terminal gets a prompt, and a pipe
    is read as a script. Creates an SQLite file that does not exist.

    Example: `lapse sql sqlite:///app.db -c "ALTER TABLE events SET (ttl_expire_after = '30 days')"`
    """
    if command is not None and file is not None:
        raise UsageError("-c and -f are mutually exclusive")
    if as_json and as_csv:
        raise UsageError("--json and --csv are mutually exclusive")
    form = ResultFormat.JSON if as_json else ResultFormat.CSV if as_csv else ResultFormat.TABLE
    output = Output()
    text = command if command is not None else _script(file)
    with open_database(url, create=True) as database, database.session() as session:
        if text is None:
            Repl(session, output, form, database.url).run()
        else:
            run_script(session, output, form, text)


def _script(file: Path | None) -> str | None:
    """The text to run; None when a person is to type it."""
    return None if file is None and sys.stdin.isatty() else script_text(file)


def run_script(session: Session, output: Output, form: ResultFormat, text: str) -> None:
    statements = session.parse(text)
    for statement in statements:
        try:
            result = session.stream(statement)
            write(output, form, result)
        except LapseError as error:
            if len(statements) > 1 and not isinstance(error, TtlSyntaxError):
                # A database knows the statement, not where in the script it stands.
                error.message = f"in the statement at line {statement.line}: {error.message}"
            raise
        for notice in result.notices:
            output.notice(notice)
    if session.in_transaction:
        output.notice("the script ends inside a transaction, which was rolled back: COMMIT is missing")
