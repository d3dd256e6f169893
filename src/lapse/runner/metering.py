"""A Listener that counts what a worker does."""

from __future__ import annotations

from threading import Lock

from lapse import metrics
from lapse.errors import Blocked
from lapse.metrics import DEFAULT_LABEL, Metrics
from lapse.model.job import Job
from lapse.model.table import TableName
from lapse.runner.events import BatchDone, Cause, NullListener, TaskDone


class Meter(NullListener):
    """Time that a task spent neither in statements nor waiting is bookkeeping: phase `other`."""

    def __init__(self, sink: Metrics) -> None:
        self._metrics = sink
        self._accounted: dict[int, float] = {}
        self._lock = Lock()

    def job_created(self, job: Job) -> None:
        self._metrics.add(metrics.JOBS_CREATED, 1)

    def job_ended(self, job: Job) -> None:
        self._metrics.add(metrics.JOBS_ENDED, 1, str(job.status))

    def table_blocked(self, table: TableName, why: Blocked) -> None:
        self._metrics.add(metrics.TABLES_BLOCKED, 1, str(why.code))

    def service_failed(self, service: str) -> None:
        self._metrics.add(metrics.SERVICE_ERRORS, 1, service)

    def batch_done(self, event: BatchDone) -> None:
        table, batch = event.label or DEFAULT_LABEL, event.batch
        deleting = min(batch.locked_seconds, event.seconds)
        self._metrics.query(table, "select", event.seconds - deleting)
        for seconds in batch.transactions:
            self._metrics.query(table, "delete", min(seconds, deleting))
        self._metrics.add(metrics.PROCESSED, batch.selected, table, "select", "ok")
        self._metrics.add(metrics.PROCESSED, batch.deleted, table, "delete", "ok")
        self._metrics.add(metrics.PROCESSED, batch.held + batch.skipped, table, "delete", "error")
        self._metrics.add(metrics.ROWS_SELECTED, batch.selected, table)
        self._metrics.add(metrics.ROWS_DELETED, batch.deleted, table)
        self._metrics.add(metrics.ROWS_HELD, batch.held, table)
        self._metrics.add(metrics.ROWS_SKIPPED, batch.skipped, table)
        self._phase(event.job, "scan", event.seconds - deleting)
        self._phase(event.job, "delete", deleting)

    def task_done(self, event: TaskDone) -> None:
        self._metrics.task(event.label or DEFAULT_LABEL, event.seconds)
        with self._lock:
            accounted = self._accounted.pop(event.job.id, 0.0)
            # Tasks of one job run side by side: what one accounts for too much, the next one makes good.
            if accounted > event.seconds:
                self._accounted[event.job.id] = accounted - event.seconds
        self._metrics.add(metrics.PHASE_TIME, event.seconds - accounted, "other")

    def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
        self._metrics.add(metrics.PAUSES, 1, str(cause))
        self._phase(job, f"wait_{cause}", seconds)
        if cause is Cause.RETRY:
            self._metrics.add(metrics.DELETE_RETRIES, 1)
            self._metrics.query(DEFAULT_LABEL, "delete", 0.0, ok=False)

    def _phase(self, job: Job, phase: str, seconds: float) -> None:
        with self._lock:
            self._accounted[job.id] = self._accounted.get(job.id, 0.0) + seconds
        self._metrics.add(metrics.PHASE_TIME, seconds, phase)
