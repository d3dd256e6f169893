"""Connections in a pool: which are asked whether they are alive before they are used again."""

from __future__ import annotations

from collections.abc import Callable
from select import POLLIN, poll
from time import monotonic
from typing import Any

from sqlalchemy import Engine as Database
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError

IDLE_SECONDS = 2.0
_RETURNED_AT = "lapse_returned_at"


def ask_if_doubtful(
    database: Database, ask: Callable[[Any], object], error: type[Exception], socket: Callable[[Any], int | None]
) -> None:
    """A connection that has been idle for long may be dead, and so may one that has something to read, such as its end.
    Others are not worth a round trip.

    `ask` raises `error` where the server is gone, and the pool opens another connection.
    """

    @event.listens_for(database, "checkout")
    def _look_alive(raw: Any, record: Any, proxy: object) -> None:
        returned_at = record.info.get(_RETURNED_AT)
        if returned_at is None:
            return
        try:
            if monotonic() - returned_at > IDLE_SECONDS or _has_something_to_read(socket(raw)):
                ask(raw)
        except error as lost:
            raise DisconnectionError(str(lost)) from lost

    @event.listens_for(database, "checkin")
    def _note_return(raw: Any, record: Any) -> None:
        record.info[_RETURNED_AT] = monotonic()


def _has_something_to_read(descriptor: int | None) -> bool:
    if descriptor is None:
        return True
    waiting = poll()
    waiting.register(descriptor, POLLIN)
    return bool(waiting.poll(0))
