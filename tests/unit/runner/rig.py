"""A claimed task on an SQLite file, a deleter that does what a test tells it, and time that passes by waiting only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Event, Semaphore
from typing import Any

import pytest

from lapse.app import Lapse
from lapse.catalog import jobs, policies, tasks
from lapse.catalog.settings import load_settings
from lapse.catalog.tasks import TaskState
from lapse.clock import ManualClock
from lapse.engines.base import Batch, Checkpoint, Deleter, Engine, Stretch, Target
from lapse.model.job import Counts, Job, KeyRange, PathKind, Task
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner import lockwatch as lockwatch_module
from lapse.runner import task as task_module
from lapse.runner.controller import Controller
from lapse.runner.events import BatchDone, Cause, LockWait, NullListener, TaskDone
from lapse.runner.exports import Exports
from lapse.runner.jobs import JobKeeper
from lapse.runner.lockwatch import LockWatch
from lapse.runner.scheduler import Scheduler
from lapse.runner.task import TaskRunner

CREATE = "CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT)"
DECLARE = "ALTER TABLE events SET (ttl_expiration_expression = 'at', ttl_grace = '0 s'{})"

Step = Batch | Exception | Callable[[int, Checkpoint], Batch]


@dataclass
class Heard(NullListener):
    """What a runner tells."""

    batches: list[BatchDone] = field(default_factory=list)
    ended: list[TaskDone] = field(default_factory=list)
    waits: list[tuple[float, str, Cause]] = field(default_factory=list)
    locks: list[LockWait] = field(default_factory=list)
    unlocks: list[LockWait] = field(default_factory=list)

    def batch_done(self, event: BatchDone) -> None:
        self.batches.append(event)

    def task_done(self, event: TaskDone) -> None:
        self.ended.append(event)

    def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
        self.waits.append((seconds, reason, cause))

    def locked(self, event: LockWait) -> None:
        self.locks.append(event)

    def unlocked(self, event: LockWait, seconds: float) -> None:
        self.unlocks.append(event)


class Stop(Event):
    """Waiting for it takes no time; the clocks go on by as much."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self._rig = rig

    def wait(self, timeout: float | None = None) -> bool:
        self._rig.waits.append(timeout or 0.0)
        self._rig.advance(timeout or 0.0)
        return self.is_set()


class ScriptedDeleter(Deleter):
    """Takes one step of its script after the other; a batch commits with its checkpoint. So it does with those in
    `long`, each of which is a stretch: batches in one message, or what breaks one off after these."""

    def __init__(self, engine: Engine, script: Iterable[Step]) -> None:
        self._engine = engine
        self.script = deque(script)
        self.long: deque[Callable[[Stretch], Batch | None]] = deque()
        self.gone_on: list[str | None] = []
        self.limits: list[int] = []
        self.skipped = 0
        self.restarts = 0
        self.interrupts = 0

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        self.limits.append(limit)
        step = self.script.popleft()
        if isinstance(step, Exception):
            raise step
        return self.commit(step, checkpoint) if isinstance(step, Batch) else step(limit, checkpoint)

    @property
    def stretches(self) -> bool:
        return bool(self.long)

    def stretch(self, limit: int, within: Stretch) -> Batch | None:
        return self.long.popleft()(within)

    def go_on(self, cursor: str | None) -> None:
        self.gone_on.append(cursor)

    def save(self, within: Stretch, cursor: str, rows: int) -> None:
        """As a server does in a stretch, with one of its batches."""
        with self._engine.transaction() as connection:
            saved = connection.exec_driver_sql(within.saves.format(cursor=f"'{cursor}'", rows=rows, **within.values))
            assert saved.rowcount == 1

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        self.skipped += 1
        return self.commit(Batch(selected=1, held=1, cursor="past"), checkpoint)

    def commit(self, batch: Batch, checkpoint: Checkpoint) -> Batch:
        with self._engine.transaction() as connection:
            checkpoint(connection, batch)
        return batch

    def restart(self) -> None:
        self.restarts += 1

    def interrupt(self) -> None:
        self.interrupts += 1


class Calm(Controller):
    """What a test says, and otherwise: no gate, no pause."""

    closed: str | None = None
    shut: Any = None
    allowed: int | None = None
    rest = 0.0
    duty = 0.5
    seconds_per_batch = 1.0

    def stop_reason(self, table: TableName | None = None) -> str | None:
        return self.closed

    def batch_seconds(self) -> float:
        return self.seconds_per_batch

    def shut_gate(self, patience: float, table: TableName | None = None) -> Any:
        return self.shut

    def allowed_tasks(self, wanted: int) -> int:
        return wanted if self.allowed is None else self.allowed

    def pause_after(
        self, seconds: float, busy: float, *, urgent: bool = False, table: TableName | None = None
    ) -> tuple[float, str | None]:
        return (self.rest, "yielding") if self.rest else (0.0, None)

    def share(self, *, urgent: bool = False, table: TableName | None = None) -> tuple[float, str]:
        return self.duty, "yielding"


class Rig:
    def __init__(self, database: Lapse, clock: ManualClock, patch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.catalog = database.catalog
        self.clock = clock
        self.passed = 1000.0
        self.waits: list[float] = []
        self.heard = Heard()
        self.keeper = JobKeeper(self.catalog, "w1", self.heard)
        self.controller = Calm(self.catalog)
        self.locks = LockWatch(self.heard, clock)
        self.deleter = ScriptedDeleter(database.engine, ())
        self.opened: list[tuple[KeyRange, str | None]] = []
        self._patch = patch
        patch.setattr(database.engine, "stopwatch", lambda connection: clock.now())
        patch.setattr(task_module, "perf_counter", lambda: self.passed)
        patch.setattr(lockwatch_module, "monotonic", lambda: self.passed)

    def advance(self, seconds: float) -> None:
        self.passed += seconds
        self.clock.advance(timedelta(seconds=seconds))

    def declare(self, options: str = "") -> None:
        self.database.execute(DECLARE.format(f", {options}" if options else ""))

    def claim(self, owner: str = "w1") -> Task:
        """A task of the job that is there, or of a new one."""
        with self.catalog.reading() as connection:
            is_there = bool(jobs.active_jobs(connection))
        if not is_there:
            Scheduler(self.catalog, self.keeper).run_once()
        with self.catalog.writing() as connection:
            now = self.clock.now()
            found = tasks.claimable_tasks(connection, stale_before=now - timedelta(minutes=1), awake_at=now)
            claimed = tasks.claim_task(connection, found, owner=owner, now=now)
        assert claimed is not None
        return claimed

    def runner(self, *script: Step, task: Task | None = None, path: PathKind | None = None) -> TaskRunner:
        task = task or self.claim()
        self.deleter = ScriptedDeleter(self.database.engine, script)
        self._patch.setattr(self.database.engine, "deleter", self._open)
        self._patch.setattr(task_module, "Event", lambda: Stop(self))
        with self.catalog.reading() as connection:
            job = jobs.get_job(connection, task.job_id)
            stored = policies.get_policy(connection, job.policy_id)
            assert stored is not None
            declared = self.keeper.declared(connection, stored)
            target = self.database.engine.target(connection, declared, job.cutoff, path=job.path)
        if path is not None:
            target = replace(target, path=replace(target.path, kind=path))
        return TaskRunner(
            catalog=self.catalog,
            keeper=self.keeper,
            task=task,
            job=job,
            stored=stored,
            settings=self.settings(),
            target=target,
            slots=Semaphore(1),
            controller=self.controller,
            locks=self.locks,
            listener=self.heard,
            exports=Exports(self.catalog, "rig"),
        )

    def _open(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        self.opened.append((span, cursor))
        return self.deleter

    def settings(self) -> Settings:
        with self.catalog.reading() as connection:
            return load_settings(connection)

    def state(self, task: Task) -> TaskState:
        with self.catalog.reading() as connection:
            return next(
                each for each in tasks.task_states(connection, [task.job_id])[task.job_id] if each.task.id == task.id
            )

    def counts(self, runner: TaskRunner) -> Counts:
        """Of its job, which has no other task, and may have ended with it."""
        with self.catalog.reading() as connection:
            return jobs.get_job(connection, runner.task.job_id).counts

    def write(self, action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """One function of the catalog, in a transaction of its own."""
        with self.catalog.writing() as connection:
            return action(connection, *arguments, **named)

    def read(self, action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with self.catalog.reading() as connection:
            return action(connection, *arguments, **named)


def rolled_back(rig: Rig, batch: Batch, error: Exception) -> Callable[[int, Checkpoint], Batch]:
    """The transaction of this batch fails after its checkpoint was written."""

    def step(limit: int, checkpoint: Checkpoint) -> Batch:
        with rig.database.engine.transaction() as connection:
            checkpoint(connection, batch)
            raise error

    return step


def unseen_commit(rig: Rig, batch: Batch, error: Exception) -> Callable[[int, Checkpoint], Batch]:
    """This batch commits, and the answer is lost."""

    def step(limit: int, checkpoint: Checkpoint) -> Batch:
        rig.deleter.commit(batch, checkpoint)
        raise error

    return step


def without_checkpoint(batch: Batch) -> Callable[[int, Checkpoint], Batch]:
    """A scan that found nothing writes nothing."""

    def step(limit: int, checkpoint: Checkpoint) -> Batch:
        return batch

    return step
