"""A small service that purges a list of stores, each when it is due."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock, SystemClock
from lapse.errors import InvalidValue, LapseError
from lapse.kv.abc import Store
from lapse.kv.opening import open
from lapse.kv.options import DEFAULT_BUDGET_BYTES, DEFAULT_JITTER, DurationLike
from lapse.kv.ttl import read_duration
from lapse.kv.url import parse
from lapse.kv.values import PurgeResult

DEFAULT_EVERY = "1 hour"
DEFAULT_COMPACT_AFTER = "1 day"


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgerConfig:
    """`every` is the time between two purges of a store, shortened each time by a random part of up to
    `jitter`, so that stores do not all work at once. Parts of a store not compacted for
    `periodic_compaction_interval` are, up to `compaction_budget_bytes` per purge. With `within` a purge goes
    on until the bytes are gone and that is verified.
    """

    stores: tuple[str, ...]
    every: DurationLike = DEFAULT_EVERY
    jitter: float = DEFAULT_JITTER
    within: DurationLike | None = None
    max_rows: int | None = None
    rows_per_second: float | None = None
    periodic_compaction_interval: DurationLike | None = DEFAULT_COMPACT_AFTER
    compaction_budget_bytes: int = DEFAULT_BUDGET_BYTES

    def __post_init__(self) -> None:
        for url in self.stores:
            if parse(url).in_memory:
                raise InvalidValue("stores", url, "must not be a store in memory: nobody else can open it")
        if len(set(self.stores)) != len(self.stores):
            raise InvalidValue("stores", self.stores, "must not name a store twice")
        read_duration(self.every, name="every")
        if not 0 <= self.jitter < 1:
            raise InvalidValue("jitter", self.jitter, "must be at least 0 and less than 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeRun:
    """What one round did. A store that failed does not keep the others from their turn; it is tried again
    next time."""

    purged: dict[str, PurgeResult]
    failed: dict[str, LapseError]
    not_due: tuple[str, ...]
    next_due: datetime | None


class Purger:
    """`open_store` is for callers that hold their stores open themselves; then `close_after` is False."""

    def __init__(
        self,
        config: PurgerConfig,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        open_store: Callable[[str], Store] | None = None,
        close_after: bool = True,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._registry = registry
        self._open = open_store or self._open_default
        self._close_after = close_after
        self._due: dict[str, datetime] = {}

    def run_once(self) -> PurgeRun:
        """Purge every store that is due now; each is due at once the first time."""
        purged: dict[str, PurgeResult] = {}
        failed: dict[str, LapseError] = {}
        not_due: list[str] = []
        for url in self._config.stores:
            if self._due.get(url, self._clock.now()) > self._clock.now():
                not_due.append(url)
                continue
            try:
                purged[url] = self._purge(url)
            except LapseError as error:
                failed[url] = error
            self._due[url] = self._clock.now() + self._pause()
        return PurgeRun(
            purged=purged,
            failed=failed,
            not_due=tuple(not_due),
            next_due=min(self._due.values(), default=None),
        )

    def run_forever(self, stop: threading.Event, *, on_run: Callable[[PurgeRun], None] | None = None) -> None:
        """Rounds until `stop` is set; it is looked at between stores' turns, never in the middle of a
        purge."""
        while not stop.is_set():
            run = self.run_once()
            if on_run is not None:
                on_run(run)
            wait = (run.next_due - self._clock.now()).total_seconds() if run.next_due else None
            stop.wait(None if wait is None else max(0.0, wait))

    def _purge(self, url: str) -> PurgeResult:
        config, store = self._config, self._open(url)
        try:
            return store.purge(within=config.within, max_rows=config.max_rows, rows_per_second=config.rows_per_second)
        finally:
            if self._close_after:
                store.close()

    def _pause(self) -> timedelta:
        seconds = read_duration(self._config.every, name="every").interval.approximate_seconds
        return timedelta(seconds=seconds * (1 - random.random() * self._config.jitter))

    def _open_default(self, url: str) -> Store:
        return open(
            url,
            clock=None if isinstance(self._clock, SystemClock) else self._clock,
            create=False,
            periodic_compaction_interval=self._config.periodic_compaction_interval,
            compaction_budget_bytes=self._config.compaction_budget_bytes,
            registry=self._registry,
        )
