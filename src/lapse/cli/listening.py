"""The web server beside a command: its options, and its life."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry

from lapse import console
from lapse.app import Lapse
from lapse.app.databases import Fleet
from lapse.console.options import TOKEN_VARIABLE
from lapse.console.users import USERS_VARIABLE, Access
from lapse.kv import Purger
from lapse.metrics import Metrics

log = logging.getLogger("lapse.console")

AllowActions = Annotated[
    bool,
    typer.Option(
        "--allow-actions", help="Let visitors run, pause, resume and cancel; otherwise the console is read-only."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar=TOKEN_VARIABLE,
        show_envvar=False,
        help=f"Access token. Required when not on loopback. Prefer ${TOKEN_VARIABLE}: other users see arguments.",
    ),
]

Users = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar=USERS_VARIABLE,
        show_envvar=False,
        help=f"Named users instead of one token, made with lapse console --add-user. Or in ${USERS_VARIABLE}.",
    ),
]


@contextmanager
def listening(
    database: Lapse,
    metrics: Metrics,
    listen: str,
    *,
    access: Access,
    allow_actions: bool,
    worker_id: str | None = None,
    is_working: Callable[[], bool] = lambda: True,
    purger: Purger | None = None,
) -> Iterator[None]:
    """The console and the probes, served inside it."""
    console.require()
    # The libraries of the console are an extra: what needs them is imported when it is asked for.
    from lapse.console.application import build
    from lapse.console.server import Server, bind

    bound, options = bind(_options(listen, access, allow_actions=allow_actions))
    stores = None if purger is None else purger.report
    app = build(database, metrics, options, worker_id=worker_id, is_working=is_working, stores=stores)
    with Server(app, bound):
        log.info("console and metrics on %s", options.url)
        yield


@contextmanager
def listening_for_many(
    fleet: Fleet,
    registry: CollectorRegistry,
    listen: str,
    *,
    access: Access,
    allow_actions: bool,
    is_working: Callable[[], bool],
    purger: Purger | None = None,
) -> Iterator[None]:
    """The console of every database that a worker serves, and the probes."""
    console.require()
    from lapse.console.many import build
    from lapse.console.server import Server, bind

    bound, options = bind(_options(listen, access, allow_actions=allow_actions))
    stores = None if purger is None else purger.report
    with Server(build(fleet, registry, options, is_working=is_working, stores=stores), bound):
        log.info("console and metrics on %s", options.url)
        yield


@contextmanager
def probing(
    registry: CollectorRegistry, listen: str, *, access: Access, is_working: Callable[[], bool]
) -> Iterator[None]:
    """The probes alone, for a worker without a database."""
    console.require()
    from lapse.console.probes import build
    from lapse.console.server import Server, bind

    bound, options = bind(_options(listen, access, allow_actions=False))
    with Server(build(registry, options, is_working=is_working), bound):
        log.info("metrics on %s", options.url)
        yield


def _options(listen: str, access: Access, *, allow_actions: bool) -> console.ConsoleOptions:
    host, port = console.parse_listen(listen)
    return console.ConsoleOptions(
        host=host, port=port, token=access.token, users=access.users, allow_actions=allow_actions
    )
