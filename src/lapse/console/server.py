"""The web server: a socket that is bound before anything starts, and uvicorn in a thread of its own."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from threading import Thread
from types import TracebackType

import uvicorn
from starlette.types import ASGIApp

from lapse.console.options import ConsoleOptions
from lapse.errors import UsageError

STOP_SECONDS = 5
BACKLOG = 128

log = logging.getLogger(__name__)


def bind(options: ConsoleOptions) -> tuple[socket.socket, ConsoleOptions]:
    """Port 0 takes any free one; the options that come back have the real one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}") from error
    return bound, replace(options, port=bound.getsockname()[1])


class Server:
    """A context manager: serves inside it, and lets requests under way finish at its end."""

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._socket = bound
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._run, name="lapse-console", daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS * 2)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:
            # The worker goes on deleting whatever becomes of the web server, but not in silence.
            log.exception("the console has stopped")
