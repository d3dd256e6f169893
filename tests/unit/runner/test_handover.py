"""Tasks on their way from the scheduler to a thread that waits for one."""

from __future__ import annotations

from threading import Event, Thread

from lapse.model.job import Counts, KeyRange, Task, TaskStatus
from lapse.model.settings import Settings
from lapse.runner.worker import Claim, _Handover
from tests.unit.runner.build import NOW

TASK = Task(
    id=1,
    job_id=2,
    ordinal=0,
    range=KeyRange(),
    cursor=None,
    sweep=0,
    fence=1,
    owner="w1",
    status=TaskStatus.RUNNING,
    counts=Counts(),
)
CURRENT = Settings.from_texts({})


def test_no_task_is_claimed_for_threads_that_do_not_wait() -> None:
    handover = _Handover(Event())
    assert not handover.is_free()
    assert handover.next() is None


def test_a_thread_that_waits_gets_the_task_and_there_is_room_for_no_other() -> None:
    handover, taken = _Handover(Event()), list[Claim | None]()
    thread = Thread(target=lambda: taken.append(handover.wait(0, may_work=True)[1]))
    thread.start()
    while not handover.is_free():
        continue
    handover.take(TASK, CURRENT, NOW)
    thread.join(5)
    assert taken == [Claim(task=TASK, settings=CURRENT, now=NOW)]
    assert not handover.is_free()


def test_a_thread_that_may_not_work_is_handed_nothing() -> None:
    handover, seen = _Handover(Event()), list[tuple[int, Claim | None]]()
    thread = Thread(target=lambda: seen.append(handover.wait(0, may_work=False)))
    thread.start()
    assert not handover.is_free()
    handover.take(TASK, CURRENT, NOW)
    handover.announce_round()
    thread.join(5)
    assert seen == [(1, None)]
    # What is left when a worker stops is given back.
    assert handover.next() == Claim(task=TASK, settings=CURRENT, now=NOW)


def test_stopping_wakes_a_thread_that_waits() -> None:
    stop = Event()
    handover = _Handover(stop)
    thread = Thread(target=lambda: handover.wait(0, may_work=True))
    thread.start()
    stop.set()
    handover.announce_round()
    thread.join(5)
    assert not thread.is_alive()
