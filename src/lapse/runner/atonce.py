"""A small table's job, begun and done at once: its first batch and the job itself are one transaction.

Most tables are small, and what surrounds the one batch of such a job costs more than the batch. So a job whose first
batch is all of it gets no task that another worker could take over: either everything is committed, with the job as one
that has ended, or nothing is. Where the batch was not all, the job is created with a task that goes on from there.
Whatever is not as expected goes the ordinary way, from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from threading import Event
from time import perf_counter

from sqlalchemy import Connection

from lapse.catalog import Catalog
from lapse.catalog.new_jobs import Created
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
BATCH_ROWS = 7_500
"""Of a larger table, how many rows its first batch may take."""
TABLE_ROWS = 8 * BATCH_ROWS
"""In a table of no more rows than this, a batch is likely to be all of the job."""
BATCH_SECONDS = 0.2
"""A batch that may be large and takes longer than this is given up: deleting is dear in that table."""

Record = Callable[[Connection, Batch, float], Created]
"""Records the job in the transaction of its batch, which began so many seconds ago: as one that has ended, or with a
task that goes on. Raises JobExists where another worker was first, or the policy was changed."""


class _MoreToDo(LapseError):
    """The batch was not all of the job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What the batch did; `made` is None where nothing had expired, and nothing was recorded."""

    batch: Batch
    seconds: float
    made: Created | None


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
        learned_sizes: Mapping[int, int],
    ) -> None:
        """`has_room`: may one more batch run beside the tasks of this process? `slot` bounds statements that delete.
        `learned_sizes` are those that batches of a physical table have come to."""
        self._engine = catalog.engine
        self._controller = controller
        self._listener = listener
        self._stop = stop
        self._has_room = has_room
        self._slot = slot
        self._learned_sizes = learned_sizes

    @staticmethod
    def may_go_on(rows: int) -> bool:
        """May a job of a table of about so many rows go on after its first batch?"""
        return rows > SMALL_ROWS

    def limit_for(self, stored: StoredPolicy, current: Settings, target: Target, rows: int, table_id: int) -> int:
        """How many rows a job may delete in the transaction that creates it, in a table of about so many `rows`; 0 for
        none."""
        policy = stored.policy
        recorded_apart = (
            not self._engine.features.records_with_batches or policy.ledger_keys,
            policy.archive,
            policy.replication_origin,
        )
        paced = delete_limits(stored, current), select_limits(stored), policy.select_as_of_system_time
        if any(recorded_apart) or any(paced):
            return 0
        ceiling = BatchSizer.for_policy(policy, current, self._engine.features.target_seconds).ceiling
        if not self.may_go_on(rows):
            # One batch has to be all of it.
            return min(SMALL_ROWS, ceiling) if rows <= ceiling else 0
        # A cascade may delete any number of rows with one.
        if rows > TABLE_ROWS or target.declared.table.referenced_by:
            return 0
        most = min(BATCH_ROWS, ceiling, self._learned_sizes.get(table_id, BATCH_ROWS))
        return most if most > SMALL_ROWS else 0

    def run(self, target: Target, span: KeyRange, limit: int, record: Record) -> Done | None:
        """None where the job has to go the ordinary way. Raises JobExists as `record` does, and Blocked.

        Up to SMALL_ROWS are deleted only where that is all; more only where the server has nothing else to do, and a
        row that takes long cannot hold up the others.
        """
        table, made, started = target.declared.table, None, perf_counter()
        if target.path.kind is PathKind.PARTITION or table.holding_references:
            return None

        def checkpoint(connection: Connection, batch: Batch) -> None:
            nonlocal made
            if batch.held or batch.skipped or (limit <= SMALL_ROWS and not batch.done):
                raise _MoreToDo("the batch was not all of the job")
            made = record(connection, batch, perf_counter() - started)

        try:
            with self._controller.at_work(table.name):
                # Both wait for the first look at the server, which is taken while the job is planned.
                if not self._has_room() or self._controller.stop_reason(table.name) is not None:
                    return None
                is_large = limit > SMALL_ROWS
                if is_large and self._controller.yields():
                    return None
                if is_large:
                    target = replace(target, statement_seconds=min(target.statement_seconds, BATCH_SECONDS))
                started = perf_counter()
                deleter = self._engine.deleter(target, span, None)
                if is_large and not deleter.is_steady:
                    return None
                with self._slot():
                    batch = deleter.step(limit, checkpoint)
        except (JobExists, Blocked, DatabaseUnavailable):
            raise
        except LapseError:
            return None
        return Done(batch=batch, seconds=perf_counter() - started, made=made) if made or batch.done else None

    def tell(self, done: Done, job: Job, label: str | None) -> None:
        self._controller.count(done.batch.deleted)
        self._listener.batch_done(BatchDone(job=job, label=label, batch=done.batch, seconds=done.seconds))
        if not job.status.is_active:
            self._listener.task_done(TaskDone(job=job, label=label, seconds=done.seconds))

    def rest(self, done: Done, job: Job) -> None:
        """As a task does after each of its batches."""
        busy = done.batch.read_seconds + done.batch.busy_seconds
        pause, reason = self._controller.pause_after(done.seconds, busy, table=job.table)
        if reason is not None:
            self._listener.waiting(job, pause, reason, Cause.YIELD)
            self._stop.wait(pause)
