"""Rate limits: one row in the catalog each, exact for the sum of all that take, waited for outside transactions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.clock import ManualClock
from lapse.model.policy import Policy
from lapse.runner.limiter import Limit, Limiter, cap, delete_limits, give_back, select_limits, take
from tests.unit.runner.build import NOW, settings, stored

LIMIT = Limit(name="delete:1", per_second=1_000)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lapse]:
    clock = ManualClock(NOW)
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=clock) as found:
        found.catalog.install()
        monkeypatch.setattr(found.engine, "stopwatch", lambda connection: clock.now())
        yield found


class Waits:
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.reasons: list[str] = []

    def __call__(self, seconds: float, reason: str) -> None:
        self.seconds.append(seconds)
        self.reasons.append(reason)


def taken(database: Lapse, count: int, at: datetime = NOW, limit: Limit = LIMIT) -> float:
    with database.catalog.writing() as connection:
        return take(connection, limit.name, limit.per_second, count, at)


def test_the_first_rows_are_free_and_the_next_wait_for_them(database: Lapse) -> None:
    assert [taken(database, 500) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]


def test_time_that_passes_frees_rows_but_saves_none_up(database: Lapse) -> None:
    taken(database, 1_000)
    assert taken(database, 1_000, NOW + timedelta(milliseconds=400)) == pytest.approx(0.6)
    assert taken(database, 1_000, NOW + timedelta(hours=1)) == 0.0
    assert taken(database, 1_000, NOW + timedelta(hours=1)) == 1.0


def test_rows_that_were_not_used_are_given_back(database: Lapse) -> None:
    taken(database, 1_000)
    with database.catalog.writing() as connection:
        give_back(connection, LIMIT.name, LIMIT.per_second, 900)
    assert taken(database, 1) == pytest.approx(0.1)


def test_limits_do_not_share_rows(database: Lapse) -> None:
    taken(database, 5_000)
    assert taken(database, 1, limit=Limit(name="delete:2", per_second=10)) == 0.0


def test_acquiring_waits_for_the_slowest(database: Lapse) -> None:
    limits = [LIMIT, Limit(name="delete", per_second=100)]
    waits, limiter = Waits(), Limiter(database.catalog)
    limiter.acquire(limits, 100, waits)
    assert waits.seconds == []
    limiter.acquire(limits, 100, waits)
    assert waits.seconds == [1.0]
    assert waits.reasons == ["rate limit of 100 rows/s"]


def test_paying_waits_until_what_was_used_is_free_again(database: Lapse) -> None:
    waits = Waits()
    Limiter(database.catalog).pay([LIMIT], 250, waits)
    assert waits.seconds == [0.25]


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_costs_nothing(database: Lapse, count: int) -> None:
    waits, limiter = Waits(), Limiter(database.catalog)
    limiter.acquire([LIMIT], count, waits)
    limiter.pay([LIMIT], count, waits)
    limiter.refund([LIMIT], count)
    limiter.acquire([], 10_000, waits)
    assert waits.seconds == []
    assert taken(database, 1) == 0.0


def test_a_refund_through_the_limiter(database: Lapse) -> None:
    limiter = Limiter(database.catalog)
    limiter.acquire([LIMIT], 1_000, Waits())
    limiter.refund([LIMIT], 1_000)
    assert taken(database, 1) == 0.0


def test_waiting_happens_outside_a_transaction(database: Lapse) -> None:
    limiter, free = Limiter(database.catalog), []

    def wait(seconds: float, reason: str) -> None:
        with database.catalog.writing() as connection:
            free.append(database.engine.in_transaction(connection))

    limiter.acquire([LIMIT], 1_000, wait)
    limiter.acquire([LIMIT], 1_000, wait)
    assert free == [True]


def test_which_limits_hold() -> None:
    policy = stored(Policy(expression="at", delete_rate_limit=5, select_rate_limit=7))
    current = settings({"tidb_ttl_delete_rate_limit": "100"})
    assert delete_limits(policy, current) == [
        Limit(name="delete:1", per_second=5),
        Limit(name="delete", per_second=100),
    ]
    assert select_limits(policy) == [Limit(name="select:1", per_second=7)]
    assert delete_limits(stored(), settings()) == select_limits(stored()) == []


@pytest.mark.parametrize(
    ("size", "rates", "capped"),
    [(5_000, [], 5_000), (5_000, [1_000], 250), (100, [1_000], 100), (5_000, [1_000, 2], 1)],
)
def test_one_batch_uses_up_a_slice_of_a_limit_at_most(size: int, rates: list[int], capped: int) -> None:
    assert cap(size, [Limit(name=str(rate), per_second=rate) for rate in rates]) == capped
