"""A worker: schedules, claims tasks and runs them, for a while or for ever, alone or among others."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Condition, Event, Lock, Semaphore, Thread
from time import monotonic
from typing import TypeVar

from sqlalchemy import Connection

from lapse.catalog import Catalog, ledger_keys, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import StoredPolicy
from lapse.errors import Blocked, CatalogTooNew, DatabaseUnavailable, Drift, Fenced, LapseError, Locked
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus, Task
from lapse.model.ledger_keys import Secret
from lapse.model.settings import AUTO, Settings
from lapse.model.table import TableName
from lapse.runner import ledger
from lapse.runner.atonce import AtOnce
from lapse.runner.comments import CommentProblem
from lapse.runner.controller import Controller
from lapse.runner.events import Listener, NullListener
from lapse.runner.exports import Export, Exports
from lapse.runner.jobs import JobKeeper, stale_before
from lapse.runner.lockwatch import LockWatch
from lapse.runner.outage import Outage
from lapse.runner.policy_manager import fingerprint
from lapse.runner.promise import IN_DANGER
from lapse.runner.retry import retried
from lapse.runner.scheduler import Scheduler, Skip, Tick
from lapse.runner.service import REQUESTS, Service
from lapse.runner.statistics import RowCounter
from lapse.runner.supervisor import Supervisor
from lapse.runner.task import Outcome, TaskRunner, TooManyErrors

TICK_SECONDS = 1.0
CLOSEST_SECONDS = 0.1
"""Between two looks where one table falls due after the other."""
IDLE_SECONDS = 0.2
HANDOVER_SECONDS = 0.05
"""How long a job that is about to be created waits for a thread to run it at once."""
RECLAIM_SECONDS = 10.0
"""Time given to returning space after a run."""
RECLAIM_TICK_SECONDS = 0.1
"""Time given to it in each round of a worker that keeps running."""
MAX_BACKOFF_SECONDS = 30.0
LOCKED_SECONDS = 60.0
"""How long a run waits for a database that another process has locked."""
SETTINGS_SECONDS = 0.5
VERSION_SECONDS = 10.0
"""How often a worker that is not idle asks whether the catalog is still its own; a newer version of it is told by the
pulse."""

R = TypeVar("R")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """`jobs` as they stand at the end of the run; `skipped` tables got none.

    `proposals` are policies in comments that are not obeyed until a person accepts them.
    """

    jobs: tuple[Job, ...]
    skipped: tuple[Skip, ...]
    reclaimed_bytes: int = 0
    proposals: tuple[CommentProblem, ...] = ()
    exports: tuple[Export, ...] = ()

    @property
    def deleted(self) -> int:
        return sum(job.counts.deleted for job in self.jobs)

    @property
    def complete(self) -> bool:
        ended = all(job.status is JobStatus.FINISHED for job in self.jobs)
        return ended and not self.skipped and not any(each.problem or each.waiting for each in self.exports)

    @property
    def failed(self) -> bool:
        blocked = any(skip.blocked is not None and not skip.held for skip in self.skipped)
        unwritten = any(each.problem for each in self.exports)
        return blocked or unwritten or any(job.status is JobStatus.FAILED for job in self.jobs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A task that was claimed, with the settings and the time of the claim."""

    task: Task
    settings: Settings
    now: datetime


class _Left:
    """The jobs of one run: those still active, and those that were seen to end. Shared by its threads."""

    def __init__(self, jobs: Collection[Job]) -> None:
        self.active = frozenset(job.id for job in jobs if job.status.is_active)
        self.ended: dict[int, Job] = {}
        self.done = Event()
        self._lock = Lock()

    def note(self, job: Job | None) -> bool:
        """A task of this job was worked on; False if there was none."""
        if job is not None and not job.status.is_active:
            with self._lock:
                self.ended[job.id] = job
                self.active -= {job.id}
                if not self.active:
                    self.done.set()
        return job is not None


class _Handover:
    """Tasks that were claimed when they were created, on their way from the scheduler to a thread that waits."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop
        self._changed = Condition()
        self._rounds = 0
        self._waiting = 0
        self._claims: deque[Claim] = deque()

    def is_free(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting > len(self._claims), HANDOVER_SECONDS)

    def take(self, task: Task, settings: Settings, now: datetime) -> None:
        with self._changed:
            self._claims.append(Claim(task=task, settings=settings, now=now))
            self._changed.notify_all()

    def next(self) -> Claim | None:
        with self._changed:
            return self._claims.popleft() if self._claims else None

    def announce_round(self) -> None:
        """There may be tasks to claim."""
        with self._changed:
            self._rounds += 1
            self._changed.notify_all()

    def wait(self, seen: int, *, may_work: bool) -> tuple[int, Claim | None]:
        """Until there was a round after `seen`, or a task for this thread; an idle worker's threads ask nothing."""
        with self._changed:
            self._waiting += may_work
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._rounds != seen or self._stop.is_set() or (may_work and bool(self._claims))
            )
            self._waiting -= may_work
            return self._rounds, self._claims.popleft() if may_work and self._claims else None


class Worker:
    def __init__(
        self,
        catalog: Catalog,
        listener: Listener | None = None,
        *,
        gate_sql: str | None = None,
        services: Sequence[Service] = (),
    ) -> None:
        """`services` run beside the worker's own while it serves."""
        self.others = tuple(services)
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._catalog = catalog
        self._engine = catalog.engine
        self._listener = listener or NullListener()
        self._keeper = JobKeeper(catalog, self.id, self._listener)
        self._scheduler = Scheduler(catalog, self._keeper)
        self.controller = Controller(catalog, gate_sql)
        self._supervisor = Supervisor(catalog, self.id, self.controller, self._keeper)
        self._counter = RowCounter(catalog, self._keeper, self._supervisor)
        self._exports = Exports(catalog, self.id)
        self._thread_count = 1
        self._slot_count = 1
        self._slots = Semaphore(self._slot_count)
        self._stop = Event()
        self._handover, self._serves = _Handover(self._stop), False
        self._learned_sizes: dict[int, int] = {}
        self._at_once = AtOnce(
            catalog,
            self.controller,
            self._listener,
            stop=self._stop,
            has_room=self._has_room,
            slot=lambda: self._slots,
            learned_sizes=self._learned_sizes,
        )
        self._outage = Outage()
        self._failures, self._checked_at, self._reclaiming = 0, monotonic(), False
        self._locks = LockWatch(self._listener, self._engine.clock)
        catalog.on_locked, catalog.on_unlocked = self._met_locked, self._met_unlocked
        self._settings: tuple[Settings | None, float] = None, 0.0

    def _met_locked(self, seconds: float) -> None:
        self._locks.met(None, waited=seconds)
        self._locks.tell(None)

    def _met_unlocked(self) -> None:
        self._locks.over(None)

    def stop(self) -> None:
        """Finish the batches at hand, give the tasks back and return from `run` or `serve`."""
        self._stop.set()
        self._exports.stop()
        self._supervisor.stop_all()
        self._handover.announce_round()

    def read_comments(self) -> None:
        """Find policies that were declared in table comments."""
        self._when_free(self._catalog.install)
        self._scheduler.comments.refresh()

    def run(self, only: StoredPolicy | None = None) -> RunResult:
        """Run what is due, or `only` that policy now, and return when it is done."""
        self._when_free(self._catalog.install)
        self.start_services()
        try:
            self._when_free(lambda: self._exports.finish(only))
            tick = self._when_free(
                lambda: self._scheduler.run_once(only=only, claims=only is not None, at_once=self._at_once)
            )
            ended = tuple(self._work_until_done(list(tick.jobs), tick))
            exports = self._when_free(lambda: self._exports.finish(only))
            reclaimed = self._reclaim(RECLAIM_SECONDS)
        finally:
            self._close()
        return RunResult(
            jobs=ended,
            skipped=tick.skipped,
            reclaimed_bytes=reclaimed,
            proposals=tick.proposals,
            exports=exports,
        )

    def _when_free(self, action: Callable[[], R]) -> R:
        """Try again while another process has locked the whole database, for about as long as a task does."""
        until = monotonic() + LOCKED_SECONDS
        while True:
            try:
                return action()
            except Locked as error:
                if not error.everything or self._stop.is_set() or monotonic() > until:
                    raise
                self._stop.wait(IDLE_SECONDS)

    def serve(self) -> None:
        """Keep running until `stop`; a database that is unreachable is waited for."""
        threads: dict[int, Thread] = {}
        self._serves = True
        self.start_services(*self.others)
        try:
            while not self._stop.is_set():
                self._stop.wait(self.look(lambda tick: self._start_threads(threads)))
        finally:
            self.stop()
            for thread in threads.values():
                thread.join()
            while (claim := self._handover.next()) is not None:
                with suppress(LapseError):
                    self._give_back(claim.task)
            self._close(*self.others)

    def look(self, on_round: Callable[[Tick], None]) -> float:
        """What is done every second: a round of the scheduler, unless nothing has changed since the last one.

        `on_round` is told of each, and then there may be tasks to claim. Returns the seconds until the
        next look, which comes in the moment when a table falls due. Raises CatalogTooNew, and nothing else.
        """
        left_over = False
        try:
            self._catalog.install()
            if self._reclaiming or not self._scheduler.is_idle():
                if monotonic() - self._checked_at >= VERSION_SECONDS:
                    self._catalog.check_again()
                    self._checked_at = monotonic()
                hands = self._handover if self._serves else None
                tick = self._scheduler.run_once(patient=True, hands=hands, at_once=self._at_once)
                self._reclaiming = bool(self._reclaim(RECLAIM_TICK_SECONDS))
                ledger.seal_soon(self._catalog)
                self._go_by(tick.settings)
                on_round(tick)
                self._handover.announce_round()
                left_over = tick.left_over
            self._tell_requests()
            self._exports.look()
            self._failures = 0
            self._outage.over()
            return 0.0 if left_over else self._until_next_look()
        except CatalogTooNew:
            raise
        except DatabaseUnavailable as error:
            self._listener.service_failed("scheduler")
            self._outage.met(error.message)
            pause = self._outage.pause_seconds
            self._outage.tried()
            return pause
        except LapseError as error:
            self._listener.service_failed("scheduler")
            if not _is_told(error):
                log.warning("the scheduler met an error and tries again: %s", error.message)
        except Exception:
            self._listener.service_failed("scheduler")
            log.exception("the scheduler met an error and tries again")
        self._failures += 1
        return min(MAX_BACKOFF_SECONDS, 2.0**self._failures)

    def _until_next_look(self) -> float:
        due = self.seconds_until_due()
        # A table that was due in the last round already is not waited for; of many, some fall due together.
        return min(max(due, CLOSEST_SECONDS), TICK_SECONDS) if due > 0 else TICK_SECONDS

    def _tell_requests(self) -> None:
        """Requests are looked for with the pulse, where that can be."""
        for service in self.others:
            if service.name == REQUESTS:
                service.is_told = self._scheduler.knows_requests
                if self._scheduler.has_requests:
                    service.wake()

    @property
    def is_unreachable(self) -> bool:
        """Did the last look find the database unreachable?"""
        return self._outage.is_on

    def seconds_until_due(self) -> float:
        return self._scheduler.seconds_until_due()

    def beat(self) -> None:
        """Say that this process is alive, where no services run that do. Raises LapseError."""
        self._supervisor.run_once()

    def give_way(self) -> None:
        """Give the task back that has run for longest, at its checkpoint: another database waits for the thread."""
        running = self._supervisor.running()
        if running:
            running[0].stop()

    def _start_threads(self, threads: dict[int, Thread]) -> None:
        """As many as are wanted; one that has died is replaced."""
        for number in range(self._thread_count):
            if number not in threads or not threads[number].is_alive():
                threads[number] = Thread(target=self._serve_tasks, args=(number,), name=f"lapse-task-{number}")
                threads[number].start()

    def start_services(self, *others: Service) -> None:
        """What has to run beside tasks: heartbeats, requests to stop, gauges, row counts."""
        for service in (self._supervisor, self._counter, self.controller, *others):
            service.on_failure = self._listener.service_failed
            service.start()

    def close_services(self, *others: Service) -> None:
        for service in (*others, self.controller, self._counter, self._supervisor):
            service.close()

    def leave(self) -> None:
        """This process works for the database no more."""
        self._exports.close()
        self._supervisor.leave()
        # What stays unsealed, as the database cannot be reached, is sealed by the next worker.
        with suppress(LapseError):
            ledger.seal(self._catalog)

    def _close(self, *others: Service) -> None:
        self.close_services(*others)
        self.leave()

    def work_once(self, jobs: Collection[int] | None = None) -> Job | None:
        """Claim one task and run it here; returns its job as it is then, or None if there was nothing to claim."""
        claimed = self._claim(jobs)
        return None if claimed is None else self._work_off(claimed)

    def _work_off(self, claimed: Claim) -> Job:
        """Run a claimed task here; returns its job as it is then."""
        job_id = claimed.task.job_id
        try:
            outcome, runner = self._work_on(claimed)
        except DatabaseUnavailable:
            raise
        except (Blocked, Drift, TooManyErrors) as error:
            return self._keeper.fail(job_id, error)
        except LapseError as error:
            return self._keeper.postpone(claimed.task, error)
        except Exception as error:
            log.exception("task %d of job %d met an error", claimed.task.id, job_id)
            return self._keeper.fail(job_id, error)
        if runner.has_ended_job:
            self._keeper.announce_end(runner.job)
        return runner.job if outcome is Outcome.FINISHED else self._keeper.settle(job_id)

    def _work_on(self, claimed: Claim) -> tuple[Outcome, TaskRunner]:
        try:
            runner = self._prepare(claimed)
        except LapseError:
            self._give_back(claimed.task)
            raise
        self._supervisor.watch(runner)
        if self._stop.is_set():
            # Asked to stop between the claim and the watch: `stop` could not know of this runner.
            runner.stop()
        try:
            with self.controller.at_work(runner.job.table):
                return runner.run(), runner
        finally:
            self._supervisor.release(runner)
            self._learned_sizes[runner.job.table_id] = runner.batch_size

    @retried
    def _give_back(self, task: Task) -> None:
        """A task on which nothing was done."""
        with suppress(Fenced), self._catalog.writing(durable=False) as connection:
            tasks.resign_task(connection, task, tasks.progress_of(connection, task.id))

    def _work_until_done(self, wanted: list[Job], tick: Tick) -> list[Job]:
        """Work in this thread, and in others as they prove to help, until nothing is left to do."""
        left = _Left(wanted)
        if not left.active:
            return wanted
        self._go_by(tick.settings)
        threads = min(self._thread_count, sum(job.tasks_total for job in wanted))
        helpers = [
            Thread(target=self._help, args=(number, left), name=f"lapse-task-{number}") for number in range(1, threads)
        ]
        for helper in helpers:
            helper.start()
        try:
            if tick.claimed is not None:
                left.note(self._work_off(Claim(task=tick.claimed, settings=tick.settings, now=tick.now)))
            while left.active and not self._stop.is_set():
                if left.note(self.work_once(left.active)):
                    continue
                if not self._still_worked_on(left.active):
                    break
                left.done.wait(IDLE_SECONDS)
        finally:
            left.done.set()
            for helper in helpers:
                helper.join()
        if all(job.id in left.ended for job in wanted):
            return [left.ended[job.id] for job in wanted]
        with self._catalog.reading() as connection:
            return [left.ended.get(job.id) or stored_jobs.get_job(connection, job.id) for job in wanted]

    def _help(self, number: int, left: _Left) -> None:
        while not self._stop.is_set() and not left.done.is_set():
            try:
                while self.may_work(number) and left.note(self.work_once(left.active)):
                    continue
            except LapseError as error:
                # The database cannot be reached: the main thread meets that, too, and reports it.
                if not _is_told(error):
                    log.warning("a task was given back: %s", error.message)
                return
            except Exception:
                log.exception("a task thread met an error and ends; the others go on")
                self._listener.service_failed("task")
                return
            left.done.wait(IDLE_SECONDS)

    def _serve_tasks(self, number: int) -> None:
        seen = 0
        while not self._stop.is_set():
            while (may_work := self.may_work(number)) and self.work():
                continue
            seen, handed = self._handover.wait(seen, may_work=may_work)
            if handed is not None:
                self.work(handed)

    def work(self, claimed: Claim | None = None) -> bool:
        """Claim one task and run it here; False if there was none, or an error kept it from being run."""
        try:
            return (self.work_once() if claimed is None else self._work_off(claimed)) is not None
        except DatabaseUnavailable as error:
            self._outage.met(error.message)
        except LapseError as error:
            if not _is_told(error):
                log.warning("a task was given back: %s", error.message)
        except Exception:
            log.exception("a task thread met an error and goes on")
        self._listener.service_failed("task")
        return False

    def _has_room(self) -> bool:
        """May a batch run beside the tasks of this process?"""
        return self.may_work(len(self._supervisor.running()))

    def may_work(self, number: int) -> bool:
        """May one more task run beside `number` others of this process?"""
        return not self._stop.is_set() and number < self.controller.allowed_tasks(self._thread_count)

    def _still_worked_on(self, wanted: Collection[int]) -> bool:
        """Is any worker, here or elsewhere, at work on these jobs?"""
        with self._catalog.reading() as connection:
            now = self._engine.now(connection)
            alive = stale_before(now, self._current(connection))
            active = [job for job in stored_jobs.active_jobs(connection) if job.id in wanted]
            live = any(tasks.live_owners(connection, job.id, stale_before=alive) for job in active)
        for job in active:
            self._keeper.settle(job.id)
        return live or any(job.status in (JobStatus.WAITING, JobStatus.RUNNING) for job in active)

    @retried
    def _claim(self, jobs: Collection[int] | None) -> Claim | None:
        with self._catalog.reading() as connection:
            current = self._current(connection)
            awake = self._engine.stopwatch(connection)
            now = awake if self._engine.clock is None else self._engine.now(connection)
            alive = stale_before(now, current)
            found = tasks.claimable_tasks(connection, stale_before=alive, awake_at=awake, jobs=jobs)
        if not found:
            return None
        with self._catalog.writing(durable=False) as connection:
            if current.running_tasks != AUTO:
                tasks.lock_claims(connection)
                if tasks.running_tasks(connection, stale_before=alive) >= current.running_tasks:
                    return None
            task = tasks.claim_task(connection, found, owner=self.id, now=now)
            if task is not None:
                stored_jobs.start_job(connection, task.job_id, owner=self.id, now=now)
        return None if task is None else Claim(task=task, settings=current, now=now)

    def _current(self, connection: Connection) -> Settings:
        """As they were a moment ago: a round, the claims that follow it and their ends ask once."""
        known, until = self._settings
        if known is None or monotonic() > until:
            known = settings.load_settings(connection)
            self._settings = known, monotonic() + SETTINGS_SECONDS
        return known

    def _prepare(self, claim: Claim) -> TaskRunner:
        with self._engine.connection() as connection:
            planned = self._keeper.planned(connection, claim.task.job_id, claim.now)
            job, stored, physical = planned.job, planned.stored, planned.physical
            if job.started_at is None:
                job = replace(job, status=JobStatus.RUNNING, started_at=claim.now)
            declared = self._keeper.declared(connection, stored, job.table)
            armed = self._keeper.armed(connection, stored)
            self._keeper.keep_armed(stored, armed)
            if fingerprint(declared) != job.fingerprint:
                raise Drift(f"table {stored.table} has changed since the job was created")
            timeout = claim.settings.statement_timeout.approximate_seconds
            target = planned.target
            if target is None or target.declared is not declared:
                target = self._engine.target(connection, declared, job.cutoff, path=job.path)
            target = replace(target, path=job.path, armed=armed, job=job.id, statement_seconds=timeout)
        if stored.policy.ledger_keys and not self._engine.features.hashes_keys:
            target = replace(target, secret=self._secret_of(stored.table))
        runner = TaskRunner(
            catalog=self._catalog,
            keeper=self._keeper,
            task=claim.task,
            job=job,
            stored=stored,
            settings=claim.settings,
            target=target,
            slots=self._slots,
            controller=self.controller,
            locks=self._locks,
            listener=self._listener,
            exports=self._exports,
            learned_size=self._learned_sizes.get(job.table_id),
        )
        runner.urgent = planned.behind > IN_DANGER
        runner.shown_gate = physical.blocked_reason if physical and physical.blocked is BlockCode.GATE else None
        return runner

    @retried
    def _secret_of(self, table: TableName) -> Secret:
        with self._catalog.writing() as connection:
            return ledger_keys.secret_of(connection, table)

    def _reclaim(self, seconds: float) -> int:
        if not self._engine.features.returns_space:
            return 0
        with self._engine.connection() as connection:
            return self._engine.reclaim(connection, seconds)

    def _go_by(self, current: Settings) -> None:
        """The settings of a round."""
        self._settings = current, monotonic() + SETTINGS_SECONDS
        self._supervisor.go_by(current)
        self._thread_count = current.scan_worker_count if self._engine.features.concurrent_writers else 1
        if current.delete_worker_count != self._slot_count:
            self._slot_count = current.delete_worker_count
            self._slots = Semaphore(self._slot_count)


def _is_told(error: LapseError) -> bool:
    """Is a lock on the whole database waited for? That is told once, by the watch over locks."""
    return isinstance(error, Locked) and error.everything
