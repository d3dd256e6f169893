"""The write-ahead log, moved into the file beside the deletes that fill it, and kept from growing without bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from sqlalchemy import Connection

from lapse.engines.base import Gauge
from lapse.engines.keyset import Connect
from lapse.errors import LapseError, Retryable

MOVE_PAGES = 2_000
"""Pages written before a move begins: small pieces, so that the commits beside it are held up least."""
LOG_PAGES = 32_000
"""Pages written before deleting waits for the move: the log begins anew only when all of it has been moved."""
MAX_LOG_PAGES = 2 * LOG_PAGES
"""Pages in a log that a reader keeps from beginning anew, before deleting stops until the reader is gone."""
_NAME = "write-ahead log that a reader keeps from being emptied:"


class LogMover:
    """Moves the log without holding up readers or writers, on connections and in a thread of its own.

    One for all deleters of a file. Pages are counted roughly, as what a delete may have written, and asked for only
    when the count is high.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = Lock()
        self._thread: Thread | None = None
        self._unmoved = 0
        self._length = 0
        self._held_pages = 0

    def wrote(self, pages: int) -> None:
        with self._lock:
            self._unmoved += pages
            self._length += pages
            if self._length >= LOG_PAGES:
                self._move_all()
            elif self._unmoved >= MOVE_PAGES and (self._thread is None or not self._thread.is_alive()):
                self._unmoved = 0
                self._thread = Thread(target=self._move, name="lapse-log")
                self._thread.start()

    def move_all(self) -> None:
        """Returns when everything that was written is in the file, unless a reader needs the log as it is."""
        with self._lock:
            self._move_all()

    def _move_all(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._length and self._move() >= MAX_LOG_PAGES:
            self._begin_anew()
        self._unmoved = self._length = 0

    def refuse_to_grow(self) -> None:
        """Raises Retryable while a reader holds a log that is as long as it may be."""
        if self._held_pages and self.gauge() is not None:
            raise Retryable(f"{_NAME} {self._held_pages} pages")

    def gauge(self) -> Gauge | None:
        """How long the log is while a reader holds it; None while it may grow."""
        if not self._held_pages:
            return None
        with self._lock:
            self._begin_anew()
            held = self._held_pages
        return Gauge(name=_NAME, value=held, soft=MAX_LOG_PAGES, stop=MAX_LOG_PAGES, unit=" pages") if held else None

    def _move(self) -> int:
        """How many pages the log holds."""
        # The rows are gone and counted: whatever keeps the log from being moved, the next one who tries will do.
        with suppress(LapseError), self._connect() as connection:
            return _checkpoint(connection, "PASSIVE")[1]
        return 0

    def _begin_anew(self) -> None:
        """Have the next writer begin at the start of the log, which it can unless a reader is at work in it."""
        with suppress(LapseError), self._connect() as connection, _without_waiting(connection):
            # What this can move does not have to be moved under the write lock.
            _checkpoint(connection, "PASSIVE")
            busy, pages = _checkpoint(connection, "RESTART")
            self._held_pages = pages if busy and pages >= MAX_LOG_PAGES else 0


def _checkpoint(connection: Connection, mode: str) -> tuple[bool, int]:
    """Was another connection in the way, and how many pages does the log hold?"""
    busy, pages, _ = connection.exec_driver_sql(f"PRAGMA wal_checkpoint({mode})").one()
    return bool(busy), int(pages)


@contextmanager
def _without_waiting(connection: Connection) -> Iterator[None]:
    patience = int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience}")
