"""A worker inside an application: threads of its process, stopped with the application."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from threading import Lock, Thread, main_thread
from types import TracebackType

from lapse.errors import LapseError, UsageError
from lapse.runner.worker import Worker

EXIT_SECONDS = 0.5
"""How soon the end of the program's main thread is noticed."""

log = logging.getLogger("lapse.worker")


class Background:
    """Runs a worker from `start` to `stop`, or for the length of a `with` block.

    A program that ends without `stop` stops the worker first: the batch at hand is finished and its tasks are given
    back. A database that cannot be reached is waited for. A process that is forked from this one has no worker.
    """

    def __init__(self, worker: Worker, on_stopped: Callable[[], None]) -> None:
        self._worker = worker
        self._on_stopped = on_stopped
        self._lock = Lock()
        self._process: int | None = None
        self._serving = Thread(target=self._serve, name="lapse-background")
        self._watching = Thread(target=self._watch, name="lapse-background-exit", daemon=True)

    def __enter__(self) -> Background:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._process == os.getpid() and self._serving.is_alive()

    def start(self) -> Background:
        """Begin and return at once. Raises UsageError for one that was started before."""
        with self._lock:
            if self._process is not None:
                raise UsageError(
                    "this background worker was started before", hint="call background() again for another one"
                )
            self._process = os.getpid()
            self._serving.start()
            self._watching.start()
        return self

    def stop(self) -> None:
        """Finish the batches at hand, give the tasks back and return; does nothing where no worker runs."""
        if self._process != os.getpid():
            return
        self._worker.stop()
        self._serving.join()
        self._watching.join()

    def _serve(self) -> None:
        log.info("worker %s begins in this process", self._worker.id)
        try:
            self._worker.serve()
        except LapseError as error:
            log.error("worker %s ends: %s", self._worker.id, error.message)
        except Exception:
            log.exception("worker %s ends", self._worker.id)
        finally:
            self._on_stopped()
        log.info("worker %s has stopped", self._worker.id)

    def _watch(self) -> None:
        """The threads of a worker would keep a program alive whose main thread has ended."""
        while self._serving.is_alive():
            if not main_thread().is_alive():
                self._worker.stop()
                return
            self._serving.join(EXIT_SECONDS)
