"""The pace of what a command does in batches: gates, rests and limits, each told, none inside a transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lapse.runner import pacing as module
from lapse.runner.limiter import Limit, Limiter
from lapse.runner.pacing import Pacer, pacing
from lapse.runner.task import GATE_SECONDS
from tests.unit.runner.build import stored
from tests.unit.runner.rig import Rig

DECLARE = "ALTER TABLE events SET (ttl_expiration_expression = 'at')"


class Gates:
    """A controller whose gate is closed for the first looks."""

    def __init__(self, *closed: str) -> None:
        self._closed = list(closed)

    def stop_reason(self) -> str | None:
        return self._closed.pop(0) if self._closed else None

    def batch_seconds(self) -> float:
        return 0.25

    def pause_after(self, seconds: float, busy: float) -> tuple[float, str | None]:
        return 3 * seconds, "an application is at work"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    found: list[float] = []
    monkeypatch.setattr(module, "sleep", found.append)
    yield found


def test_a_closed_gate_is_waited_for_and_told(rig: Rig, slept: list[float]) -> None:
    told: list[str] = []
    pace = Pacer(Gates("replica lag", "replica lag"), Limiter(rig.database.catalog), [])  # type: ignore[arg-type]
    pace.before(100, told.append)
    assert (told, slept) == (["replica lag"] * 2, [GATE_SECONDS] * 2)


def test_rests_follow_the_controller(rig: Rig, slept: list[float]) -> None:
    pace = Pacer(Gates(), Limiter(rig.database.catalog), [])  # type: ignore[arg-type]
    pace.after(0.5)
    assert slept == [1.5]
    assert pace.batch_seconds(9.0) == 0.25


def test_without_a_controller_only_limits_count(rig: Rig, slept: list[float]) -> None:
    told: list[str] = []
    pace = Pacer(None, Limiter(rig.database.catalog), [Limit(name="t", per_second=100)])
    pace.before(50, told.append)
    assert slept == []
    pace.before(50, told.append)
    assert slept == [pytest.approx(0.5)]
    assert told == ["rate limit of 100 rows/s"]
    pace.after(1.0)
    assert len(slept) == 1
    assert pace.batch_seconds(9.0) == 9.0


def test_what_is_over_soon_looks_at_no_gauges(rig: Rig) -> None:
    rig.database.execute(DECLARE)
    with pacing(rig.database.catalog, stored(), None, is_long=False) as pace:
        assert pace.batch_seconds(1.0) == 1.0


def test_what_takes_longer_does(rig: Rig, slept: list[float]) -> None:
    rig.database.execute(DECLARE)
    with pacing(rig.database.catalog, None, None, is_long=True) as pace:
        pace.before(10, lambda reason: None)
        assert 0 < pace.batch_seconds(99.0) < 99.0
