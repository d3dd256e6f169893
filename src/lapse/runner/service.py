"""A small loop in a thread of its own: the same start and stop for all of them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import copy_context
from threading import Event, Thread
from typing import ClassVar

from lapse.errors import LapseError

REQUESTS = "requests"
"""The service that answers what people ask for with the database's own client."""

log = logging.getLogger(__name__)


def _ignore(service: str) -> None:
    pass


class Service(ABC):
    """`run_once` does the work and can be called directly; `start` repeats it every `seconds`."""

    name: ClassVar[str]
    seconds: ClassVar[float]
    at_once: ClassVar[bool] = False
    """Does the first round begin when the service starts?"""

    def __init__(self) -> None:
        self._closing = Event()
        self._woken = Event()
        self.on_failure: Callable[[str], None] = _ignore
        """Told the name of the service after a round that ended with an error."""
        self._thread: Thread | None = None
        self.is_told = False
        """Is it woken by others whenever there is something to do?"""

    @abstractmethod
    def run_once(self) -> None: ...

    def start(self) -> None:
        """One that was closed can be started again. Its log lines are told with what the caller's are told with."""
        self._closing.clear()
        self._woken.clear()
        context = copy_context()
        self._thread = Thread(target=lambda: context.run(self._loop), name=f"lapse-{self.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def pause(self) -> float:
        """How long until the next round."""
        return self.seconds

    def wake(self) -> None:
        """Begin the next round at once."""
        self._woken.set()

    def _loop(self) -> None:
        pause = 0.0 if self.at_once else self.pause()
        while True:
            self._woken.wait(pause)
            if self._closing.is_set():
                return
            self._woken.clear()
            try:
                self.run_once()
            except LapseError as error:
                # What matters of it is met and reported by the tasks themselves; the next round tries again.
                log.debug("%s: %s", self.name, error.message)
                self.on_failure(self.name)
            except Exception:
                log.exception("%s met an error and goes on", self.name)
                self.on_failure(self.name)
            pause = self.pause()
