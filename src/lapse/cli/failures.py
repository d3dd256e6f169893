"""What a failure looks like on a terminal, and which exit code it has."""

from __future__ import annotations

import os
from collections.abc import Sequence

import typer

from lapse.cli.output import Output
from lapse.errors import DatabaseError, LapseError, UsageError
from lapse.model.secret import mask

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130


def report(error: Exception, arguments: Sequence[str] = ()) -> int:
    """Say what went wrong and what to do, on stderr and without passwords; returns the exit code."""
    message, hint, code = _explain(error)
    output = Output()
    # A driver may have put a password anywhere. Lapse's own words have it in a URL at most, and a password may be one
    # of those words.
    own_words = isinstance(error, LapseError) and not isinstance(error, DatabaseError) and error.__cause__ is None
    urls = () if own_words else (*arguments, os.environ.get("LAPSE_URL"))
    output.problem("error", mask(message, *urls))
    if hint:
        output.hint(mask(hint, *urls))
    return code


def _explain(error: Exception) -> tuple[str, str | None, int]:
    if isinstance(error, UsageError):
        return error.message, error.hint, EXIT_USAGE
    if isinstance(error, LapseError):
        return error.message, error.hint, EXIT_FAILED
    if isinstance(error, typer.TyperException):
        return (
            error.format_message(),
            "lapse --help shows the commands, lapse COMMAND --help their options",
            (error.exit_code),
        )
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename is not None else ""
        return f"{error.strerror or error}{where}", None, EXIT_FAILED
    if isinstance(error, UnicodeEncodeError):
        what = error.object[error.start : error.end]
        hint = "PYTHONIOENCODING=utf-8 writes UTF-8 whatever the locale says"
        return f"the output is {error.encoding}, which has no {what!r}", hint, EXIT_FAILED
    hint = "this is a defect of Lapse: please report it with what LAPSE_TRACEBACK=1 in the environment shows"
    return f"unexpected {type(error).__name__}: {error}", hint, EXIT_FAILED
