"""A worker: schedules, claims tasks and runs them, for a while or for ever, alone or among others."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Condition, Event, Lock, Semaphore, Thread
from time import monotonic
from typing import TypeVar

from sqlalchemy import Connection

from lapse.catalog import Catalog, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import StoredPolicy
from lapse.errors import Blocked, CatalogTooNew, DatabaseUnavailable, Drift, Fenced, LapseError, Locked
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus, Task
from lapse.model.settings import AUTO, Settings
from lapse.runner.comments import CommentProblem
from lapse.runner.controller import Controller
from lapse.runner.events import Listener, NullListener
from lapse.runner.jobs import JobKeeper, stale_before
from lapse.runner.lockwatch import LockWatch
from lapse.runner.outage import Outage
from lapse.runner.policy_manager import fingerprint
from lapse.runner.promise import IN_DANGER
from lapse.runner.retry import retried
from lapse.runner.scheduler import Scheduler, Skip, Tick
from lapse.runner.service import Service
from lapse.runner.statistics import RowCounter
from lapse.runner.supervisor import Supervisor
from lapse.runner.task import Outcome, TaskRunner, TooManyErrors

TICK_SECONDS = 1.0
IDLE_SECONDS = 0.2
RECLAIM_SECONDS = 10.0
"""Time given to returning space after a run."""
RECLAIM_TICK_SECONDS = 0.1
"""Time given to it in each round of a worker that keeps running."""
MAX_BACKOFF_SECONDS = 30.0
LOCKED_SECONDS = 60.0
"""How long a run waits for a database that another process has locked."""
SETTINGS_SECONDS = 0.5
VERSION_SECONDS = 10.0
"""A catalog that a newer Lapse has upgraded is noticed this soon."""

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

    @property
    def deleted(self) -> int:
        return sum(job.counts.deleted for job in self.jobs)

    @property
    def complete(self) -> bool:
        return not self.skipped and all(job.status is JobStatus.FINISHED for job in self.jobs)

    @property
    def failed(self) -> bool:
        blocked = any(skip.blocked is not None and not skip.held for skip in self.skipped)
        return blocked or any(job.status is JobStatus.FAILED for job in self.jobs)


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
        self._thread_count = 1
        self._slot_count = 1
        self._slots = Semaphore(self._slot_count)
        self._stop = Event()
        self._looked = Condition()
        self._rounds = 0
        self._outage = Outage()
        self._failures, self._checked_at, self._reclaiming = 0, monotonic(), False
        self._locks = LockWatch(self._listener, self._engine.clock)
        catalog.on_locked, catalog.on_unlocked = self._met_locked, self._met_unlocked
        self._learned_sizes: dict[int, int] = {}
        self._settings: tuple[Settings | None, float] = None, 0.0

    def _met_locked(self, seconds: float) -> None:
        self._locks.met(None, waited=seconds)
        self._locks.tell(None)

    def _met_unlocked(self) -> None:
        self._locks.over(None)

    def stop(self) -> None:
        """Finish the batches at hand, give the tasks back and return from `run` or `serve`."""
        self._stop.set()
        self._supervisor.stop_all()
        self._announce_round()

    def _announce_round(self) -> None:
        """There may be tasks to claim."""
        with self._looked:
            self._rounds += 1
            self._looked.notify_all()

    def _wait_for_round(self, seen: int) -> int:
        """Until there was one after `seen`; an idle worker's threads ask nothing."""
        with self._looked:
            self._looked.wait_for(lambda: self._rounds != seen or self._stop.is_set())
            return self._rounds

    def read_comments(self) -> None:
        """Find policies that were declared in table comments."""
        self._when_free(self._catalog.install)
        self._scheduler.comments.refresh()

    def run(self, only: StoredPolicy | None = None) -> RunResult:
        """Run what is due, or `only` that policy now, and return when it is done."""
        self._when_free(self._catalog.install)
        self.start_services()
        try:
            tick = self._when_free(lambda: self._scheduler.run_once(only=only))
            ended = tuple(self._work_until_done(list(tick.jobs), tick.settings))
            reclaimed = self._reclaim(RECLAIM_SECONDS)
        finally:
            self._close()
        return RunResult(jobs=ended, skipped=tick.skipped, reclaimed_bytes=reclaimed, proposals=tick.proposals)

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
        self.start_services(*self.others)
        try:
            while not self._stop.is_set():
                self._stop.wait(self.look(lambda tick: self._start_threads(threads)))
        finally:
            self.stop()
            for thread in threads.values():
                thread.join()
            self._close(*self.others)

    def look(self, on_round: Callable[[Tick], None]) -> float:
        """What is done every second: a round of the scheduler, unless nothing has changed since the last one.

        `on_round` is told of each, and then there may be tasks to claim. Returns the seconds until the
        next look. Raises CatalogTooNew, and nothing else.
        """
        try:
            self._catalog.install()
            if monotonic() - self._checked_at >= VERSION_SECONDS:
                self._catalog.check_again()
                self._checked_at = monotonic()
            if self._reclaiming or not self._scheduler.is_idle():
                tick = self._scheduler.run_once(patient=True)
                self._reclaiming = bool(self._reclaim(RECLAIM_TICK_SECONDS))
                self._go_by(tick.settings)
                on_round(tick)
                self._announce_round()
            self._failures = 0
            self._outage.over()
            return TICK_SECONDS
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
        self._supervisor.leave()

    def _close(self, *others: Service) -> None:
        self.close_services(*others)
        self.leave()

    def work_once(self, jobs: Collection[int] | None = None) -> Job | None:
        """Claim one task and run it here; returns its job as it is then, or None if there was nothing to claim."""
        claimed = self._claim(jobs)
        if claimed is None:
            return None
        job_id = claimed.task.job_id
        try:
            outcome = self._work_on(claimed)
        except DatabaseUnavailable:
            raise
        except (Blocked, Drift, TooManyErrors) as error:
            return self._keeper.fail(job_id, error)
        except LapseError as error:
            return self._keeper.postpone(claimed.task, error)
        except Exception as error:
            log.exception("task %d of job %d met an error", claimed.task.id, job_id)
            return self._keeper.fail(job_id, error)
        return self._keeper.settle_if_done(job_id) if outcome is Outcome.FINISHED else self._keeper.settle(job_id)

    def _work_on(self, claimed: Claim) -> Outcome:
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
            with self.controller.at_work():
                return runner.run()
        finally:
            self._supervisor.release(runner)
            self._learned_sizes[runner.job.table_id] = runner.batch_size

    @retried
    def _give_back(self, task: Task) -> None:
        """A task on which nothing was done."""
        with suppress(Fenced), self._catalog.writing(durable=False) as connection:
            tasks.resign_task(connection, task, tasks.progress_of(connection, task.id))

    def _work_until_done(self, wanted: list[Job], current: Settings) -> list[Job]:
        """Work in this thread, and in others as they prove to help, until nothing is left to do."""
        left = _Left(wanted)
        if not left.active:
            return wanted
        self._go_by(current)
        threads = min(self._thread_count, sum(job.tasks_total for job in wanted))
        helpers = [
            Thread(target=self._help, args=(number, left), name=f"lapse-task-{number}") for number in range(1, threads)
        ]
        for helper in helpers:
            helper.start()
        try:
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
        seen = self._rounds
        while not self._stop.is_set():
            while self.may_work(number) and self.work():
                continue
            seen = self._wait_for_round(seen)

    def work(self) -> bool:
        """Claim one task and run it here; False if there was none, or an error kept it from being run."""
        try:
            return self.work_once() is not None
        except DatabaseUnavailable as error:
            self._outage.met(error.message)
        except LapseError as error:
            if not _is_told(error):
                log.warning("a task was given back: %s", error.message)
        except Exception:
            log.exception("a task thread met an error and goes on")
        self._listener.service_failed("task")
        return False

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
        with self._catalog.reading() as connection:
            planned = self._keeper.planned(connection, claim.task.job_id, claim.now)
        job, stored, physical = planned.job, planned.stored, planned.physical
        with self._engine.connection() as connection:
            declared = self._keeper.declared(connection, stored, job.table)
            armed = self._keeper.armed(connection, stored)
            if fingerprint(declared) != job.fingerprint:
                raise Drift(f"table {stored.table} has changed since the job was created")
            timeout = claim.settings.statement_timeout.approximate_seconds
            target = self._engine.target(
                connection, declared, job.cutoff, path=job.path, armed=armed, statement_seconds=timeout
            )
        runner = TaskRunner(
            catalog=self._catalog,
            task=claim.task,
            job=job,
            stored=stored,
            settings=claim.settings,
            target=target,
            slots=self._slots,
            controller=self.controller,
            locks=self._locks,
            listener=self._listener,
            learned_size=self._learned_sizes.get(job.table_id),
        )
        runner.urgent = planned.behind > IN_DANGER
        runner.shown_gate = physical.blocked_reason if physical and physical.blocked is BlockCode.GATE else None
        return runner

    def _reclaim(self, seconds: float) -> int:
        with self._engine.connection() as connection:
            return self._engine.reclaim(connection, seconds)

    def _go_by(self, current: Settings) -> None:
        """The settings of a round."""
        self._settings = current, monotonic() + SETTINGS_SECONDS
        self._thread_count = current.scan_worker_count if self._engine.features.concurrent_writers else 1
        if current.delete_worker_count != self._slot_count:
            self._slot_count = current.delete_worker_count
            self._slots = Semaphore(self._slot_count)


def _is_told(error: LapseError) -> bool:
    """Is a lock on the whole database waited for? That is told once, by the watch over locks."""
    return isinstance(error, Locked) and error.everything
