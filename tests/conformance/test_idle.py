"""A worker with nothing to do asks one question a second, however many policies there are, and misses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
from sqlalchemy import event

from lapse.app import Lapse
from lapse.catalog.policies import StoredPolicy
from lapse.runner import scheduler as scheduling
from lapse.runner import worker as working
from lapse.runner.scheduler import Scheduler
from tests.conformance.harness import Harness


@contextmanager
def counted(db: Lapse) -> Iterator[list[str]]:
    """The statements of this process on the database."""
    seen: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        seen.append(statement)

    event.listen(db.engine.database, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(db.engine.database, "before_cursor_execute", note)


def many(h: Harness, count: int, *, first: int = 0) -> None:
    for number in range(first, count):
        h.sql(f"CREATE TABLE t{number} (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
        h.sql(f"ALTER TABLE t{number} SET (ttl_expiration_expression = 'ts', ttl_grace = '0 seconds')")


def settled(h: Harness) -> Scheduler:
    """The scheduler of a worker that has done everything there was."""
    worker = h.db.worker()
    worker.run()
    scheduler = worker._scheduler
    for _ in range(2):
        assert scheduler.run_once(patient=True).jobs == ()
    assert scheduler.is_idle()
    return scheduler


@pytest.mark.parametrize("count", [1, 12])
def test_an_idle_look_is_one_statement(h: Harness, count: int) -> None:
    many(h, count)
    scheduler = settled(h)
    with counted(h.db) as statements:
        assert scheduler.is_idle()
    assert len(statements) == 1


CHANGES: dict[str, Callable[[Harness], object]] = {
    "due": lambda h: h.advance(hours=2),
    "changed": lambda h: h.sql("ALTER TABLE t0 SET (ttl_job_cron = '@daily')"),
    "removed": lambda h: h.sql("ALTER TABLE t0 RESET (ttl)"),
    "paused": lambda h: h.sql("ALTER TABLE t0 SET (ttl_pause = on)"),
    "setting": lambda h: h.sql("SET GLOBAL tidb_ttl_job_enable = 'OFF'"),
}


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_change_ends_idleness(h: Harness, what: str) -> None:
    many(h, 1)
    scheduler = settled(h)
    CHANGES[what](h)
    assert not scheduler.is_idle()


def test_a_new_policy_ends_idleness(h: Harness) -> None:
    many(h, 1)
    scheduler = settled(h)
    h.sql(f"CREATE TABLE other (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    assert not scheduler.is_idle()


def test_the_end_of_a_grace_period_ends_idleness(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events RESET (ttl)")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts', ttl_grace = '5 minutes')")
    scheduler = h.db.worker()._scheduler
    scheduler.run_once(patient=True)
    scheduler.run_once(patient=True)
    assert scheduler.is_idle()
    h.advance(minutes=6)
    assert not scheduler.is_idle()
    assert len(scheduler.run_once(patient=True).jobs) == 1


def test_the_window_of_the_day_ends_idleness(h: Harness) -> None:
    many(h, 1)
    h.sql("SET GLOBAL tidb_ttl_job_schedule_window_start_time = '13:00 +0000'")
    h.sql("SET GLOBAL tidb_ttl_job_schedule_window_end_time = '14:00 +0000'")
    scheduler = h.db.worker()._scheduler
    scheduler.run_once(patient=True)
    scheduler.run_once(patient=True)
    assert scheduler.is_idle()
    h.advance(minutes=61)
    assert not scheduler.is_idle()


def test_the_next_look_comes_when_a_table_falls_due(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "TICK_SECONDS", 600.0)
    many(h, 1)
    settled(h)
    now = h.clock.now()
    h.advance(seconds=3300 - (now - now.replace(minute=0, second=0, microsecond=0)).total_seconds())
    worker = h.db.worker()
    pauses = [worker.look(lambda tick: None) for _ in range(3)]
    assert all(200 < pause <= 300 for pause in pauses), pauses
    # However many fall due one after the other, looks do not follow each other at once.
    monkeypatch.setattr(worker, "seconds_until_due", lambda: 0.001)
    assert worker.look(lambda tick: None) == working.CLOSEST_SECONDS
    monkeypatch.undo()
    # One that is due and cannot be run, as it is paused, is not waited for.
    h.sql("ALTER TABLE t0 SET (ttl_pause = on)")
    h.advance(minutes=6)
    assert [worker.look(lambda tick: None) for _ in range(3)][1:] == [working.TICK_SECONDS] * 2


def test_a_worker_that_was_idle_works_when_a_table_falls_due(h: Harness) -> None:
    many(h, 2)
    worker = h.db.worker()
    serving = Thread(target=worker.serve)
    serving.start()
    try:
        _until(lambda: _jobs(h) == 2)
        h.sql("ALTER TABLE t1 SET (ttl_job_cron = '* * * * *')")
        _until(lambda: worker._scheduler.is_idle())
        h.insert((1, h.at(days=-3)), table="t1")
        h.advance(minutes=2)
        _until(lambda: h.ids("t1") == [])
        assert _jobs(h) > 2
    finally:
        worker.stop()
        serving.join()


def _jobs(h: Harness) -> int:
    return len(h.owner.history())


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        sleep(0.05)
    raise AssertionError("did not happen")


def test_a_run_asked_for_just_after_a_job_ends_idleness(h: Harness) -> None:
    """What is stored is then the same as before that job: due, and nothing active."""
    many(h, 1)
    scheduler = h.db.worker()._scheduler
    assert [job.status.is_active for job in scheduler.run_once(patient=True).jobs] == [False]
    h.db.request_run("t0")
    assert not scheduler.is_idle()


def test_more_than_a_round_reads_are_done_by_the_next_ones(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "MOST_DUE", 2)
    many(h, 5)
    scheduler = h.db.worker()._scheduler
    # The first round of a process looks at all of them, for partitions that have come.
    monkeypatch.setattr(scheduler, "_leaves_at", monotonic())
    made: list[int] = []
    for _ in range(3):
        tick = scheduler.run_once(patient=True)
        made.append(len(tick.jobs))
        assert tick.left_over is (len(made) < 3)
    assert (made, _jobs(h)) == ([2, 2, 1], 5)


def test_many_that_are_due_and_paused_let_a_worker_rest(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "MOST_DUE", 2)
    many(h, 5)
    scheduler = settled(h)
    for number in range(5):
        h.sql(f"ALTER TABLE t{number} SET (ttl_pause = true)")
    h.advance(hours=2)
    assert not scheduler.is_idle()
    for _ in range(2):
        assert not scheduler.run_once(patient=True).left_over
    assert scheduler.is_idle()


def test_a_job_at_work_does_not_make_rounds_follow_one_another(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "MOST_DUE", 2)
    many(h, 5)
    scheduler = settled(h)
    h.insert((1, h.at(days=-3)), table="t0")
    h.db.request_run("t0")
    assert len(scheduler.run_once(patient=True).jobs) == 1
    for number in range(1, 5):
        h.sql(f"ALTER TABLE t{number} SET (ttl_pause = true)")
    h.advance(hours=2)
    for _ in range(3):
        tick = scheduler.run_once(patient=True)
        assert [job.status.is_active for job in tick.jobs] == [True]
        assert not tick.left_over


def test_a_round_leaves_alone_what_another_worker_has_taken_meanwhile(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "FRESH_SECONDS", -1.0)
    many(h, 3)
    settled(h)
    h.advance(hours=2)
    first, second = h.db.worker()._scheduler, h.db.worker()._scheduler
    ahead = first._in_order

    def after_the_other(round_: Any) -> list[StoredPolicy]:
        assert len(second.run_once(patient=True).jobs) == 3
        return ahead(round_)

    monkeypatch.setattr(first, "_in_order", after_the_other)
    described = len(first._keeper._described)
    assert first.run_once(patient=True).jobs == ()
    assert (len(first._keeper._described), _jobs(h)) == (described, 6)
