"""A small service that purges a list of stores, each when it is due."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from lapse.clock import Clock, SystemClock
from lapse.errors import InvalidValue, LapseError
from lapse.kv.metrics import StoreMetrics
from lapse.kv.options import Budget, DurationLike, OpenOptions, PurgeLimits
from lapse.kv.sync import Store, engine_of, open
from lapse.kv.ttl import read_duration
from lapse.kv.url import parse
from lapse.kv.values import PurgeResult

DEFAULT_EVERY = "1 hour"
JITTER = 0.1
"""Part of `every` by which a store's turn may come earlier, so that stores do not all work at once."""
MAX_EVERY = timedelta(days=366)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgerConfig:
    """`every` is the time between two purges of a store. With `within` a purge goes on until the bytes are gone and
    that is verified."""

    stores: tuple[str, ...]
    every: DurationLike = DEFAULT_EVERY
    within: DurationLike | None = None
    rows_per_second: float | None = None

    def __post_init__(self) -> None:
        parsed = [parse(url) for url in self.stores]
        for url in parsed:
            if url.in_memory:
                raise InvalidValue("stores", str(url), "must not be a store in memory: no other process can open it")
        if len(set(parsed)) != len(parsed):
            raise InvalidValue("stores", ", ".join(map(str, parsed)), "must not name a store twice")
        if self.every_s > MAX_EVERY.total_seconds():
            raise InvalidValue("every", self.every, f"must be at most {MAX_EVERY.days} days")
        Budget(**self.limits())

    def limits(self, stop: threading.Event | None = None) -> PurgeLimits:
        return PurgeLimits(within=self.within, rows_per_second=self.rows_per_second, stop=stop)

    @property
    def every_s(self) -> float:
        return read_duration(self.every, name="every").approximate_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeRun:
    """What one round did. A store that failed does not keep the others from their turn; it is tried again
    next time."""

    purged: dict[str, PurgeResult]
    failed: dict[str, Exception]
    not_due: tuple[str, ...]
    next_due: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreReport:
    """How one store is doing, as the purger saw it last. `state` is waiting, purging, purged, incomplete or failed."""

    store: str
    state: str
    at: datetime | None = None
    purged: int | None = None
    left: int | None = None
    elapsed_s: float | None = None
    reasons: tuple[str, ...] = ()
    next_due: datetime | None = None


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
        options = OpenOptions(clock=clock, create=False, take_over=False, registry=registry)
        self._open = open_store or partial(open, **options)
        self._close_after = close_after
        self._due: dict[str, datetime] = {}
        self._reports = {url: StoreReport(store=str(parse(url)), state="waiting") for url in config.stores}
        if open_store is None:
            for url in config.stores:
                engine_of(parse(url)).load()  # raises where it is not installed

    def run_once(self, *, stop: threading.Event | None = None) -> PurgeRun:
        """Purge every store that is due now; each is due at once the first time. Once `stop` is set the purge at
        hand ends at its next step and no other begins."""
        purged, failed, not_due = dict[str, PurgeResult](), dict[str, Exception](), list[str]()
        for url in self._config.stores:
            if stop is not None and stop.is_set():
                break
            if self._due.get(url, self._clock.now()) > self._clock.now():
                not_due.append(url)
                continue
            outcome = self._turn(url, stop)
            if isinstance(outcome, PurgeResult):
                purged[url] = outcome
            else:
                failed[url] = outcome
        next_due = min(self._due.values(), default=None)
        return PurgeRun(purged=purged, failed=failed, not_due=tuple(not_due), next_due=next_due)

    def _turn(self, url: str, stop: threading.Event | None) -> PurgeResult | Exception:
        outcome: PurgeResult | Exception
        self._reports[url] = replace(self._reports[url], state="purging")
        report = StoreReport(store=str(parse(url)), state="failed")
        try:
            outcome = result = self._purge(url, stop)
            report = replace(
                report,
                state="purged" if result.complete else "incomplete",
                purged=result.purged,
                left=result.left,
                elapsed_s=result.elapsed_s,
                reasons=result.reasons,
            )
            left = "" if result.complete else f"; not complete: {', '.join(result.reasons)}"
            log.info("store %s: %d rows purged in %.2f s%s", report.store, result.purged, result.elapsed_s, left)
        except Exception as error:
            outcome, report = error, replace(report, reasons=(str(error).partition("\n")[0],))
            # Lapse's own errors say what is wrong; of any other the trace is needed.
            trace = None if isinstance(error, LapseError | OSError) else error
            log.warning("store %s was not purged and is tried again next time: %s", report.store, error, exc_info=trace)
        pause_s = self._config.every_s * (1 - random.random() * JITTER)
        self._due[url] = self._clock.now() + timedelta(seconds=pause_s)
        self._reports[url] = replace(report, at=self._clock.now(), next_due=self._due[url])
        return outcome

    def report(self) -> tuple[StoreReport, ...]:
        """Every store, in the order of the configuration; may be called from another thread."""
        return tuple(self._reports.values())

    def run_forever(self, stop: threading.Event) -> None:
        """Rounds until `stop` is set."""
        while not stop.is_set():
            run = self.run_once(stop=stop)
            wait = (run.next_due - self._clock.now()).total_seconds() if run.next_due else None
            stop.wait(None if wait is None else max(0.0, wait))

    def _purge(self, url: str, stop: threading.Event | None) -> PurgeResult:
        try:
            store = self._open(url)
        except Exception:  # it has no metrics of its own yet
            StoreMetrics(self._registry, str(parse(url))).purge_failed()
            raise
        try:
            return store.purge(**self._config.limits(stop))
        finally:
            if self._close_after:
                store.close()
