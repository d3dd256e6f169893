"""The `lapse` command: one file per command, and one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lapse._version import __version__
from lapse.cli import (
    accept,
    apply,
    bench,
    console,
    control,
    convert,
    demo,
    doctor,
    history,
    init,
    jobs,
    lint,
    plan,
    preview,
    run,
    settings,
    sql,
    status,
    worker,
)
from lapse.cli.failures import EXIT_INTERRUPTED, report
from lapse.cli.opening import require_text
from lapse.cli.output import Output

TRACEBACK = "LAPSE_TRACEBACK"
"""Set, an error that Lapse did not expect shows where in the code it came from."""

_COMMANDS = (
    (demo.demo, "Start here"),
    (sql.sql, "Start here"),
    (preview.preview, "Expire rows"),
    (run.run, "Expire rows"),
    (worker.worker, "Expire rows"),
    (status.status, "Look"),
    (jobs.jobs, "Look"),
    (history.history, "Look"),
    (doctor.doctor, "Look"),
    (console.console, "Look"),
    (init.init, "Policies as code"),
    (plan.plan, "Policies as code"),
    (apply.apply, "Policies as code"),
    (lint.lint, "Policies as code"),
    (control.pause, "Control"),
    (control.resume, "Control"),
    (control.cancel, "Control"),
    (accept.accept, "Control"),
    (settings.settings, "Control"),
    (convert.convert, "More"),
    (bench.bench, "More"),
)


class _Flags:
    """Help shows no type for an option that takes no value: `--yes <bool>` reads as if it took one."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False) and each.metavar is None:
                each.metavar = ""
        return found


class _Command(_Flags, TyperCommand):
    pass


class _Group(_Flags, TyperGroup):
    pass


app = typer.Typer(
    name="lapse",
    cls=_Group,
    help="Row-level TTL for the database you already run. Begin with `lapse demo`.",
    epilog="URL is SQLAlchemy's (sqlite:///app.db); without it, LAPSE_URL is used. "
    "Exit codes: 0 done, 1 failed, 2 usage, 3 incomplete.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command, _panel in _COMMANDS:
    app.command(rich_help_panel=_panel, cls=_Command)(_command)
if find_spec("lapse.cli.kv") is not None:
    app.add_typer(import_module("lapse.cli.kv").app, name="kv", rich_help_panel="More")


def _print_version(wanted: bool) -> None:
    if wanted:
        Output().line(f"lapse {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in ([], ["kv"]):
        arguments.append("--help")
    try:
        _prepare(arguments)
        code = app(arguments, prog_name="lapse", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # The reader has seen enough, as in `lapse history | head`; typer tells it by SystemExit. That is no failure,
        # but nothing more can be written, not even when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return 0
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as error:
        if TRACEBACK in os.environ:
            raise
        return report(error, arguments)
    return code if isinstance(code, int) else 0


def _prepare(arguments: Sequence[str]) -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows its number; JSON and CSV see to themselves.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if arguments[:1] != ["kv"]:
        # Keys and values of a store may be any bytes.
        for argument in arguments:
            require_text("an argument", argument)


__all__ = ["app", "main"]
