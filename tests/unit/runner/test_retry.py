"""What others disturb is tried again a few times, and never what fails for another reason."""

from __future__ import annotations

import random

import pytest

from lapse.errors import DatabaseError, Locked, Retryable
from lapse.runner import retry
from lapse.runner.retry import ATTEMPTS, FIRST_PAUSE_SECONDS, retried


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(retry, "sleep", slept.append)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    return slept


class Flaky:
    def __init__(self, failures: int, error: Exception) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    @retried
    def act(self, value: int, *, plus: int = 0) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return value + plus


def test_success_needs_one_call(pauses: list[float]) -> None:
    flaky = Flaky(0, Retryable("busy"))
    assert flaky.act(1, plus=2) == 3
    assert (flaky.calls, pauses) == (1, [])


def test_it_is_tried_again_with_growing_pauses(pauses: list[float]) -> None:
    flaky = Flaky(ATTEMPTS - 1, Retryable("busy"))
    assert flaky.act(1) == 1
    assert flaky.calls == ATTEMPTS
    assert pauses == [FIRST_PAUSE_SECONDS * 2**attempt for attempt in range(ATTEMPTS - 1)]


def test_the_last_error_is_the_callers(pauses: list[float]) -> None:
    flaky = Flaky(ATTEMPTS, Retryable("still busy"))
    with pytest.raises(Retryable, match="still busy"):
        flaky.act(1)
    assert flaky.calls == ATTEMPTS


def test_a_lock_is_such_a_disturbance(pauses: list[float]) -> None:
    flaky = Flaky(1, Locked("locked"))
    assert flaky.act(5) == 5
    assert len(pauses) == 1


@pytest.mark.parametrize("error", [DatabaseError("no"), ValueError("no")])
def test_other_errors_are_not_tried_again(error: Exception, pauses: list[float]) -> None:
    flaky = Flaky(1, error)
    with pytest.raises(type(error)):
        flaky.act(1)
    assert (flaky.calls, pauses) == (1, [])


def test_the_name_stays() -> None:
    assert Flaky.act.__name__ == "act"
