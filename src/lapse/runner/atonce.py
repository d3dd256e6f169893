"""A small table's job, all of it at once: its rows are deleted, and the job is recorded, in one transaction.

Most tables are small, and what surrounds the one batch of such a job costs more than the batch. So it gets no task that
another worker could take over: either everything is committed, with the job as one that has ended, or nothing is.
Whatever is not as expected goes the ordinary way, from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event
from time import perf_counter

from sqlalchemy import Connection

from lapse.catalog import Catalog
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import Batch, Target
from lapse.errors import Blocked, DatabaseUnavailable, JobExists, LapseError
from lapse.model.job import Job, KeyRange, PathKind
from lapse.model.settings import Settings
from lapse.runner.batching import BatchSizer
from lapse.runner.controller import Controller
from lapse.runner.events import BatchDone, Cause, Listener, TaskDone
from lapse.runner.limiter import delete_limits, select_limits

SMALL_ROWS = 1_000
"""A table of no more rows than this; one batch of them takes a few milliseconds on any server."""

Record = Callable[[Connection, Batch, float], Job]
"""Records the job in the transaction of its batch, which began so many seconds ago. Raises JobExists where another
worker was first, or the policy was changed."""


class _MoreToDo(LapseError):
    """The batch was not all of the job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What the batch did; `job` is None where nothing had expired, and nothing was recorded."""

    batch: Batch
    seconds: float
    job: Job | None


class AtOnce:
    def __init__(
        self,
        catalog: Catalog,
        controller: Controller,
        listener: Listener,
        *,
        stop: Event,
        has_room: Callable[[], bool],
        slot: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """`has_room`: may one more batch run beside the tasks of this process? `slot` bounds statements that delete."""
        self._engine = catalog.engine
        self._controller = controller
        self._listener = listener
        self._stop = stop
        self._has_room = has_room
        self._slot = slot

    def most_rows(self, stored: StoredPolicy, current: Settings) -> int:
        """A job of this policy is done at once where its table has no more rows than this; 0 for never."""
        policy = stored.policy
        recorded_apart = (
            not self._engine.features.records_with_batches or policy.ledger_keys,
            policy.archive,
            policy.replication_origin,
        )
        paced = delete_limits(stored, current), select_limits(stored), policy.select_as_of_system_time
        if any(recorded_apart) or any(paced):
            return 0
        sizer = BatchSizer.for_policy(policy, current, self._engine.features.target_seconds)
        return min(SMALL_ROWS, sizer.ceiling)

    def run(self, target: Target, span: KeyRange, limit: int, record: Record) -> Done | None:
        """None where the job has to go the ordinary way. Raises JobExists as `record` does, and Blocked."""
        table, job, started = target.declared.table, None, perf_counter()
        if target.path.kind is PathKind.PARTITION or table.holding_references:
            return None

        def checkpoint(connection: Connection, batch: Batch) -> None:
            nonlocal job
            if not batch.done or batch.held or batch.skipped:
                raise _MoreToDo("the batch was not all of the job")
            job = record(connection, batch, perf_counter() - started)

        try:
            with self._controller.at_work(table.name):
                # Both wait for the first look at the server, which is taken while the job is planned.
                if not self._has_room() or self._controller.stop_reason(table.name) is not None:
                    return None
                started = perf_counter()
                with self._slot():
                    batch = self._engine.deleter(target, span, None).step(limit, checkpoint)
        except (JobExists, Blocked, DatabaseUnavailable):
            raise
        except LapseError:
            return None
        return Done(batch=batch, seconds=perf_counter() - started, job=job) if batch.done else None

    def tell(self, done: Done, job: Job, label: str | None) -> None:
        self._controller.count(done.batch.deleted)
        self._listener.batch_done(BatchDone(job=job, label=label, batch=done.batch, seconds=done.seconds))
        self._listener.task_done(TaskDone(job=job, label=label, seconds=done.seconds))

    def rest(self, done: Done, job: Job) -> None:
        """As a task does after each of its batches."""
        busy = done.batch.read_seconds + done.batch.busy_seconds
        pause, reason = self._controller.pause_after(done.seconds, busy, table=job.table)
        if reason is not None:
            self._listener.waiting(job, pause, reason, Cause.YIELD)
            self._stop.wait(pause)
