"""Database metrics: the state that all workers share, read from the catalog at every scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily

from lapse import metrics
from lapse._version import __version__
from lapse.app.health import PolicyHealth
from lapse.app.observation import Observation
from lapse.app.observer import Observer
from lapse.errors import LapseError
from lapse.metrics import DEFAULT_LABEL, Definition, family
from lapse.model.job import ACTIVE_STATUSES, JobStatus, TaskStatus
from lapse.runner.promise import Health
from lapse.runner.verdict import PauseCode, judge

DELAYS = (("1h", 1), ("2h", 2), ("6h", 6), ("12h", 12), ("24h", 24), ("72h", 72), ("168h", 168))
MORE = "more"


class CatalogCollector:
    """Prometheus's collector protocol. A database that is unreachable is a value, not a failed scrape."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def describe(self) -> list[GaugeMetricFamily]:
        """Empty, so that registering reads nothing."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield _gauge(metrics.BUILD_INFO, [((__version__, self._observer.engine.name), 1)])
        try:
            with self._observer.observe(may_be_empty=True) as seen:
                families = [*([] if seen.is_empty else _read(seen)), *_undeclared(seen)]
        except LapseError:
            yield _gauge(metrics.DATABASE_UP, [((), 0)])
            return
        yield _gauge(metrics.DATABASE_UP, [((), 1)])
        yield from families


def _read(seen: Observation) -> Iterator[GaugeMetricFamily]:
    before = datetime.now(UTC)
    now = seen.now
    middle = before + (datetime.now(UTC) - before) / 2
    yield _gauge(metrics.CLOCK_OFFSET, [((), (now - middle).total_seconds())])
    yield _gauge(metrics.CLOCK_HELD, [((), float(seen.settings.clock_hold is not None))])
    worst: dict[str, float] = {}
    for reading in seen.gauges:
        if reading.value is not None:
            worst[reading.name] = max(reading.pressure, worst.get(reading.name, 0.0))
    yield _gauge(metrics.PRESSURE, [((name,), pressure) for name, pressure in worst.items()])
    yield from _fleet(seen.workers_alive)
    yield from _jobs(seen)
    yield from _tables(seen.healths)
    yield from _per_table(seen)


def _fleet(workers_alive: dict[str, bool]) -> Iterator[GaugeMetricFamily]:
    alive = sum(workers_alive.values())
    yield _gauge(metrics.WORKERS, [(("alive",), alive), (("stale",), len(workers_alive) - alive)])


def _jobs(seen: Observation) -> Iterator[GaugeMetricFamily]:
    running, now = seen.progress, seen.now
    statuses = Counter(progress.job.status for progress in running)
    yield _gauge(metrics.JOB_STATUS, [((str(status),), statuses[status]) for status in ACTIVE_STATUSES])
    paused = [progress.job for progress in running if progress.job.status is JobStatus.PAUSED]
    stored = {each.id: each for each in seen.policies}
    verdicts = (judge(job, stored.get(job.policy_id), seen.settings, now) for job in paused)
    codes = Counter(verdict.pause or PauseCode.OTHER for verdict in verdicts)
    yield _gauge(metrics.PAUSED_JOBS, [((str(code),), codes[code]) for code in PauseCode])
    ages = [(now - progress.job.created_at).total_seconds() for progress in running]
    yield _gauge(metrics.OLDEST_JOB, [((), max(ages, default=0.0))])
    tasks = Counter(state.task.status for progress in running for state in progress.tasks)
    yield _gauge(metrics.TASK_STATUS, [((str(status),), tasks[status]) for status in TaskStatus])


def _tables(healths: list[PolicyHealth]) -> Iterator[GaugeMetricFamily]:
    counts = Counter(each.health for each in healths)
    yield _gauge(metrics.TABLES, [((str(health),), counts[health]) for health in Health])
    codes = Counter(each.blocked for each in healths if each.health is Health.BLOCKED)
    yield _gauge(metrics.BLOCKED, [((str(code),), count) for code, count in codes.items()])
    yield _gauge(metrics.FAILING, [((), sum(each.is_failing for each in healths))])
    delays = Counter(_delay(each) for each in healths)
    yield _gauge(metrics.WATERMARK_DELAY, [((name,), delays[name]) for name in (*dict(DELAYS), MORE)])


def _undeclared(seen: Observation) -> Iterator[GaugeMetricFamily]:
    """Nothing where the database has none: most have no TTL of their own."""
    found = Counter("not_followed" if each.untrusted else "other_zone" for each in seen.undeclared)
    if found:
        yield _gauge(metrics.NATIVE_TABLES, [((state,), count) for state, count in found.items()])


def _delay(health: PolicyHealth) -> str:
    hours = health.lateness.total_seconds() / 3600
    return next((name for name, most in DELAYS if hours <= most), MORE)


def _per_table(seen: Observation) -> Iterator[GaugeMetricFamily]:
    healths, running = seen.healths, seen.progress
    labels = {each.stored.id: label_of(each) for each in healths}

    def gauge(
        definition: Definition, values: Iterable[tuple[int, float | None]], merge: Callable[[Iterable[float]], float]
    ) -> GaugeMetricFamily:
        """One value a label; tables that share the default one are merged."""
        found: dict[str, list[float]] = {}
        for policy_id, value in values:
            if value is not None and policy_id in labels:
                found.setdefault(labels[policy_id], []).append(value)
        return _gauge(definition, [((label,), merge(each)) for label, each in found.items()])

    yield gauge(metrics.LATENESS, ((h.stored.id, h.lateness.total_seconds()) for h in healths), max)
    yield gauge(metrics.PROMISE_USED, ((h.stored.id, h.promise_used) for h in healths), max)
    yield gauge(metrics.HELD_ROWS, ((h.stored.id, h.held) for h in healths), sum)
    yield gauge(metrics.LOCKED_ROWS, ((h.stored.id, h.locked) for h in healths), sum)
    yield gauge(metrics.TOTAL_ROWS, ((h.stored.id, h.counted.rows if h.counted else None) for h in healths), sum)
    yield gauge(metrics.EXPIRED_ROWS, ((h.stored.id, h.counted.expired if h.counted else None) for h in healths), sum)
    yield gauge(metrics.LAST_SUCCESS, ((h.stored.id, _timestamp(h.last_success_at)) for h in healths), min)
    yield gauge(metrics.NEXT_RUN, ((h.stored.id, _timestamp(h.next_run_at)) for h in healths), min)
    etas = ((p.job.policy_id, p.eta.total_seconds() if p.eta is not None else None) for p in running)
    yield gauge(metrics.ETA, etas, max)
    active = ((p.job.policy_id, sum(s.task.status is TaskStatus.RUNNING for s in p.tasks)) for p in running)
    yield gauge(metrics.ACTIVE_TASKS, [*((h.stored.id, 0) for h in healths), *active], sum)
    yield gauge(metrics.INSERT_ROWS, seen.inserted.items(), sum)
    exports = seen.exports.items()
    yield gauge(metrics.ARCHIVED_ROWS, ((key, kept.rows) for key, (kept, _) in exports), sum)
    yield gauge(metrics.ARCHIVED_BYTES, ((key, kept.bytes) for key, (kept, _) in exports), sum)
    yield gauge(metrics.EXPORT_WAITING, ((key, state.waiting) for key, (_, state) in exports), sum)
    yield gauge(metrics.EXPORT_FAILING, ((key, float(state.problem is not None)) for key, (_, state) in exports), max)
    yield gauge(metrics.LAST_EXPORT, ((key, _timestamp(state.exported_at)) for key, (_, state) in exports), min)


def label_of(health: PolicyHealth) -> str:
    return str(health.stored.table) if health.stored.policy.label_metrics else DEFAULT_LABEL


def _timestamp(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _gauge(definition: Definition, samples: Iterable[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily:
    result = family(definition)
    for labels, value in samples:
        result.add_metric(labels, value)
    return result
