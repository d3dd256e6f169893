"""`lapse worker`: keep expiring rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry

from lapse.app.receivers import COMMAND_ENVIRONMENT, URL_ENVIRONMENT, Receiver, read_receivers
from lapse.cli.fleet import Bounds, serve_many
from lapse.cli.listening import AllowActions, Token, Users, listening, probing
from lapse.cli.logs import LogFormat, LogFormatOption, configure_logging
from lapse.cli.opening import Url, database_url, open_database
from lapse.cli.stopping import stop_on_signals
from lapse.cli.stores import Every, Rate, Stores, open_purger, purging, read_config
from lapse.console.users import Access
from lapse.errors import UsageError
from lapse.kv import PurgerConfig
from lapse.runner.events import MultiListener
from lapse.runner.joblog import JobLog
from lapse.runner.metering import Meter
from lapse.runner.multi import CONNECTIONS, THREADS

log = logging.getLogger("lapse.worker")

MOST_THREADS = 1_000
LOOK_S = 1.0
"""How long the main thread sleeps at a time: a signal that an engine's thread was given does not wake it."""


def worker(
    url: Url = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Work for every database of this file, instead of URL."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help=f"With --config: tasks at a time. Default: {THREADS}.")
    ] = None,
    connections: Annotated[
        int | None,
        typer.Option(min=1, help=f"With --config: most connections, over all. Default: {CONNECTIONS}."),
    ] = None,
    stores: Stores = None,
    every: Every = None,
    rows_per_second: Rate = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve the console, /metrics, /healthz and /readyz here."),
    ] = None,
    allow_actions: AllowActions = False,
    token: Token = None,
    users: Users = None,
    notify_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help=f"Tell a webhook, such as Slack's, what needs a person. Better in ${URL_ENVIRONMENT}."
        ),
    ] = None,
    notify_command: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help=f"Tell a program, as JSON on its stdin. Or in ${COMMAND_ENVIRONMENT}."),
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every batch and every wait, too.")] = False,
) -> None:
    """Keep running: start each table's job when it is due, until SIGTERM or Ctrl-C.

    Stopping is graceful: the batch at hand is finished and the rest is left for the next worker. Start as many as you
    like, on as many machines; they share the work through the database.

    With `--kv` it purges key-value stores as well, or only those where no database is given. It opens a store for the
    time of its purge; one that another process has open for writing is left to that process, reported, and tried again
    next time.

    With `--config` one worker serves every `[databases.NAME]` of a file. A database that is down delays no other.

    Tables that are blocked or late, first runs that wait for confirmation, failed jobs and a clock that is not trusted
    are told to a webhook or a command: once when it begins, once when it is over, by one of all workers.

    Example: `lapse worker sqlite:///app.db --listen 127.0.0.1:8321 --log-format json`
    """
    configure_logging(log_format, logging.DEBUG if verbose else logging.INFO)
    access = Access.of(token, users)
    purging_config = read_config(stores, every, rows_per_second)
    if config is not None:
        if url is not None:
            raise UsageError("a URL or --config, not both", hint="name the database in the file")
        bounds = Bounds(threads=threads or THREADS, connections=connections)
        receivers = read_receivers(os.environ, notify_url, notify_command)
        serve_many(config, purging_config, bounds, listen, access, allow_actions=allow_actions, receivers=receivers)
    elif threads is not None or connections is not None:
        raise UsageError(
            "--threads and --connections are for --config",
            hint="for one database: lapse settings URL tidb_ttl_scan_worker_count",
        )
    elif purging_config is not None and database_url(url) is None:
        if allow_actions:
            raise UsageError("--allow-actions is about the console, which needs a database")
        if notify_url or notify_command:
            raise UsageError("notifications are about the tables of a database", hint="give its URL")
        _purge_stores(purging_config, listen, access)
    else:
        receivers = read_receivers(os.environ, notify_url, notify_command)
        _expire_rows(url, purging_config, listen, access, allow_actions=allow_actions, receivers=receivers)


def _expire_rows(
    url: str | None,
    config: PurgerConfig | None,
    listen: str | None,
    access: Access,
    *,
    allow_actions: bool,
    receivers: Sequence[Receiver],
) -> None:
    with open_database(url) as database:
        metrics = database.metrics()
        purger = open_purger(config, metrics.registry)
        service = database.worker(MultiListener((JobLog(), Meter(metrics))), receivers=receivers)
        stopping = Event()

        def stop() -> None:
            stopping.set()
            service.stop()

        server = nullcontext() if listen is None else listening(
            database, metrics, listen, access=access, allow_actions=allow_actions, worker_id=service.id,
            is_working=lambda: not stopping.is_set(), purger=purger,
        )  # fmt: skip
        with stop_on_signals(stop), server, purging(purger, stopping):
            log.info("worker %s begins on %s", service.id, database.url)
            service.serve()
        log.info("worker %s has stopped", service.id)


def _purge_stores(config: PurgerConfig, listen: str | None, access: Access) -> None:
    registry, stopping = CollectorRegistry(), Event()
    purger = open_purger(config, registry)
    server = nullcontext() if listen is None else probing(
        registry, listen, access=access, is_working=lambda: not stopping.is_set()
    )  # fmt: skip
    count = len(config.stores)
    with stop_on_signals(stopping.set), server, purging(purger, stopping):
        log.info("worker begins on %d key-value store%s", count, "" if count == 1 else "s")
        while not stopping.wait(LOOK_S):
            pass
    log.info("worker has stopped")
