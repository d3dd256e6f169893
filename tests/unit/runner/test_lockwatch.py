"""A lock is told once when it has lasted for a while, by whichever thread comes first, and once when it is over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.clock import ManualClock
from lapse.model.table import TableName
from lapse.runner import lockwatch
from lapse.runner.events import LockWait, NullListener
from lapse.runner.lockwatch import TOLD_AFTER_SECONDS, LockWatch
from tests.unit.runner.build import EVENTS, NOW

OTHER = TableName("other")


class Heard(NullListener):
    def __init__(self) -> None:
        self.told: list[str] = []

    def locked(self, event: LockWait) -> None:
        self.told.append(f"locked: {event.what}")

    def unlocked(self, event: LockWait, seconds: float) -> None:
        self.told.append(f"free: {event.what} after {seconds:.0f} s")


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    passed = [0.0]
    monkeypatch.setattr(lockwatch, "monotonic", lambda: passed[0])
    return passed


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watch(heard: Heard) -> LockWatch:
    return LockWatch(heard, ManualClock(NOW))


def test_a_short_wait_is_not_told(watch: LockWatch, heard: Heard, seconds: list[float]) -> None:
    watch.met(EVENTS)
    seconds[0] = TOLD_AFTER_SECONDS - 0.01
    watch.tell(EVENTS)
    assert not watch.is_long(EVENTS)
    watch.over(EVENTS)
    assert heard.told == []


def test_a_long_wait_is_told_once(watch: LockWatch, heard: Heard, seconds: list[float]) -> None:
    watch.met(EVENTS)
    for seconds[0] in (1.0, 2.0, 30.0):
        watch.met(EVENTS)
        watch.tell(EVENTS)
    watch.over(EVENTS)
    watch.over(EVENTS)
    assert heard.told == ["locked: table events", "free: table events after 30 s"]


def test_it_counts_from_the_first_meeting(watch: LockWatch, seconds: list[float]) -> None:
    first = watch.met(EVENTS)
    seconds[0] = 5.0
    assert watch.met(EVENTS) is first
    assert watch.is_long(EVENTS)


def test_seconds_that_were_waited_before_count(watch: LockWatch, heard: Heard, seconds: list[float]) -> None:
    event = watch.met(None, waited=4.0)
    assert event.since == NOW - timedelta(seconds=4)
    watch.tell(None)
    assert heard.told == ["locked: the database"]


def test_tables_are_told_apart(watch: LockWatch, heard: Heard, seconds: list[float]) -> None:
    watch.met(EVENTS)
    seconds[0] = 2.0
    watch.met(OTHER)
    watch.tell(EVENTS)
    watch.tell(OTHER)
    watch.over(OTHER)
    assert heard.told == ["locked: table events"]


def test_a_new_wait_after_one_that_is_over_is_told_again(watch: LockWatch, heard: Heard, seconds: list[float]) -> None:
    for start in (0.0, 100.0):
        seconds[0] = start
        watch.met(EVENTS)
        seconds[0] = start + 2
        watch.tell(EVENTS)
        watch.over(EVENTS)
    assert heard.told.count("locked: table events") == 2


def test_nothing_is_told_where_no_task_waits(watch: LockWatch, heard: Heard, seconds: list[float]) -> None:
    watch.tell(EVENTS)
    watch.over(EVENTS)
    assert not watch.is_long(EVENTS)
    assert heard.told == []


def test_the_words(watch: LockWatch, seconds: list[float]) -> None:
    assert str(watch.met(EVENTS)) == "table events is locked by another session, since 2026-03-01 12:00:00 UTC"
