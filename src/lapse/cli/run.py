"""`lapse run`: expire rows once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from threading import Timer
from time import monotonic
from typing import Annotated

import typer

from lapse.app import Lapse, RunResult
from lapse.app.databases import Named
from lapse.app.receivers import Receiver, read_receivers
from lapse.app.records import Record, run_record
from lapse.cli import runreport
from lapse.cli.databases import ConfigOption, DatabaseOption, file_of, on_each
from lapse.cli.failures import EXIT_FAILED, EXIT_INCOMPLETE
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output
from lapse.cli.progress import SHOWN_AFTER_SECONDS, LockLines, ProgressBar
from lapse.cli.stopping import stop_on_signals
from lapse.errors import InvalidValue, LapseError
from lapse.model import interval
from lapse.runner.events import MultiListener, NullListener


def run(
    url: Url = None,
    table: Annotated[str | None, typer.Option("--table", "-t", help="This table now, whether due or not.")] = None,
    max_runtime: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Stop after this long, such as 10m; what is left stays.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Confirm first runs that wait because they look like a mistake.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Each partition, and each table that had nothing to delete.")
    ] = False,
    names: DatabaseOption = None,
    config: ConfigOption = None,
    as_json: Json = False,
) -> None:
    """Delete expired rows once: every table that is due, or one table now.

    The first run of a policy waits for confirmation, and is shown as a preview, if it would delete more than half of a
    table of at least 10,000 rows, or the oldest row is from an implausible time; --yes or `lapse resume` confirms it. A
    run that was stopped, or that skipped a table, ends with exit code 3; the next one goes on where it stopped. A lock
    that it waits for is told on stderr. With `--config` or `--database` it goes through the databases of a file, one
    after the other; `--max-runtime` is for all of them together. What needs a person is told to the receivers of
    notifications, as by a worker.

    Example: `lapse run sqlite:///app.db --table events --max-runtime 10m`
    """
    seconds = None if max_runtime is None else _seconds(max_runtime)
    output, file = Output(), file_of(config, names, url)
    until = None if seconds is None else monotonic() + seconds
    one = partial(_run, table=table, confirm=yes, until=until, verbose=verbose, as_json=as_json)
    if file is not None:
        on_each(output, file, names, one, as_json=as_json)
        return
    with open_database(url) as database:
        record, code = one(output, database)
    if as_json:
        output.json(record)
    if code:
        raise typer.Exit(code)


def _run(
    output: Output,
    database: Lapse,
    named: Named | None = None,
    *,
    table: str | None,
    confirm: bool,
    until: float | None,
    verbose: bool,
    as_json: bool,
) -> tuple[Record | None, int]:
    seconds = None if until is None else max(0.0, until - monotonic())
    receivers = read_receivers(os.environ, None, None)
    result = execute(database, output, table=table, confirm=confirm, seconds=seconds)
    if receivers:
        _notify(database, receivers, output)
    if not as_json:
        runreport.show(output, result, verbose=verbose, has_policies=bool(database.policies()))
        runreport.show_waiting(output, database, result, verbose=verbose)
    code = EXIT_FAILED if result.failed else 0 if result.complete else EXIT_INCOMPLETE
    return run_record(result) if as_json else None, code


def _notify(database: Lapse, receivers: Sequence[Receiver], output: Output) -> None:
    """What the run has done is done: the exit code is about that alone."""
    try:
        database.notifier(receivers).run_once()
    except LapseError as error:
        fix = f"; {error.hint}" if error.hint else ""
        output.notice(f"nothing could be told to the receivers of notifications: {error.message}{fix}")


def execute(
    database: Lapse,
    output: Output,
    *,
    table: str | None,
    confirm: bool = False,
    seconds: float | None = None,
    bar_after: float = SHOWN_AFTER_SECONDS,
) -> RunResult:
    """Run with a progress bar and stop gracefully on a signal or when the time is up."""
    progress = (
        ProgressBar(database, output.err, shown_after=bar_after)
        if output.err.is_terminal and not output.err.is_dumb_terminal
        else None
    )
    worker = database.worker(MultiListener((progress or NullListener(), LockLines(output))))
    timer = Timer(seconds, worker.stop) if seconds is not None else None
    with progress or nullcontext(), stop_on_signals(worker.stop):
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            return database.run(table, confirm=confirm, worker=worker)
        finally:
            if timer is not None:
                timer.cancel()


def _seconds(text: str) -> float:
    value = interval.parse(text, name="--max-runtime")
    if not value or value.months:
        raise InvalidValue("--max-runtime", text, "must be longer than zero, without months")
    return value.approximate_seconds
