"""A small loop in a thread of its own: the same start and stop for all of them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from threading import Event, Thread
from typing import ClassVar

from lapse.errors import LapseError

log = logging.getLogger(__name__)


class Service(ABC):
    """`run_once` does the work and can be called directly; `start` repeats it every `seconds`."""

    name: ClassVar[str]
    seconds: ClassVar[float]
    at_once: ClassVar[bool] = False
    """Does the first round begin when the service starts?"""

    def __init__(self) -> None:
        self._closing = Event()
        self._thread: Thread | None = None

    @abstractmethod
    def run_once(self) -> None: ...

    def start(self) -> None:
        self._thread = Thread(target=self._loop, name=f"lapse-{self.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def pause(self) -> float:
        """How long until the next round."""
        return self.seconds

    def _loop(self) -> None:
        pause = 0.0 if self.at_once else self.pause()
        while not self._closing.wait(pause):
            try:
                self.run_once()
            except LapseError as error:
                # What matters of it is met and reported by the tasks themselves; the next round tries again.
                log.debug("%s: %s", self.name, error.message)
            pause = self.pause()
