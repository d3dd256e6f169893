"""`lapse worker`: keep expiring rows."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from threading import Event
from typing import Annotated

import typer

from lapse.cli.listening import AllowActions, Token, listening
from lapse.cli.logs import JobLog, LogFormat, LogFormatOption, configure_logging
from lapse.cli.opening import Url, open_database
from lapse.cli.stopping import stop_on_signals
from lapse.runner.events import Several
from lapse.runner.metering import Meter

log = logging.getLogger("lapse.worker")


def worker(
    url: Url = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve the console, /metrics, /healthz and /readyz here."),
    ] = None,
    allow_actions: AllowActions = False,
    token: Token = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every batch and every wait, too.")] = False,
) -> None:
    """Keep running: start each table's job when it is due, until SIGTERM or Ctrl-C.

    Stopping is graceful: the batch at hand is finished and the rest is left for the next worker. Start as many as you
    like, on as many machines; they share the work through the database.

    Example: `lapse worker sqlite:///app.db --listen 127.0.0.1:8321 --log-format json`
    """
    configure_logging(log_format, logging.DEBUG if verbose else logging.INFO)
    with open_database(url) as database:
        metrics = database.metrics()
        service = database.worker(Several((JobLog(), Meter(metrics))))
        stopping = Event()

        def stop() -> None:
            stopping.set()
            service.stop()

        server = nullcontext() if listen is None else listening(
            database, metrics, listen, token=token, allow_actions=allow_actions, worker_id=service.id,
            is_working=lambda: not stopping.is_set(),
        )  # fmt: skip
        with stop_on_signals(stop), server:
            log.info("worker %s begins on %s", service.id, database.url)
            service.serve()
        log.info("worker %s has stopped", service.id)
