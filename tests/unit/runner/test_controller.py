"""How hard to work: flat out on an idle server, little under load, not at all behind a closed gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from lapse.app import Lapse
from lapse.clock import ManualClock
from lapse.engines.base import Gauge
from lapse.model.blocked import BlockCode
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner import controller as module
from lapse.runner.controller import (
    CURRENT_SECONDS,
    HEAD_START,
    LEAST_RESTRAINT,
    URGENT_DUTY,
    YIELDING_SECONDS,
    Controller,
)
from tests.unit.runner.build import NOW


class Server:
    """Gauges that a test sets, and the seconds that pass."""

    def __init__(self) -> None:
        self.gauges: list[Gauge] = []
        self.reads = 0
        self.passed = 1000.0

    def read(self, connection: Connection, settings: Settings) -> list[Gauge]:
        self.reads += 1
        return self.gauges

    def load(self, value: float | None, **fields: Any) -> None:
        values: dict[str, Any] = {"name": "active sessions", "soft": 10.0, "stop": 20.0, "unit": ""}
        self.gauges = [Gauge(value=value, **values | fields)]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def database(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lapse]:
    monkeypatch.setattr(module, "monotonic", lambda: server.passed)
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=ManualClock(NOW)) as found:
        found.catalog.install()
        monkeypatch.setattr(found.engine, "gauges", server.read)
        yield found


@pytest.fixture
def controller(database: Lapse) -> Controller:
    return Controller(database.catalog)


def pause_after(controller: Controller, seconds: float = 0.1) -> float:
    return controller.pause_after(seconds, seconds)[0]


def test_an_idle_server_gets_no_rest(controller: Controller, server: Server) -> None:
    server.load(1.0)
    controller.run_once()
    assert controller.pause_after(0.1, 0.1) == (0.0, None)
    assert controller.batch_seconds() == controller._catalog.engine.features.target_seconds


def test_at_its_soft_limit_lapse_takes_the_gentle_share(controller: Controller, server: Server) -> None:
    server.load(10.0)
    controller.run_once()
    share = controller._catalog.engine.features.gentle_share
    assert pause_after(controller) == pytest.approx(0.1 / share - 0.1)
    assert controller.batch_seconds() == controller._catalog.engine.features.short_seconds


def test_the_reason_of_a_rest_names_the_worst_gauge(controller: Controller, server: Server) -> None:
    server.load(15.0)
    controller.run_once()
    assert controller.pause_after(0.1, 0.1)[1] == "yielding: active sessions 15 of 10"


def test_effort_goes_down_at_once_and_comes_back_slowly(controller: Controller, server: Server) -> None:
    server.load(10.0)
    controller.run_once()
    strained = pause_after(controller)
    server.load(0.0)
    server.passed += 1.0
    controller.run_once()
    better = pause_after(controller)
    assert 0 < better < strained
    server.passed += 60.0
    controller.run_once()
    assert pause_after(controller) == 0.0


def test_a_promise_in_danger_makes_it_work_harder(controller: Controller, server: Server) -> None:
    server.load(10.0)
    controller.run_once()
    urgent, _ = controller.pause_after(0.1, 0.1, urgent=True)
    assert urgent == pytest.approx(0.1 / URGENT_DUTY - 0.1)


def test_a_gate_closes_at_the_stop_limit(controller: Controller, server: Server) -> None:
    server.load(19.9)
    controller.run_once()
    assert controller.stop_reason() is None
    server.load(20.0)
    controller.run_once()
    assert controller.stop_reason() == "gate: active sessions 20 of 20"


def test_a_gate_that_stays_closed_is_shown_after_a_while(controller: Controller, server: Server) -> None:
    server.load(25.0, settings=("lapse_mode",))
    controller.run_once()
    assert controller.shut_gate(60.0) is None
    server.passed += 61.0
    shut = controller.shut_gate(60.0)
    assert shut is not None
    assert (shut.code, shut.hint) == (BlockCode.GATE, "its job goes on when it opens; see lapse_mode")
    server.load(0.0)
    controller.run_once()
    assert controller.shut_gate(60.0) is None


def test_what_cannot_be_read_stops_nothing(controller: Controller, server: Server) -> None:
    server.load(None, note="GRANT PROCESS")
    controller.run_once()
    assert controller.stop_reason() is None
    assert str(controller.readings[0]) == "active sessions: not available (GRANT PROCESS)"


def test_a_counter_is_judged_by_its_rate(controller: Controller, server: Server) -> None:
    server.load(1_000_000.0, counter=True)
    controller.run_once()
    assert controller.readings[0].value == 0.0
    server.load(1_000_050.0, counter=True)
    server.passed += 5.0
    controller.run_once()
    assert controller.readings[0].value == pytest.approx(10.0)


def test_what_jumps_about_is_averaged(controller: Controller, server: Server) -> None:
    server.load(0.0, averaged=True)
    controller.run_once()
    server.load(30.0, averaged=True)
    controller.run_once()
    assert controller.readings[0].value == pytest.approx(9.0)
    assert controller.stop_reason() is None


def test_tasks_begin_with_a_head_start_and_strain_takes_them_away(controller: Controller, server: Server) -> None:
    server.load(0.0)
    controller.run_once()
    assert (controller.allowed_tasks(8), controller.allowed_tasks(1)) == (HEAD_START, 1)
    server.load(9.0)
    controller.run_once()
    assert controller.allowed_tasks(8) == 1


def test_one_more_task_stays_only_if_it_pays(controller: Controller, server: Server) -> None:
    server.load(0.0)
    controller.run_once()
    for rows in (10_000, 20_000, 20_500):
        controller.count(rows)
        server.passed += 3.0
        controller.run_once()
    before = controller.allowed_tasks(8)
    controller.count(21_000)
    server.passed += 3.0
    controller.run_once()
    assert controller.allowed_tasks(8) == before == HEAD_START + 1


def test_what_is_shown_is_what_tasks_go_by(controller: Controller, server: Server, database: Lapse) -> None:
    server.load(3.0)
    controller.run_once()
    with database.observe() as seen:
        connection = seen._connection
        assert controller.current_readings(connection, seen.settings) is controller.readings
        assert server.reads == 1
        server.passed += CURRENT_SECONDS + 0.1
        server.load(4.0)
        assert controller.current_readings(connection, seen.settings)[0].value == 4.0


@pytest.mark.parametrize(("sql", "is_closed"), [("SELECT 0", False), ("SELECT 1", True), ("SELECT nonsense", True)])
def test_a_query_of_the_users_is_a_gate(database: Lapse, server: Server, sql: str, is_closed: bool) -> None:
    controller = Controller(database.catalog, sql)
    controller.run_once()
    assert (controller.stop_reason() is not None) is is_closed


def _strained(server: Server, *, application: float | None, own: float, **fields: Any) -> None:
    server.gauges = [
        Gauge(name="foreground", value=application, soft=1.0, application=True),
        Gauge(name="dirty pages", value=own, soft=0.75, stop=0.9, own=True, **fields),
    ]


def test_what_lapse_itself_raises_counts_only_beside_an_application(controller: Controller, server: Server) -> None:
    _strained(server, application=0.0, own=0.95)
    controller.run_once()
    assert controller.stop_reason() is None
    assert controller.pause_after(0.1, 0.1) == (0.0, None)
    assert controller.batch_seconds() == controller._catalog.engine.features.target_seconds
    assert (controller.readings[1].pressure > 1, controller.readings[1].counts) == (True, False)
    _strained(server, application=1.0, own=0.95)
    controller.run_once()
    assert controller.stop_reason() == "gate: dirty pages 0.95 of 0.9"


def test_what_lapse_fills_is_looked_at_often_when_it_is_nearly_full(controller: Controller, server: Server) -> None:
    """A log that is filled in seconds is full before the next look of those beside an application."""
    _strained(server, application=1.0, own=0.5)
    controller.run_once()
    assert controller.pause() == YIELDING_SECONDS
    _strained(server, application=1.0, own=0.6)
    controller.run_once()
    assert controller.pause() == Controller.seconds < YIELDING_SECONDS
    # What has no end is no fuller for it.
    server.gauges = [server.gauges[0], replace(server.gauges[1], stop=float("inf"))]
    controller.run_once()
    assert controller.pause() == YIELDING_SECONDS


def test_it_counts_where_it_cannot_be_told_whether_an_application_is_there(
    controller: Controller, server: Server
) -> None:
    _strained(server, application=None, own=0.95, note="GRANT PROCESS")
    controller.run_once()
    assert controller.stop_reason() == "gate: dirty pages 0.95 of 0.9"
    server.gauges = server.gauges[1:]
    controller.run_once()
    assert controller.stop_reason() == "gate: dirty pages 0.95 of 0.9"


def test_the_share_shrinks_until_the_log_is_below_its_limit_and_comes_back(
    controller: Controller, server: Server
) -> None:
    """The log that is written follows the share; four times too much of it at the gentle share."""
    gentle = controller._catalog.engine.features.gentle_share
    share, seen = gentle, []
    for _ in range(20):
        _strained(server, application=1.0, own=0.75 * 4 * share / gentle)
        server.gauges = [server.gauges[0], replace(server.gauges[1], stop=float("inf"))]
        server.passed += 1.0
        controller.run_once()
        share = 0.1 / (pause_after(controller) + 0.1)
        seen.append(share / gentle)
    assert min(seen[5:]) > 0.2 and max(seen[5:]) < 0.3
    for _ in range(30):
        _strained(server, application=1.0, own=0.0)
        server.passed += 1.0
        controller.run_once()
    assert pause_after(controller) == pytest.approx(0.1 / gentle - 0.1)


def test_the_share_does_not_shrink_for_an_application_that_may_not_be_there(
    controller: Controller, server: Server
) -> None:
    gentle = controller._catalog.engine.features.gentle_share
    for _ in range(50):
        _strained(server, application=None, own=0.89, note="GRANT PROCESS")
        controller.run_once()
    assert pause_after(controller) == pytest.approx(0.1 / gentle - 0.1)


def test_the_share_never_shrinks_to_nothing(controller: Controller, server: Server) -> None:
    gentle = controller._catalog.engine.features.gentle_share
    for _ in range(50):
        _strained(server, application=1.0, own=0.89)
        controller.run_once()
    assert pause_after(controller) == pytest.approx(0.1 / (gentle * LEAST_RESTRAINT) - 0.1)


def test_a_gate_of_one_table_holds_for_no_other(controller: Controller, server: Server) -> None:
    events, logs = TableName("events"), TableName("logs")
    server.load(25.0, table=events, settings=("lapse_vacuum_debt_limit",))
    controller.run_once()
    server.passed += 61.0
    assert controller.stop_reason(events) == "gate: active sessions of events 25 of 20"
    assert controller.shut_gate(60.0, events) is not None
    assert (controller.stop_reason(logs), controller.shut_gate(60.0, logs)) == (None, None)
    server.load(10.0, table=events)
    controller.run_once()
    assert controller.pause_after(0.1, 0.1, table=events)[1] == "yielding: active sessions of events 10 of 10"
    assert controller.pause_after(0.1, 0.1, table=logs) == (0.0, None)
    assert controller.allowed_tasks(5) == HEAD_START


def test_the_tables_at_work_are_looked_at(
    controller: Controller, database: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[TableName]] = []

    def read(connection: Connection, settings: Settings, names: set[TableName]) -> list[Gauge]:
        asked.append(names)
        return []

    monkeypatch.setattr(database.engine, "table_gauges", read)
    with controller.at_work(TableName("events")), controller.at_work(TableName("events")):
        controller.run_once()
    controller.run_once()
    assert asked == [{TableName("events")}]
