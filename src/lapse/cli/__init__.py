"""The `lapse` command: one file per command, and one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lapse._version import __version__
from lapse.cli.commands import COMMANDS, Command
from lapse.cli.failures import EXIT_INTERRUPTED, report
from lapse.cli.opening import require_text
from lapse.cli.output import Output
from lapse.errors import UsageError

NAMES = frozenset(command.name for command in COMMANDS)
KV = "kv"
COMPLETION = "_LAPSE_COMPLETE"
TRACEBACK = "LAPSE_TRACEBACK"
"""Set, an error that Lapse did not expect shows where in the code it came from."""


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


def build(loaded: Collection[str]) -> typer.Typer:
    """The application with these commands; the others are only listed, so that what they need is not imported."""
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
    for each in COMMANDS:
        if each.name not in loaded:
            app.command(each.name, rich_help_panel=each.panel, help=each.summary)(_not_loaded)
        elif each.name == KV:
            app.add_typer(_module(each).app, name=KV, rich_help_panel=each.panel)
        else:
            app.command(rich_help_panel=each.panel, cls=_Command)(getattr(_module(each), each.name))
    app.callback()(_options)
    return app


def _module(command: Command) -> Any:
    return import_module(f"lapse.cli.{command.module}")


def _not_loaded() -> None:
    raise AssertionError("a command that is only listed was run")


def _print_version(wanted: bool) -> None:
    if wanted:
        Output().line(f"lapse {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def __getattr__(name: str) -> Any:
    """`app` is the application with every command, for documentation and completion."""
    if name == "app":
        return build(NAMES)
    raise AttributeError(f"module 'lapse.cli' has no attribute {name!r}")


def _wanted(arguments: Sequence[str]) -> Collection[str]:
    """The command that is run; all of them where a shell asks for completions."""
    if COMPLETION in os.environ:
        return NAMES
    return {argument for argument in arguments[:1] if argument in NAMES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in ([], ["kv"]):
        arguments.append("--help")
    try:
        _prepare(arguments)
        code = build(_wanted(arguments))(arguments, prog_name="lapse", standalone_mode=False)
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
            if "\0" in argument:
                # No shell can pass one; where a path has it, typer does not say so.
                raise UsageError(f"an argument has a zero byte: {argument!r}")


__all__ = ["build", "main"]
