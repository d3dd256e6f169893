"""Small loops: the same start, stop and handling of errors for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from threading import Event
from typing import ClassVar

import pytest

from lapse.errors import DatabaseUnavailable
from lapse.runner.service import Service

CALLER: ContextVar[str] = ContextVar("caller", default="none")
PATIENCE = 10.0


class Counting(Service):
    name = "counting"
    seconds = 3600.0
    at_once: ClassVar[bool] = True

    def __init__(self, errors: list[Exception] | None = None) -> None:
        super().__init__()
        self.rounds = 0
        self.callers: list[str] = []
        self.done = Event()
        self._errors = errors or []

    def run_once(self) -> None:
        self.rounds += 1
        self.callers.append(CALLER.get())
        self.done.set()
        if self._errors:
            raise self._errors.pop(0)


class Late(Counting):
    at_once = False


@pytest.fixture
def service() -> Iterator[Counting]:
    found = Counting()
    yield found
    found.close()


def again(service: Counting) -> None:
    service.done.clear()
    service.wake()
    assert service.done.wait(PATIENCE)


def test_a_round_at_once_and_then_when_woken(service: Counting) -> None:
    service.start()
    assert service.done.wait(PATIENCE)
    again(service)
    service.close()
    assert service.rounds == 2


def test_one_that_waits_first_does_nothing_until_woken() -> None:
    late = Late()
    late.start()
    try:
        assert not late.done.wait(0.05)
        again(late)
    finally:
        late.close()
    assert late.rounds == 1


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), ZeroDivisionError("oops")])
def test_an_error_is_told_and_the_loop_goes_on(error: Exception) -> None:
    service = Counting([error])
    failed: list[str] = []
    service.on_failure = failed.append
    service.start()
    try:
        assert service.done.wait(PATIENCE)
        again(service)
    finally:
        service.close()
    assert (failed, service.rounds) == (["counting"], 2)


def test_it_runs_in_the_context_of_its_starter(service: Counting) -> None:
    token = CALLER.set("me")
    try:
        service.start()
        assert service.done.wait(PATIENCE)
    finally:
        CALLER.reset(token)
    assert service.callers == ["me"]


def test_one_that_was_closed_can_be_started_again(service: Counting) -> None:
    for rounds in (1, 2):
        service.done.clear()
        service.start()
        assert service.done.wait(PATIENCE)
        service.close()
        assert service.rounds == rounds


def test_closing_what_never_started_returns(service: Counting) -> None:
    service.close()
    assert service.rounds == 0
