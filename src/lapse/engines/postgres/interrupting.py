"""Statements that another thread can cancel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import Deleter

CANCEL_SECONDS = 5


class InterruptibleDeleter(Deleter):
    """The lock keeps a late cancellation from reaching the next user of the connection."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: Any = None

    def interrupt(self) -> None:
        with self._lock:
            if self._running is not None:
                self._running.cancel_safe(timeout=CANCEL_SECONDS)

    @contextmanager
    def watched(self, connection: Connection) -> Iterator[None]:
        with self._lock:
            self._running = connection.connection.driver_connection
        try:
            yield
        finally:
            with self._lock:
                self._running = None
