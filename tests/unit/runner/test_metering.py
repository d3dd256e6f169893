"""What a worker does, as counted for its metrics."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lapse import metrics
from lapse.engines.base import Batch
from lapse.errors import Blocked
from lapse.metrics import Definition, Metrics
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, Cause, TaskDone
from lapse.runner.metering import Meter
from tests.unit.runner.build import EVENTS, job


class Reading:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def of(self, definition: Definition) -> dict[tuple[str, ...], float]:
        """By the values of its labels."""
        samples = (sample for metric in self._registry.collect() for sample in metric.samples)
        name = definition.name.removesuffix("_total")
        found = [sample for sample in samples if sample.name == f"{name}_total"]
        return {tuple(sample.labels[label] for label in definition.labels): sample.value for sample in found}

    def phases(self) -> dict[str, float]:
        """Seconds of each phase that took any."""
        return {phase: round(value, 6) for (phase,), value in self.of(metrics.PHASE_TIME).items() if round(value, 6)}


@pytest.fixture
def sink() -> tuple[Meter, Reading]:
    registry = CollectorRegistry()
    return Meter(Metrics(registry)), Reading(registry)


def batch(meter: Meter, seconds: float, label: str | None = None, **fields: Any) -> None:
    meter.batch_done(BatchDone(job=job(), label=label, batch=Batch(cursor="1", **fields), seconds=seconds))


def test_a_batch_is_time_to_find_rows_and_time_to_delete_them(sink: tuple[Meter, Reading]) -> None:
    meter, read = sink
    batch(meter, 0.5, selected=10, deleted=7, held=2, skipped=1, locked_seconds=0.2)
    assert read.phases() == {"scan": 0.3, "delete": 0.2}


def test_time_under_locks_is_never_more_than_the_batch_took(sink: tuple[Meter, Reading]) -> None:
    meter, read = sink
    batch(meter, 0.5, selected=1, deleted=1, locked_seconds=3.0)
    assert read.phases() == {"delete": 0.5}


def test_what_a_task_spent_on_neither_is_bookkeeping(sink: tuple[Meter, Reading]) -> None:
    meter, read = sink
    batch(meter, 1.0, selected=1, deleted=1, locked_seconds=0.5)
    meter.waiting(job(), 2.0, "rate limit", Cause.RATE_LIMIT)
    meter.task_done(TaskDone(job=job(), label=None, seconds=4.0))
    assert read.phases() == {"scan": 0.5, "delete": 0.5, "wait_rate_limit": 2.0, "other": 1.0}


def test_tasks_side_by_side_add_up(sink: tuple[Meter, Reading]) -> None:
    """Two tasks of a job, each of three seconds, of which the first to end has been told of four."""
    meter, read = sink
    batch(meter, 4.0)
    meter.task_done(TaskDone(job=job(), label=None, seconds=3.0))
    meter.task_done(TaskDone(job=job(), label=None, seconds=3.0))
    assert sum(read.phases().values()) == 6.0


def test_a_retry_is_a_failed_statement(sink: tuple[Meter, Reading]) -> None:
    meter, read = sink
    meter.waiting(job(), 0.1, "deadlock", Cause.RETRY)
    meter.waiting(job(), 0.1, "gate", Cause.GATE)
    assert read.of(metrics.QUERIES) == {(metrics.DEFAULT_LABEL, "delete", "error"): 1}
    assert read.of(metrics.DELETE_RETRIES) == {(): 1}
    assert read.of(metrics.PAUSES) == {("retry",): 1, ("gate",): 1}


def test_rows_are_counted_under_the_label_of_their_policy(sink: tuple[Meter, Reading]) -> None:
    meter, read = sink
    batch(meter, 0.1, label="events", selected=10, deleted=7, held=2, skipped=1)
    batch(meter, 0.1, selected=1, deleted=1)
    assert read.of(metrics.ROWS_DELETED) == {("events",): 7, (metrics.DEFAULT_LABEL,): 1}
    assert read.of(metrics.ROWS_HELD) == {("events",): 2}
    assert read.of(metrics.ROWS_SKIPPED) == {("events",): 1}
    assert read.of(metrics.PROCESSED)["events", "delete", "error"] == 3


def test_events_are_counted_by_their_words(sink: tuple[Meter, Reading]) -> None:
    meter, read = sink
    meter.job_created(job())
    meter.job_ended(job(status=JobStatus.FAILED))
    meter.table_blocked(EVENTS, Blocked(BlockCode.TABLE_GONE, "gone", hint="…"))
    meter.service_failed("scheduler")
    assert read.of(metrics.JOBS_CREATED) == {(): 1}
    assert read.of(metrics.JOBS_ENDED) == {("failed",): 1}
    assert read.of(metrics.TABLES_BLOCKED) == {("table_gone",): 1}
    assert read.of(metrics.SERVICE_ERRORS) == {("scheduler",): 1}
