"""An outage of the database: told when it begins, told when it is over, with growing pauses in between."""

from __future__ import annotations

import logging
from threading import Lock
from time import monotonic

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0

log = logging.getLogger(__name__)


class Outage:
    """Shared by the threads of a worker: what one has met and told, the others meet in silence."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._since: float | None = None
        self._attempts = 0

    def met(self, message: str) -> None:
        """The database did not answer."""
        with self._lock:
            if self._since is None:
                self._since = monotonic()
                log.warning("the database is unreachable: %s; trying again with growing pauses", message)
            else:
                log.debug("the database is still unreachable: %s", message)

    def tried(self) -> None:
        """One more attempt was in vain."""
        with self._lock:
            self._attempts += 1

    def over(self) -> None:
        """The database answers; nothing is said where it always did."""
        with self._lock:
            if self._since is not None:
                log.warning("the database is reachable again after %.0f s", monotonic() - self._since)
            self._since, self._attempts = None, 0

    @property
    def is_on(self) -> bool:
        return self._since is not None

    @property
    def pause_seconds(self) -> float:
        return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._attempts, 10))
