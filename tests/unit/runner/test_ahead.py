"""Which tables of a round are still due: asked seldom by a lone worker, and before each job among others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from lapse.catalog import policies
from lapse.catalog.policies import PhysicalTable
from lapse.runner import scheduler
from lapse.runner.scheduler import FRESH_SECONDS, _Ahead


class _Clock:
    def __init__(self) -> None:
        self.passed = 0.0
        self.asked: list[list[int]] = []
        self.taken: set[int] = set()

    @contextmanager
    def reading(self) -> Iterator[None]:
        yield

    def untouched(self, connection: object, several: Sequence[PhysicalTable]) -> set[int]:
        self.asked.append([each.id for each in several])
        return {each.id for each in several} - self.taken


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    found = _Clock()
    monkeypatch.setattr(scheduler, "monotonic", lambda: found.passed)
    monkeypatch.setattr(policies, "untouched", found.untouched)
    return found


def _ahead(clock: _Clock) -> _Ahead:
    catalog: Any = clock
    return _Ahead(catalog, 0.0)


def _table(number: int) -> PhysicalTable:
    return PhysicalTable(
        id=number,
        policy_id=number,
        partition=None,
        partition_schema=None,
        next_run_at=None,
        blocked_reason=None,
        statistics=None,
    )


TABLES = [_table(number) for number in range(4)]


def test_a_lone_worker_asks_for_all_of_them_once_in_a_while(clock: _Clock) -> None:
    ahead = _ahead(clock)
    assert ahead.come_to(TABLES) == set()
    assert (ahead.is_due(TABLES[0]), clock.asked) == (True, [])
    clock.passed += 2 * FRESH_SECONDS
    assert all(ahead.is_due(each) for each in TABLES[1:])
    assert clock.asked == [[1, 2, 3]]


def test_where_others_are_at_work_it_is_asked_before_each(clock: _Clock) -> None:
    ahead = _ahead(clock)
    clock.passed += 2 * FRESH_SECONDS
    clock.taken = {1}
    assert ahead.come_to(TABLES) == {1}
    clock.passed += FRESH_SECONDS / 10
    assert [ahead.is_due(each) for each in TABLES[:2]] == [True, False]
    assert clock.asked == [[0, 1, 2, 3], [0, 2, 3]]
    # No other worker was met since.
    clock.passed += FRESH_SECONDS / 10
    assert ahead.is_due(TABLES[2])
    assert len(clock.asked) == 2


def test_one_that_is_not_ahead_is_asked_for_alone(clock: _Clock) -> None:
    ahead = _ahead(clock)
    ahead.come_to(TABLES[:2])
    clock.passed += 2 * FRESH_SECONDS
    clock.taken = {3}
    assert not ahead.is_due(TABLES[3])
    assert clock.asked == [[3]]
