"""The task loop: take tokens, delete a batch, remember where, adapt, again."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from threading import Event, Semaphore
from time import perf_counter

from sqlalchemy import Connection

from lapse.catalog import Catalog, ledger_keys
from lapse.catalog import tasks as stored_tasks
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.tasks import Progress
from lapse.clock import starved_seconds
from lapse.engines.base import Batch, Deleter, Stretch, Target
from lapse.errors import Fenced, Interrupted, LapseError, Locked, Retryable, RowUndeletable, TooSlow
from lapse.model.job import Counts, Job, PathKind, Task
from lapse.model.ledger_keys import Noted
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner.batching import BatchSizer, served_seconds
from lapse.runner.controller import Controller
from lapse.runner.events import BatchDone, Cause, Listener, LockWait, TaskDone
from lapse.runner.exports import Exports
from lapse.runner.jobs import JobKeeper
from lapse.runner.limiter import Limiter, cap, delete_limits, select_limits
from lapse.runner.lockwatch import LockWatch
from lapse.runner.retry import retried

GATE_SECONDS = 1.0
"""How often a closed gate is looked at again."""
SAVE_SECONDS = 1.0
"""A scan that finds nothing saves its cursor this often."""
SHOWN_SECONDS = 0.5
"""A wait of at least this long is written down before it begins, so that the status shows why."""
UNLOCKED_SECONDS = 0.05
"""Rows that were locked are tried once more so much later: most transactions, and other workers' batches, have ended
then."""
MAX_RETRIES = 20
"""Retryable errors in a row before the task is given back."""
MAX_BACKOFF_SECONDS = 5.0
ERRORS_MIN_ROWS = 10_000
ERRORS_SHARE = 0.4
"""More than this share of errors among at least that many rows fails the job."""


class Outcome(StrEnum):
    FINISHED = "finished"
    RESIGNED = "resigned"
    FENCED = "fenced"


class TooManyErrors(LapseError):
    pass


class TaskRunner:
    """Runs one claimed task in the calling thread; other threads may `stop` it or hand it new parameters."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        keeper: JobKeeper,
        task: Task,
        job: Job,
        stored: StoredPolicy,
        settings: Settings,
        target: Target,
        slots: Semaphore,
        controller: Controller,
        locks: LockWatch,
        listener: Listener,
        exports: Exports,
        learned_size: int | None = None,
    ) -> None:
        self._controller = controller
        self._exports = exports
        self._locks = locks
        self.urgent = False
        self.shown_gate: str | None = None
        """What the status says about the gate that this task waits at."""
        self.task = task
        self.job = job
        """As it was when the task was claimed; once the task is done, as it was then."""
        self.has_ended_job = False
        """Was it the last of its job? The caller of `run` announces that end."""
        self._keeper = keeper
        self._catalog = catalog
        self._engine = catalog.engine
        self._listener = listener
        self._slots = slots
        self._target = target
        self._armed = target.armed
        self._limiter = Limiter(catalog)
        self._stop = Event()
        self._deleter: Deleter | None = None
        self._saved_at = perf_counter()
        self._shown_reason: str | None = None
        """What the catalog says that this task waits for."""
        self._retries = 0
        self._sweep_deleted = 0
        self._before_isolating: int | None = None
        self._learned_size = learned_size
        self.adopt(stored, settings)

    @property
    def batch_size(self) -> int:
        return self._before_isolating or self._sizer.size

    def adopt(self, stored: StoredPolicy, settings: Settings) -> None:
        """Work with these parameters from the next batch on."""
        self.stored = stored
        self._deletes = delete_limits(stored, settings)
        self._selects = select_limits(stored)
        target_seconds = self._engine.features.target_seconds
        self._sizer = BatchSizer.for_policy(stored.policy, settings, target_seconds, self._learned_size)

    def stop(self) -> None:
        """Give the task back as soon as possible, in the middle of a statement if need be."""
        self._stop.set()
        deleter = self._deleter
        if deleter is not None:
            deleter.interrupt()

    def run(self) -> Outcome:
        started = perf_counter()
        try:
            return self._run()
        finally:
            seconds = perf_counter() - started
            self._listener.task_done(TaskDone(job=self.job, label=self._label, seconds=seconds))

    def _run(self) -> Outcome:
        self._clocked_at = perf_counter()
        try:
            self._progress = stored_tasks.NOTHING_DONE if self.task.is_new else self._committed()
            self._deleter = self._engine.deleter(self._target, self.task.range, self._progress.cursor)
            while not self._stop.is_set():
                if self._one_batch(self._deleter):
                    self._spend()
                    self.job, self.has_ended_job = self._keeper.finish(self.job, self.task, self._progress)
                    return Outcome.FINISHED
            self._resign()
        except Fenced:
            return Outcome.FENCED
        except LapseError as error:
            self._give_back(error)
            raise
        return Outcome.RESIGNED

    def _one_batch(self, deleter: Deleter) -> bool:
        """One, or as many as the server makes in a stretch; True when the task is done."""
        closed = self._controller.stop_reason(self.job.table) or self._exports.stop_reason(self.stored)
        if closed is not None:
            self._wait(GATE_SECONDS, closed, Cause.GATE)
            return False
        self._sizer.target_seconds = self._controller.batch_seconds()
        limit = cap(self._sizer.size, self._deletes)
        self._limiter.acquire(self._deletes, limit, self._wait)
        if self._stop.is_set():
            self._limiter.refund(self._deletes, limit)
            return False
        # Where all of the database is locked, it is for the whole time, this process's own included.
        shares = self._engine.features.row_locks
        started, starved = perf_counter(), starved_seconds() if shares else 0.0
        batch: Batch | None = None
        try:
            with self._slots:
                batch = self._stretch(deleter, limit)
                if batch is None:
                    batch = deleter.step(limit, self._checkpoint)
        except (RowUndeletable, TooSlow) as error:
            batch = self._isolate(deleter, limit, error)
        except Retryable as error:
            self._back_off(error, perf_counter() - started)
        except Interrupted:
            if not self._stop.is_set():
                raise
            self._progress = self._committed()
        self._limiter.refund(self._deletes, limit - (batch.deleted if batch else 0))
        if batch is None:
            return False
        seconds, busy = perf_counter() - started, batch.busy_seconds
        if batch.rested_seconds is None:
            if shares:
                busy = served_seconds(busy, seconds, starved_seconds() - starved)
            self._sizer.record(batch.selected, busy)
        elif batch.size is not None:
            self._sizer.adopt(batch.size, batch.row_seconds)
        return self._after(batch, seconds - (batch.rested_seconds or 0.0), deleter)

    def _stretch(self, deleter: Deleter, limit: int) -> Batch | None:
        """As many batches as the server makes by itself for a while; None where they go one by one."""
        if not deleter.stretches or self._deletes or self._selects or self._before_isolating or self._retries:
            return None
        share, reason = self._controller.share(urgent=self.urgent, table=self.job.table)
        saves, values = stored_tasks.saving(self.task, self._progress, self._engine.catalog_schema)
        within = Stretch(
            seconds=self._controller.pause(),
            share=share,
            batch_seconds=self._sizer.target_seconds,
            least=self._sizer.floor,
            most=self._sizer.ceiling if self._sizer.adaptive else limit,
            saves=saves,
            values=values,
        )
        started = perf_counter()
        try:
            batch = deleter.stretch(limit, within)
        except Retryable:
            seconds = perf_counter() - started
            batch = self._done_unseen(worked=seconds * share, rested=seconds * (1 - share))
            if batch is None:
                return None
            deleter.go_on(batch.cursor)
        if batch is not None and batch.rested_seconds:
            self._listener.waiting(self.job, batch.rested_seconds, reason, Cause.YIELD)
            self._waited(batch.rested_seconds, reason, Cause.YIELD)
        return batch

    def _done_unseen(self, *, worked: float, rested: float) -> Batch | None:
        """What a stretch did before it ended early, with its times as they probably were. Where it did nothing this
        task may be further than what it saved last."""
        with self._catalog.reading() as connection:
            now = stored_tasks.progress_of(connection, self.task.id)
        before = self._progress.counts
        rows, count = now.counts.deleted - before.deleted, now.counts.batches - before.batches
        if not count:
            return None
        return Batch(
            examined=rows,
            selected=rows,
            deleted=rows,
            cursor=now.cursor,
            locked_seconds=worked,
            busy_seconds=worked,
            holds=(worked / count,) * count,
            rested_seconds=rested,
        )

    def _after(self, batch: Batch, seconds: float, deleter: Deleter) -> bool:
        self._retries = 0
        self._locks.over(self.job.table)
        self._locks.over(None)
        self._progress = replace(self._advanced(batch), pause_reason=None)
        if batch.armed is not None and batch.armed != self._armed:
            self._keeper.renew_armed(self.stored, batch.armed, known=self._armed)
            self._armed = batch.armed
        self._spend(worked=seconds, locked=batch.locked_seconds)
        if batch.deleted and self._before_isolating is not None:
            self._sizer.size, self._before_isolating = self._before_isolating, None
        self._sweep_deleted += batch.deleted
        self._listener.batch_done(BatchDone(job=self.job, label=self._label, batch=batch, seconds=seconds))
        self._controller.count(batch.deleted)
        self._exports.count(self.stored, batch.deleted)
        self._give_up_on_errors()
        self._limiter.pay(self._selects, batch.examined, self._wait)
        if batch.done and not self._sweep_again(deleter):
            return True
        if batch.rested_seconds is None:
            self._yield(seconds, batch.read_seconds + batch.busy_seconds)
        if perf_counter() - self._saved_at > SAVE_SECONDS:
            self._write(stored_tasks.save_progress)
        return False

    def _yield(self, seconds: float, busy: float) -> None:
        """Rest in proportion to the batch, as the controller says."""
        pause, reason = self._controller.pause_after(seconds, busy, urgent=self.urgent, table=self.job.table)
        if reason is not None:
            self._wait(pause, reason, Cause.YIELD)

    def _sweep_again(self, deleter: Deleter) -> bool:
        """Skipped rows get a second chance; held ones only where deleting may have freed them."""
        counts = self._progress.counts
        table = self._target.declared.table
        refers_to_itself = any(reference.table == table.name for reference in table.holding_references)
        retry_skipped = counts.skipped and self._progress.sweep == 0
        retry_held = counts.held and self._sweep_deleted and refers_to_itself
        if not (retry_skipped or retry_held):
            return False
        if retry_skipped:
            self._rest(UNLOCKED_SECONDS, "rows are locked by other sessions", Cause.RETRY)
        deleter.restart()
        fresh = replace(counts, held=0, skipped=0)
        self._progress = replace(self._progress, cursor=None, sweep=self._progress.sweep + 1, counts=fresh)
        self._sweep_deleted = 0
        return True

    def _checkpoint(self, connection: Connection, batch: Batch) -> None:
        """In the transaction of the batch: counts and cursor commit with the rows, and a lost lease rolls back."""
        # A table that is dropped cannot be looked at again, so the task ends with it.
        ended = batch.done and self._target.path.kind is PathKind.PARTITION
        save = stored_tasks.finish_task if ended else stored_tasks.save_progress
        bound = self._catalog.bind(connection)
        save(bound, self.task, self._advanced(batch))
        if batch.noted is not None and batch.deleted:
            self._note_keys(bound, batch.noted, batch.deleted)
        self._saved_at = perf_counter()
        self._shown_reason = self._progress.pause_reason

    def _note_keys(self, connection: Connection, noted: Noted, deleted: int) -> None:
        if noted.rows != deleted or not noted.is_whole:
            raise Retryable(f"{deleted} rows were deleted, and the keys of {noted.rows} of them are known: undone")
        now = self._engine.now(connection)
        ledger_keys.note(connection, job=self.job.id, table=self.stored.table, noted=noted, now=now)

    def _advanced(self, batch: Batch) -> Progress:
        step = Counts(
            selected=batch.selected,
            deleted=batch.deleted,
            held=batch.held,
            skipped=batch.skipped,
            batches=len(batch.transactions),
        )
        return replace(self._progress, cursor=batch.cursor, counts=self._progress.counts + step)

    def _isolate(self, deleter: Deleter, limit: int, error: LapseError) -> Batch | None:
        """Halve until the row that cannot go, or not in time, stands alone, then count it as held and go past it."""
        if limit > 1:
            if self._before_isolating is None:
                self._before_isolating = self._sizer.size
            self._sizer.size = max(1, limit // 2)
            return None
        counted = replace(self._progress.counts, errors=self._progress.counts.errors + 1)
        self._progress = replace(self._progress, counts=counted, last_error=error.message)
        return deleter.skip_one(self._checkpoint)

    def _back_off(self, error: Retryable, tried: float) -> None:
        self._retries += 1
        self._sizer.halve()
        if self._retries > MAX_RETRIES:
            raise error
        most = min(MAX_BACKOFF_SECONDS, 0.01 * 2**self._retries)
        seconds = random.uniform(most / 2, most)
        if isinstance(error, Locked):
            table = None if error.everything else self.job.table
            self._wait_for_lock(table, self._locks.met(table, waited=tried), seconds)
        else:
            self._wait(seconds, error.message, Cause.RETRY)

    def _wait_for_lock(self, table: TableName | None, wait: LockWait, seconds: float) -> None:
        """A wait that lasts is shown by the status, and told. Where everything is locked nothing can be written."""
        reason = str(wait)
        if self._locks.is_long(table):
            if table is not None:
                self._show(reason)
            self._locks.tell(table)
        self._rest(seconds, reason, Cause.RETRY)

    def _give_up_on_errors(self) -> None:
        counts = self._progress.counts
        if counts.selected >= ERRORS_MIN_ROWS and counts.errors > ERRORS_SHARE * counts.selected:
            raise TooManyErrors(
                f"{counts.errors} of {counts.selected} rows could not be deleted: {self._progress.last_error}"
            )

    @property
    def _label(self) -> str | None:
        return str(self.stored.table) if self.stored.policy.label_metrics else None

    def _wait(self, seconds: float, reason: str, cause: Cause = Cause.RATE_LIMIT) -> None:
        if seconds >= SHOWN_SECONDS:
            self._show(reason)
        self._rest(seconds, reason, cause)

    def _show(self, reason: str) -> None:
        if self._shown_reason != reason:
            self._progress = replace(self._progress, pause_reason=reason)
            self._write(stored_tasks.save_progress)

    def _rest(self, seconds: float, reason: str, cause: Cause) -> None:
        self._listener.waiting(self.job, seconds, reason, cause)
        started = perf_counter()
        self._stop.wait(seconds)
        self._waited(perf_counter() - started, reason, cause)

    def _waited(self, seconds: float, reason: str, cause: Cause) -> None:
        waits = {**self._progress.waits, str(cause): self._progress.waits.get(cause, 0.0) + seconds}
        self._progress = replace(self._progress, pause_reason=reason, waits=waits)
        self._spend(waited=seconds)

    def _spend(self, *, worked: float = 0.0, locked: float = 0.0, waited: float = 0.0) -> None:
        before = self._progress
        now = perf_counter()
        self._progress = replace(
            before,
            worked_seconds=before.worked_seconds + worked,
            locked_seconds=before.locked_seconds + locked,
            waited_seconds=before.waited_seconds + waited,
            lasted_seconds=before.lasted_seconds + now - self._clocked_at,
        )
        self._clocked_at = now

    def _resign(self) -> None:
        with suppress(Fenced):
            self._write(stored_tasks.resign_task)

    @retried
    def _give_back(self, error: LapseError) -> None:
        # A server that has not noticed that its client is gone may save more progress until it is locked.
        with suppress(Fenced), self._catalog.writing(durable=False) as connection:
            found = stored_tasks.progress_of(connection, self.task.id, locked=True)
            self._progress = replace(found, last_error=error.message)
            self._spend()
            stored_tasks.resign_task(connection, self.task, self._progress)

    def _committed(self) -> Progress:
        """What counts, at the start and after a failure: a commit whose answer was lost may have happened."""
        with self._catalog.reading() as connection:
            found = stored_tasks.progress_of(connection, self.task.id)
        self._shown_reason = found.pause_reason
        return found

    @retried
    def _write(self, action: Callable[[Connection, Task, Progress], None]) -> None:
        self._spend()
        with self._catalog.writing(durable=False) as connection:
            action(connection, self.task, self._progress)
        self._saved_at = perf_counter()
        self._shown_reason = self._progress.pause_reason
