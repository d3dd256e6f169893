"""Work that a command does in batches beside an application, at the pace of jobs: gates, rests and rate limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep

from lapse.catalog import Catalog, settings
from lapse.catalog.policies import StoredPolicy
from lapse.runner.controller import Controller
from lapse.runner.limiter import Limit, Limiter, delete_limits
from lapse.runner.task import GATE_SECONDS


class Pacer:
    """Waits between batches, never inside a transaction."""

    def __init__(self, controller: Controller | None, limiter: Limiter, limits: list[Limit]) -> None:
        self._controller = controller
        self._limiter = limiter
        self._limits = limits

    def before(self, rows: int, tell: Callable[[str], None]) -> None:
        """Until a batch of so many rows may begin; what it waits for is told."""
        while self._controller is not None and (closed := self._controller.stop_reason()) is not None:
            tell(closed)
            sleep(GATE_SECONDS)

        def wait(seconds: float, reason: str) -> None:
            tell(reason)
            sleep(seconds)

        self._limiter.acquire(self._limits, rows, wait)

    def batch_seconds(self, otherwise: float) -> float:
        return otherwise if self._controller is None else self._controller.batch_seconds()

    def after(self, seconds: float) -> None:
        if self._controller is not None:
            sleep(self._controller.pause_after(seconds, seconds)[0])


@contextmanager
def pacing(catalog: Catalog, stored: StoredPolicy | None, gate_sql: str | None, *, is_long: bool) -> Iterator[Pacer]:
    """What is over after one batch does not look at the gauges first."""
    with catalog.reading() as connection:
        limits = [] if stored is None else delete_limits(stored, settings.load_settings(connection))
    if not is_long:
        yield Pacer(None, Limiter(catalog), limits)
        return
    controller = Controller(catalog, gate_sql)
    controller.start()
    try:
        with controller.at_work():
            yield Pacer(controller, Limiter(catalog), limits)
    finally:
        controller.close()
