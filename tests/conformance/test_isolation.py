"""One table's trouble is its own: the others are on time, and what is wrong is said with a code and a way out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from lapse.catalog import policies
from lapse.engines.base import Checkpoint, Deleter, Target
from lapse.engines.values import Batch
from lapse.errors import Blocked, DatabaseError, LapseError, NotPermitted, Retryable
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus, KeyRange
from lapse.model.settings import Settings
from lapse.runner import jobs as job_keeping
from lapse.runner.atonce import AtOnce
from lapse.runner.jobs import JobKeeper
from lapse.runner.worker import Worker
from tests.conformance.harness import Harness

SOON_SECONDS = 5.0
"""A lock is waited for for a second; the rest is the machine's."""


def _two_tables(h: Harness) -> None:
    for name in ("broken", "healthy"):
        h.sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
        h.insert((1, h.at(days=-2)), (2, h.at()), table=name)


class Failing(Deleter):
    """Fails for good on one table, as a privilege that is lacking or a trigger that is broken does."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        raise self.error

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        raise self.error

    def restart(self) -> None:
        pass


def _fail_on(h: Harness, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    deleter = h.db.engine.deleter

    def failing(target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        if target.declared.table.name.name == "broken":
            return Failing(error)
        return deleter(target, span, cursor)

    monkeypatch.setattr(h.db.engine, "deleter", failing)
    monkeypatch.setattr(job_keeping, "TASK_BACKOFF_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotPermitted("permission denied"), BlockCode.PRIVILEGE),
        (DatabaseError("some other refusal"), BlockCode.ERROR),
        (ZeroDivisionError("a mistake in the code"), BlockCode.ERROR),
    ],
    ids=["privilege", "refusal", "mistake"],
)
def test_a_table_whose_delete_fails_for_good_blocks_itself_alone(
    h: Harness, monkeypatch: pytest.MonkeyPatch, error: Exception, code: BlockCode
) -> None:
    _two_tables(h)
    _fail_on(h, monkeypatch, error)
    logging.getLogger("lapse").setLevel(logging.CRITICAL)
    result = h.run(None)
    assert {job.table.name: job.status for job in result.jobs} == {
        "broken": JobStatus.FAILED,
        "healthy": JobStatus.FINISHED,
    }
    assert h.ids("healthy") == [2]
    assert h.ids("broken") == [1, 2]
    status = {each.table.name: each for each in h.db.status()}
    assert (status["broken"].state, status["broken"].blocked) == ("blocked", code)
    assert str(error) in (status["broken"].reason or "")
    assert status["healthy"].state == "idle"


def test_a_table_that_cannot_be_planned_blocks_itself_alone(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    _two_tables(h)
    choose = h.db.engine.choose_path

    def fail(*arguments: object) -> object:
        if "broken" in str(arguments[1]):
            raise Retryable("the table stayed locked")
        return choose(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(h.db.engine, "choose_path", fail)
    result = h.run(None)
    assert result.failed
    assert [(skip.table.name, skip.blocked) for skip in result.skipped] == [("broken", BlockCode.LOCKED)]
    assert h.ids("healthy") == [2]
    failures = [job for job in h.db.history() if job.table.name == "broken"]
    assert [job.status for job in failures] == [JobStatus.FAILED]
    # The same again is not written into the history again, and it is tried ever more rarely.
    worker = Worker(h.db.catalog)
    pauses = []
    for _ in range(3):
        (status,) = [each for each in h.db.status() if each.table.name == "broken"]
        assert status.next_run_at is not None
        pauses.append((status.next_run_at - h.now).total_seconds())
        h.clock.advance(status.next_run_at - h.now)
        worker._scheduler.run_once()
    assert pauses[0] < pauses[1] < pauses[2] <= job_keeping.MAX_BLOCKED_SECONDS
    assert len([job for job in h.db.history() if job.table.name == "broken"]) == 1
    monkeypatch.undo()
    h.db.resume("broken")
    h.run("broken")
    assert h.ids("broken") == [2]


def test_a_locked_table_keeps_no_other_waiting(h: Harness) -> None:
    _two_tables(h)
    assert h.db.status()
    with h.locked("broken"):
        started = monotonic()
        result = h.run(None)
        assert monotonic() - started < SOON_SECONDS
        assert [(skip.table.name, skip.blocked) for skip in result.skipped] == [("broken", BlockCode.LOCKED)]
        assert h.ids("healthy") == [2]
    h.advance(minutes=1)
    h.run(None)
    assert h.ids("broken") == [2]


def test_looking_at_a_locked_table_ends_soon(h: Harness) -> None:
    _two_tables(h)
    assert h.db.status()
    with h.locked("broken"):
        for look in (lambda: h.db.preview("broken"), lambda: h.db.doctor(), lambda: h.db.status()):
            started = monotonic()
            with suppress(Blocked):
                look()
            assert monotonic() - started < SOON_SECONDS
        assert any("locked" in finding.text for finding in h.db.doctor())


@pytest.mark.parametrize("change", ["DROP TABLE broken", "ALTER TABLE broken DROP COLUMN ts"], ids=["table", "column"])
def test_a_table_that_is_gone_blocks_itself_alone(h: Harness, change: str) -> None:
    if "COLUMN" in change and h.features.keeps_columns:
        pytest.skip("the database refuses to drop the column")
    _two_tables(h)
    with h.client() as connection:
        connection.exec_driver_sql(change)
    result = h.run(None)
    assert result.failed
    assert h.ids("healthy") == [2]
    (status,) = [each for each in h.db.status() if each.table.name == "broken"]
    assert status.blocked in (BlockCode.TABLE_GONE, BlockCode.COLUMN_CHANGED)
    with pytest.raises(LapseError):
        h.db.resume("broken")
    assert h.db.status()[0].state == "blocked", "what could not be resumed is as it was"


def test_a_column_that_a_policy_reads_is_kept_by_the_database(h: Harness) -> None:
    if not h.features.keeps_columns:
        pytest.skip("the database lets the column go")
    _two_tables(h)
    with pytest.raises(DatabaseError, match="ts"), h.owner.engine.connection() as connection:
        connection.exec_driver_sql("ALTER TABLE broken DROP COLUMN ts")
    assert not h.run(None).failed
    assert (h.ids("broken"), h.ids("healthy")) == ([2], [2])


def test_a_replaced_table_is_blocked_until_it_is_resumed(h: Harness) -> None:
    _two_tables(h)
    h.run(None)
    with h.client() as connection:
        connection.exec_driver_sql("DROP TABLE broken")
        connection.exec_driver_sql(f"CREATE TABLE broken (id INTEGER PRIMARY KEY, ts {h.backend.instant})")
    h._may_lack_grants = True
    h.insert((1, h.at(days=-9)), (3, h.at(days=-2)), (4, h.at()), table="broken")
    assert h.run("broken").deleted == 0
    (status,) = [each for each in h.db.status() if each.table.name == "broken"]
    assert status.blocked is BlockCode.TABLE_REPLACED
    assert "lapse resume" in (status.reason or "")
    # A parameter is no word about the table.
    h.sql("ALTER TABLE broken SET (ttl_delete_batch_size = 7)")
    assert h.run("broken").deleted == 0
    h.db.resume("broken")
    h._may_lack_grants = True
    assert h.run("broken").deleted == 2
    assert h.ids("broken") == [4]


def test_a_due_table_gets_one_job_however_many_workers_look(h: Harness) -> None:
    for number in range(6):
        name = f"t{number}"
        h.sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    others = [h.open() for _ in range(3)]
    threads = [Thread(target=_look, args=(Worker(other.catalog),)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        other.close()
    assert sorted(job.table.name for job in h.db.history()) == [f"t{number}" for number in range(6)]


def _look(worker: Worker) -> None:
    worker._scheduler.run_once()


def test_a_service_survives_any_error(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.events()
    worker = Worker(h.db.catalog)
    calls: list[int] = []
    told: list[str] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("a cancellation could not be delivered")

    monkeypatch.setattr(worker._supervisor, "run_once", fail)
    logging.getLogger("lapse").setLevel(logging.CRITICAL)
    worker._supervisor.on_failure = told.append
    worker._supervisor.start()
    _until(lambda: len(calls) >= 2)
    assert told[0] == "supervisor"
    worker._supervisor.close()


def test_a_task_thread_that_died_is_replaced(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.events()
    worker = Worker(h.db.catalog)
    died: list[int] = []
    monkeypatch.setattr(worker, "_serve_tasks", died.append)
    worker._go_by(Settings.from_texts({}))
    threads: dict[int, Thread] = {}
    for _ in range(2):
        worker._start_threads(threads)
        for thread in threads.values():
            thread.join()
    assert sorted(died) == sorted([*threads] * 2)


def test_workers_wait_for_the_grace_period_and_people_do_not(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    worker = Worker(h.db.catalog)
    assert worker._scheduler.run_once(patient=True).jobs == ()
    (status,) = h.db.status()
    assert status.state == "grace"
    h.advance(minutes=11)
    worker = Worker(h.db.catalog)
    assert len(worker._scheduler.run_once(patient=True).jobs) == 1
    while worker.work_once() is not None:
        continue
    assert h.ids() == [2]
    h.insert((3, h.at(hours=-13)))
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 2 DAY")
    assert h.db.policy("events").grace_until is None or h.db.policy("events").grace_until <= h.now  # type: ignore[operator]
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 12 HOUR")
    assert h.db.policy("events").grace_until > h.now  # type: ignore[operator]
    assert worker._scheduler.run_once(patient=True).jobs == ()
    h.run()
    assert h.ids() == [2]


def test_a_grace_period_that_lasts_follows_its_parameter(h: Harness) -> None:
    h.events()
    declared = h.now
    h.advance(minutes=2)
    for words, length in (("1 hour", timedelta(hours=1)), ("5 minutes", timedelta(minutes=5))):
        h.sql(f"ALTER TABLE events SET (ttl_grace = '{words}')")
        assert h.db.policy("events").grace_until == declared + length
    h.sql("ALTER TABLE events SET (ttl_grace = '0 seconds')")
    assert h.db.policy("events").grace_until is None
    h.sql("ALTER TABLE events SET (ttl_grace = '1 hour')")
    assert h.db.policy("events").grace_until is None


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, "it never happened"


@contextmanager
def _after_planning(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> Iterator[list[object]]:
    """Something happens once, between a job's plan and its creation; what it gave is in the list then."""
    plan = JobKeeper._plan
    happened: list[object] = []

    def plan_and_change(keeper: JobKeeper, *given: Any) -> Any:
        planned = plan(keeper, *given)
        if not happened:
            happened.append(change())
        return planned

    with monkeypatch.context() as patched:
        patched.setattr(JobKeeper, "_plan", plan_and_change)
        yield happened


def test_a_job_that_was_planned_before_its_policy_was_changed_is_not_created(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise rows would go that are not expired any more."""
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    h.db.resume("events")
    with _after_planning(monkeypatch, lambda: h.owner.execute("ALTER TABLE events TTL = ts + INTERVAL 30 DAY")) as done:
        h.run()
    assert (len(done), h.ids()) == (1, [1, 2])
    h.advance(days=31)
    h.run()
    assert h.ids() == []


@pytest.mark.parametrize("at_once", [True, False])
def test_a_policy_that_is_suspended_while_a_job_is_planned_stays_suspended(
    h: Harness, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)))
    if not at_once:
        monkeypatch.setattr(AtOnce, "limit_for", lambda *_: 0)
    h.run()
    h.insert((3, h.at(days=-2)), (4, h.at(days=-2)))

    def suspend() -> None:
        with h.db.catalog.writing() as connection:
            policies.suspend_policies(connection, BlockCode.DATABASE_COPIED, h.now)

    with _after_planning(monkeypatch, suspend) as done:
        h.run()
    (stored,) = h.db.policies()
    assert (len(done), stored.suspended, h.ids()) == (1, BlockCode.DATABASE_COPIED, [3, 4])
