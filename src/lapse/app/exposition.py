"""What Prometheus is told of many databases: the metrics of each, with a label that says which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock

from prometheus_client import Metric

from lapse import metrics
from lapse.app.databases import Served
from lapse.metrics import family

LABEL = "database"
ASKERS = 8
"""Databases that are asked at the same time."""
SCRAPE_SECONDS = 5.0
"""A database that takes longer to answer is told as unreachable: Prometheus waits for ten seconds."""


class ManyCollector:
    """Prometheus's collector protocol, over every database that a worker serves."""

    def __init__(self, served: Callable[[], Sequence[Served]]) -> None:
        self._served = served
        self._pool = ThreadPoolExecutor(ASKERS, thread_name_prefix="lapse-scrape")
        self._asked: dict[str, Future[list[Metric]]] = {}
        self._lock = Lock()

    def describe(self) -> list[Metric]:
        """Empty, so that registering reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        answers = {each.name: self._ask(each) for each in self._served()}
        wait([answer for answer in answers.values() if answer is not None], SCRAPE_SECONDS)
        merged: dict[str, Metric] = {}
        for name, answer in answers.items():
            for found in _down() if answer is None or not answer.done() else answer.result():
                whole = merged.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    labels = {LABEL: name, **sample.labels}
                    whole.add_sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)
        yield from merged.values()

    def _ask(self, served: Served) -> Future[list[Metric]] | None:
        """None for one that is known to be unreachable, or has not answered the last question yet."""
        with self._lock:
            last = self._asked.get(served.name)
            if served.member.worker.is_unreachable or (last is not None and not last.done()):
                return None
            self._asked[served.name] = self._pool.submit(lambda: list(served.metrics.registry.collect()))
            return self._asked[served.name]


def _down() -> Iterable[Metric]:
    found = family(metrics.DATABASE_UP)
    found.add_metric((), 0)
    return [found]
