"""Watching over tasks: heartbeats, requests to stop, new parameters, gates, concurrency, lost leases."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from lapse.catalog import policies, workers
from lapse.catalog.workers import WorkerRow
from lapse.engines.base import Batch
from lapse.errors import Blocked
from lapse.model.blocked import BlockCode
from lapse.model.interval import from_seconds
from lapse.model.policy import Policy
from lapse.model.statement import JobAction
from lapse.runner import supervisor as module
from lapse.runner.supervisor import Supervisor
from lapse.runner.task import Outcome, TaskRunner
from tests.unit.runner.build import NOW
from tests.unit.runner.rig import Rig

DONE = Batch(done=True)


@pytest.fixture
def supervisor(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    rig.declare()
    monkeypatch.setattr(module, "monotonic", lambda: rig.passed)
    return Supervisor(rig.catalog, "w1", rig.controller, rig.keeper)


@pytest.fixture
def runner(rig: Rig, supervisor: Supervisor) -> TaskRunner:
    found = rig.runner(DONE)
    supervisor.watch(found)
    return found


def beats(rig: Rig) -> list[WorkerRow]:
    found: list[WorkerRow] = rig.read(workers.list_workers)
    return found


def goes_on(runner: TaskRunner) -> bool:
    return runner.run() is Outcome.FINISHED


def test_a_task_that_nothing_is_asked_of_goes_on(supervisor: Supervisor, runner: TaskRunner) -> None:
    supervisor.run_once()
    assert goes_on(runner)


@pytest.mark.parametrize("action", [JobAction.PAUSE, JobAction.CANCEL])
def test_a_job_that_is_told_to_stop_is_stopped(
    rig: Rig, supervisor: Supervisor, runner: TaskRunner, action: JobAction
) -> None:
    rig.database.control(runner.job.id, action)
    supervisor.run_once()
    assert not goes_on(runner)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE events SET (ttl_pause = true)",
        "ALTER TABLE events RESET (ttl)",
        "SET GLOBAL tidb_ttl_job_enable = 'OFF'",
        "ALTER TABLE events SET (ttl_expiration_expression = 'at + INTERVAL ''1 day''')",
    ],
)
def test_a_statement_that_makes_a_job_wrong_stops_it(
    rig: Rig, supervisor: Supervisor, runner: TaskRunner, statement: str
) -> None:
    rig.database.execute(statement)
    supervisor.run_once()
    assert not goes_on(runner)


def test_parameters_that_leave_the_expiry_as_it_is_are_taken_over(
    rig: Rig, supervisor: Supervisor, runner: TaskRunner
) -> None:
    rig.database.execute("ALTER TABLE events SET (ttl_delete_batch_size = 7)")
    supervisor.run_once()
    assert goes_on(runner)
    assert rig.deleter.limits == [7]


def test_another_expiry_stops_a_task_whose_job_is_not_ended_yet(
    rig: Rig, supervisor: Supervisor, runner: TaskRunner
) -> None:
    before = runner.stored
    rig.write(
        policies.save_policy,
        before.table,
        Policy(expression="at + INTERVAL '1 day'"),
        reloptions=(),
        recurrence="@hourly",
        source=before.source,
        fingerprint=before.fingerprint,
        armed=before.armed,
        now=NOW,
        current=before,
    )
    supervisor.run_once()
    assert not goes_on(runner)


def test_a_job_that_has_ended_takes_its_tasks_along(rig: Rig, supervisor: Supervisor, runner: TaskRunner) -> None:
    rig.keeper.fail(runner.job.id, Blocked(BlockCode.ERROR, "disk full"))
    supervisor.run_once()
    assert not rig.deleter.limits
    assert runner.run() is not Outcome.FINISHED


def test_concurrency_that_is_not_earned_any_more_is_given_back(rig: Rig, supervisor: Supervisor) -> None:
    rig.database.execute("CREATE TABLE logs (id INTEGER PRIMARY KEY, at TEXT)")
    rig.database.execute("INSERT INTO logs VALUES (1, '2020-01-01 00:00:00')")
    rig.database.execute("ALTER TABLE logs SET (ttl_expiration_expression = 'at', ttl_grace = '0 s')")
    runners = [rig.runner(DONE), rig.runner(DONE)]
    for each in runners:
        supervisor.watch(each)
    supervisor.run_once()
    assert [runner._stop.is_set() for runner in runners] == [False, False]
    rig.controller.allowed = 1
    supervisor.run_once()
    assert [runner._stop.is_set() for runner in runners] == [False, True]


def test_a_task_that_is_released_is_watched_no_more(rig: Rig, supervisor: Supervisor, runner: TaskRunner) -> None:
    assert supervisor.running() == [runner]
    supervisor.release(runner)
    supervisor.release(runner)
    assert supervisor.running() == []
    rig.database.control(runner.job.id, JobAction.CANCEL)
    supervisor.run_once()
    assert goes_on(runner)


def test_all_are_stopped_at_once(supervisor: Supervisor, runner: TaskRunner) -> None:
    supervisor.stop_all()
    assert not goes_on(runner)


# Heartbeats


def test_a_heartbeat_says_who_works_on_what(rig: Rig, supervisor: Supervisor, runner: TaskRunner) -> None:
    rig.advance(30)
    supervisor.run_once()
    (beat,) = beats(rig)
    assert (beat.id, beat.started_at, beat.heartbeat_at) == ("w1", rig.clock.now(), rig.clock.now())
    assert json.loads(beat.state) == {"tasks": [runner.task.id]}
    assert rig.state(runner.task).heartbeat_at == NOW + timedelta(seconds=30)


def test_heartbeats_come_twice_in_an_interval_and_no_more_often(
    rig: Rig, supervisor: Supervisor, runner: TaskRunner
) -> None:
    half = rig.settings().heartbeat_interval.approximate_seconds / 2
    supervisor.run_once()
    rig.advance(half - 1)
    supervisor.run_once()
    assert beats(rig)[0].heartbeat_at == NOW
    rig.advance(1)
    supervisor.run_once()
    assert (beats(rig)[0].started_at, beats(rig)[0].heartbeat_at) == (NOW, NOW + timedelta(seconds=half))


def test_an_idle_worker_asks_nothing_between_its_heartbeats(
    rig: Rig, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.run_once()
    assert len(beats(rig)) == 1
    monkeypatch.setattr(rig.catalog, "reading", lambda: pytest.fail("the catalog was read"))
    rig.advance(1)
    supervisor.run_once()


def test_an_idle_worker_goes_by_the_settings_of_its_rounds(rig: Rig, supervisor: Supervisor) -> None:
    supervisor.run_once()
    current = rig.settings()
    half = current.heartbeat_interval.approximate_seconds / 2
    supervisor.go_by(replace(current, heartbeat_interval=from_seconds(int(half))))
    rig.advance(half / 2)
    supervisor.run_once()
    assert beats(rig)[0].heartbeat_at == NOW + timedelta(seconds=half / 2)


def test_a_lease_that_is_lost_stops_its_task(rig: Rig, supervisor: Supervisor, runner: TaskRunner) -> None:
    rig.advance(120)
    rig.claim("w2")
    supervisor.run_once()
    assert runner._stop.is_set()
    assert rig.state(runner.task).task.owner == "w2"


def test_a_worker_that_leaves_takes_its_row_away(rig: Rig, supervisor: Supervisor) -> None:
    supervisor.run_once()
    supervisor.leave()
    assert beats(rig) == []


def test_a_worker_that_never_said_that_it_lives_has_nothing_to_take_away(
    rig: Rig, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.catalog, "writing", lambda **_: pytest.fail("the catalog was written"))
    supervisor.leave()


# Gates


def test_a_gate_that_stays_closed_is_shown_once_and_taken_back_when_it_opens(
    rig: Rig, supervisor: Supervisor, runner: TaskRunner
) -> None:
    told: list[str] = []
    rig.heard.table_blocked = lambda table, why: told.append(f"{table}: {why.message}")  # type: ignore[method-assign]
    rig.heard.table_unblocked = lambda table, code, seconds: told.append(f"{table} {code} {seconds:.0f}")  # type: ignore[method-assign]
    rig.controller.shut = Blocked(BlockCode.GATE, "the gate lag stays closed", hint="see lapse_gate_lag")
    supervisor.run_once()
    supervisor.run_once()
    (physical,) = rig.read(policies.list_tables)
    assert (physical.blocked, physical.blocked_reason) == (
        BlockCode.GATE,
        "the gate lag stays closed; see lapse_gate_lag",
    )
    rig.controller.shut = None
    rig.advance(90)
    supervisor.run_once()
    (physical,) = rig.read(policies.list_tables)
    assert (physical.blocked, physical.blocked_reason) == (None, None)
    assert told == ["events: the gate lag stays closed", "events gate 90"]
    assert goes_on(runner)
