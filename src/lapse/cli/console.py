"""`lapse console`: look at a database in the browser."""

from __future__ import annotations

import logging
from threading import Event
from typing import Annotated

import typer

from lapse.cli.listening import AllowActions, Token, Users, listening
from lapse.cli.logs import LogFormat, LogFormatOption, configure_logging
from lapse.cli.opening import Url, open_database
from lapse.cli.stopping import stop_on_signals
from lapse.console.users import Access, Role, add
from lapse.errors import UsageError

DEFAULT_LISTEN = "127.0.0.1:8321"


def console(
    url: Url = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to serve it.")] = DEFAULT_LISTEN,
    allow_actions: AllowActions = False,
    token: Token = None,
    users: Users = None,
    add_user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Add a user to the file of --users and print their token.")
    ] = None,
    role: Annotated[Role, typer.Option(help="With --add-user: may they act, or only look?")] = Role.VIEWER,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve the web console without working: look at what the workers of this database do, until Ctrl-C.

    With `--users FILE --add-user NAME` it serves nothing: it adds a user to the file and prints their token, once.

    Workers serve the same with `lapse worker --listen`. Actions asked for here are carried out by the workers.

    Example: `lapse console sqlite:///app.db --listen 127.0.0.1:8321 --allow-actions`
    """
    if add_user is not None:
        if users is None:
            raise UsageError("--add-user needs the file of --users", hint="lapse console --users FILE --add-user NAME")
        typer.echo(add(users, add_user, role))
        return
    configure_logging(log_format, logging.INFO)
    stopped = Event()
    with (
        open_database(url) as database,
        stop_on_signals(stopped.set),
        listening(database, database.metrics(), listen, access=Access.of(token, users), allow_actions=allow_actions),
    ):
        stopped.wait()
