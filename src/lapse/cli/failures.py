"""What a failure looks like on a terminal, and which exit code it has."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import typer

from lapse.cli.output import Output
from lapse.errors import LapseError, UsageError
from lapse.model.secret import mask

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130


def report(error: Exception, arguments: Sequence[str] = ()) -> int:
    """Say what went wrong and what to do, on stderr and without passwords; returns the exit code."""
    message, hint, code = _explain(error)
    output = Output()
    urls = (*arguments, os.environ.get("LAPSE_URL"))
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
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EACCES, errno.EISDIR):
        return f"{error.strerror}: {error.filename}", None, EXIT_FAILED
    return str(error), None, EXIT_FAILED
