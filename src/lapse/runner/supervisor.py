"""Watches over the tasks that this process runs: heartbeats, requests to stop, new parameters, lost leases."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import datetime
from threading import Lock
from time import monotonic

from sqlalchemy import Connection

from lapse._version import __version__
from lapse.catalog import Catalog, jobs, policies, settings, tasks, workers
from lapse.catalog.pulse import Mark, read_mark
from lapse.catalog.workers import WorkerRow
from lapse.errors import LapseError
from lapse.model.settings import Settings
from lapse.runner.controller import Controller
from lapse.runner.jobs import JobKeeper
from lapse.runner.service import Service
from lapse.runner.task import TaskRunner
from lapse.runner.verdict import judge

WATCH_SECONDS = 0.25
"""A request to stop is seen this soon."""
JUDGE_SECONDS = 1.0
"""What comes with time alone, such as the end of a window, is seen this soon."""


class Supervisor(Service):
    name = "supervisor"
    seconds = WATCH_SECONDS

    def __init__(self, catalog: Catalog, worker_id: str, controller: Controller, keeper: JobKeeper) -> None:
        super().__init__()
        self._keeper = keeper
        self._controller = controller
        self._catalog = catalog
        self._worker_id = worker_id
        self._address = f"{socket.gethostname()}:{os.getpid()}"
        self._started_at: datetime | None = None
        self._running: dict[int, TaskRunner] = {}
        self._lock = Lock()
        self._mark: Mark | None = None
        self._judged_at = float("-inf")
        self._current: Settings | None = None
        """As the tasks were judged by last."""
        self._beat_at = float("-inf")
        self._beat_seconds: float | None = None
        """None until it was asked for."""

    def go_by(self, current: Settings) -> None:
        """The settings of a round, which comes soon after a change: while no task runs nothing else asks for them."""
        self._beat_seconds = _interval(current)

    def leave(self) -> None:
        """This process works no more."""
        if self._started_at is not None:
            # If it cannot be removed now, the row goes by its age.
            with suppress(LapseError), self._catalog.writing(durable=False) as connection:
                workers.remove_worker(connection, self._worker_id)

    def watch(self, runner: TaskRunner) -> None:
        with self._lock:
            self._running[runner.task.id] = runner

    def release(self, runner: TaskRunner) -> None:
        with self._lock:
            self._running.pop(runner.task.id, None)

    def stop_all(self) -> None:
        for runner in self.running():
            runner.stop()

    def running(self) -> list[TaskRunner]:
        with self._lock:
            return list(self._running.values())

    def run_once(self) -> None:
        runners = self.running()
        if not runners:
            if self._is_time_to_beat():
                self._beat([])
            return
        ours = {runner.job.id for runner in runners}
        with self._catalog.reading() as connection:
            mark = read_mark(connection, ours)
            if mark != self._mark or monotonic() - self._judged_at >= JUDGE_SECONDS:
                self._judge(connection, runners, ours)
                self._mark, self._judged_at = mark, monotonic()
        for runner in runners[self._controller.allowed_tasks(len(runners)) :]:
            # Concurrency has to be earned; the task goes on from its checkpoint when there is room again.
            runner.stop()
        if self._current is not None:
            self._show_gate(runners, self._current)
        if self._is_time_to_beat():
            self._beat(runners)

    def _judge(self, connection: Connection, runners: list[TaskRunner], ours: set[int]) -> None:
        self._current = current = settings.load_settings(connection)
        self.go_by(current)
        now = self._catalog.engine.now(connection)
        mine = {runner.job.policy_id for runner in runners}
        known = {stored.id: stored for stored in policies.find_policies(connection, mine)}
        found = {job.id: job for job in jobs.active_jobs(connection) if job.id in ours}
        for runner in runners:
            job, stored = found.get(runner.job.id), known.get(runner.job.policy_id)
            if job is None or stored is None or not judge(job, stored, current, now).goes_on:
                runner.stop()
            elif stored.version != runner.stored.version:
                if stored.policy.same_expiry(runner.stored.policy):
                    runner.adopt(stored, current)
                else:
                    runner.stop()

    def _is_time_to_beat(self) -> bool:
        return self._beat_seconds is None or monotonic() - self._beat_at >= self._beat_seconds

    def _show_gate(self, runners: list[TaskRunner], current: Settings) -> None:
        """A gate that stays closed is shown at the tables whose jobs wait at it, until it opens."""
        for runner in runners:
            shut = self._controller.shut_gate(current.gate_patience.approximate_seconds, runner.job.table)
            if (shut is None) != (runner.shown_gate is None):
                self._keeper.show_gate(runner.job, shut)
                runner.shown_gate = None if shut is None else shut.message

    def _beat(self, runners: list[TaskRunner]) -> None:
        with self._catalog.writing(durable=False) as connection:
            if self._beat_seconds is None:
                self.go_by(settings.load_settings(connection))
            now = self._catalog.engine.now(connection)
            self._started_at = self._started_at or now
            workers.beat_worker(
                connection,
                WorkerRow(
                    id=self._worker_id,
                    address=self._address,
                    version=__version__,
                    started_at=self._started_at,
                    heartbeat_at=now,
                    state=json.dumps({"tasks": [runner.task.id for runner in runners]}),
                ),
            )
            # At the end: a batch that saves its progress meanwhile waits, with its rows locked.
            lost = tasks.beat(connection, [runner.task for runner in runners], now)
        self._beat_at = monotonic()
        for runner in runners:
            if runner.task.id in lost:
                runner.stop()


def _interval(current: Settings) -> float:
    return current.heartbeat_interval.approximate_seconds / 2
