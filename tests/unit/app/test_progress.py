"""How far a job has come, and what is said where that cannot be told."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.app.progress import _progress
from lapse.catalog.tasks import TaskState
from lapse.model.job import Counts, JobStatus, KeyRange, Task, TaskStatus
from tests.unit.runner.build import NOW, ago, job


def state(status: TaskStatus = TaskStatus.RUNNING, cursor: str | None = None, **fields: Any) -> TaskState:
    task = Task(
        id=1,
        job_id=1,
        ordinal=0,
        range=KeyRange(),
        cursor=cursor,
        sweep=0,
        fence=1,
        owner="w",
        status=status,
        counts=fields.pop("counts", Counts()),
        failures=fields.pop("failures", 0),
    )
    values: dict[str, Any] = {
        "task": task,
        "heartbeat_at": NOW,
        "worked_seconds": 0.0,
        "waited_seconds": 0.0,
        "pause_reason": None,
        "last_error": None,
    }
    return TaskState(**values | fields)


def covered(_: KeyRange, cursor: str | None) -> float | None:
    """Cursors here are percent; `?` is one that tells nothing."""
    return None if cursor == "?" else float(cursor or 0) / 100


ENGINE: Any = SimpleNamespace(covered=covered)


@pytest.mark.parametrize(
    ("states", "fraction"),
    [
        ([state(cursor="50")], 0.5),
        ([state(TaskStatus.FINISHED), state(cursor="50")], 0.75),
        ([state(TaskStatus.FINISHED, cursor="?"), state(TaskStatus.WAITING)], 0.5),
        ([state(cursor="?")], None),
        ([state(cursor="?"), state(cursor="50")], 0.25),
        ([], None),
        # It deletes, and has not come any further: its keys tell nothing.
        ([state(counts=Counts(selected=10))], None),
        ([state()], 0.0),
    ],
)
def test_how_far(states: list[TaskState], fraction: float | None) -> None:
    assert _progress(ENGINE, job(), states, NOW).fraction == fraction


def test_a_job_that_has_ended_is_through() -> None:
    ended = job(status=JobStatus.FAILED, finished_at=NOW, counts=Counts(deleted=120))
    found = _progress(ENGINE, ended, [state(cursor="?")], NOW + timedelta(hours=5))
    assert (found.fraction, found.eta, found.elapsed, found.rate) == (1.0, None, timedelta(minutes=1), 2.0)


def test_when_it_will_end() -> None:
    found = _progress(ENGINE, job(started_at=ago(minutes=3)), [state(cursor="75")], NOW)
    assert found.eta == timedelta(minutes=1)
    assert _progress(ENGINE, job(), [state()], NOW).eta is None
    paused = job(status=JobStatus.PAUSED)
    assert _progress(ENGINE, paused, [state(cursor="75")], NOW).eta is None


def test_a_clock_that_went_back_makes_no_negative_time() -> None:
    found = _progress(ENGINE, job(started_at=NOW + timedelta(hours=1), counts=Counts(deleted=1)), [], NOW)
    assert found.elapsed == timedelta(0)
    assert found.rate > 0


def test_reasons_are_told_once_and_only_by_tasks_at_work() -> None:
    states = [
        state(pause_reason="rate limit"),
        state(pause_reason="rate limit"),
        state(TaskStatus.WAITING, pause_reason="long over"),
        state(TaskStatus.WAITING, failures=1, pause_reason="deadlock"),
    ]
    assert _progress(ENGINE, job(reason="ttl_pause is on"), states, NOW).reasons == (
        "ttl_pause is on",
        "rate limit",
        "deadlock",
    )
