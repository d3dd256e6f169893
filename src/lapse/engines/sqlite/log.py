"""The write-ahead log, moved into the file beside the deletes that fill it."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

from lapse.engines.keyset import Connect
from lapse.errors import LapseError

MOVE_PAGES = 2_000
"""Pages written before a move begins: small pieces, so that the commits beside it are held up least."""
LOG_PAGES = 32_000
"""Pages written before deleting waits for the move: the log begins anew only when all of it has been moved."""


class LogMover:
    """Moves the log without holding up readers or writers, on a connection and in a thread of its own.

    Pages are counted roughly, as what a delete may have written.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._thread: Thread | None = None
        self._unmoved = 0
        self._length = 0

    def wrote(self, pages: int) -> None:
        self._unmoved += pages
        self._length += pages
        if self._length >= LOG_PAGES:
            self.move_all()
        elif self._unmoved >= MOVE_PAGES and (self._thread is None or not self._thread.is_alive()):
            self._unmoved = 0
            self._thread = Thread(target=self._move, name="lapse-log")
            self._thread.start()

    def move_all(self) -> None:
        """Returns when everything that was written is in the file, unless a reader needs the log as it is."""
        if self._thread is not None:
            self._thread.join()
        if self._length:
            self._move()
        self._unmoved = self._length = 0

    def _move(self) -> None:
        # The rows are gone and counted: whatever keeps the log from being moved, the next one who tries will do.
        with suppress(LapseError), self._connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
