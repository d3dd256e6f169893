"""Row counts while a job runs, for the policies that ask for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lapse.catalog import policies
from lapse.engines.base import Batch
from lapse.errors import Drift
from lapse.runner import statistics as module
from lapse.runner.statistics import RowCounter
from lapse.runner.supervisor import Supervisor
from tests.unit.runner.build import NOW
from tests.unit.runner.rig import Rig


@pytest.fixture
def supervisor(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(module, "monotonic", lambda: rig.passed)
    rig.database.execute("INSERT INTO events VALUES (2, '2030-01-01 00:00:00'), (3, '2021-01-01 00:00:00')")
    return Supervisor(rig.catalog, "w1", rig.controller, rig.keeper)


@pytest.fixture
def counter(rig: Rig, supervisor: Supervisor) -> RowCounter:
    return RowCounter(rig.catalog, rig.keeper, supervisor)


def counted(rig: Rig) -> Any:
    (physical,) = rig.read(policies.list_tables)
    return None if physical.statistics is None else json.loads(physical.statistics)


def test_a_table_at_work_is_counted(rig: Rig, counter: RowCounter, supervisor: Supervisor) -> None:
    rig.declare("ttl_row_stats_poll_interval = '1 minute'")
    supervisor.watch(rig.runner(Batch(done=True)))
    counter.run_once()
    assert counted(rig) == {"total_rows": 3, "total_expired_rows": 2, "counted_at": NOW.isoformat()}


def test_it_is_counted_again_after_its_interval(rig: Rig, counter: RowCounter, supervisor: Supervisor) -> None:
    rig.declare("ttl_row_stats_poll_interval = '1 minute'")
    supervisor.watch(rig.runner(Batch(done=True)))
    counter.run_once()
    rig.database.execute("DELETE FROM events WHERE id = 1")
    rig.advance(59)
    counter.run_once()
    assert counted(rig)["total_rows"] == 3
    rig.advance(1)
    counter.run_once()
    assert (counted(rig)["total_rows"], counted(rig)["total_expired_rows"]) == (2, 1)


def test_a_policy_that_does_not_ask_is_not_counted(rig: Rig, counter: RowCounter, supervisor: Supervisor) -> None:
    rig.declare()
    supervisor.watch(rig.runner(Batch(done=True)))
    counter.run_once()
    assert counted(rig) is None


def test_a_worker_without_tasks_counts_nothing(rig: Rig, counter: RowCounter) -> None:
    rig.declare("ttl_row_stats_poll_interval = '1 minute'")
    rig.claim("w2")
    counter.run_once()
    assert counted(rig) is None


def test_a_table_that_cannot_be_counted_stops_nothing(
    rig: Rig, counter: RowCounter, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.declare("ttl_row_stats_poll_interval = '1 minute'")
    supervisor.watch(rig.runner(Batch(done=True)))

    def changed(*_: object) -> None:
        raise Drift("the table has changed")

    monkeypatch.setattr(rig.keeper, "declared", changed)
    counter.run_once()
    assert counted(rig) is None
