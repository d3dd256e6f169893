"""Which tables are due, the jobs for them and the leases of their tasks: on an SQLite file, with a manual clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.catalog import jobs, policies, tasks
from lapse.catalog.tasks import Progress
from lapse.clock import ManualClock
from lapse.errors import Blocked, Fenced
from lapse.model.blocked import BlockCode
from lapse.model.job import PAUSED_BY_REQUEST, Counts, JobStatus, Task
from lapse.model.policy import PAUSED_BY_POLICY
from lapse.model.statement import JobAction
from lapse.runner.events import NullListener
from lapse.runner.jobs import JobKeeper
from lapse.runner.scheduler import Scheduler
from tests.unit.runner.build import NOW

CREATE = "CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT)"
DECLARE = "ALTER TABLE events SET (ttl_expiration_expression = 'at', ttl_job_cron = '0 * * * *', ttl_grace = '0 s')"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Lapse]:
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=clock) as found:
        found.execute(CREATE)
        found.execute("INSERT INTO events VALUES (1, '2020-01-01 00:00:00'), (2, '2030-01-01 00:00:00')")
        found.execute(DECLARE)
        yield found


@pytest.fixture
def scheduler(database: Lapse) -> Scheduler:
    return Scheduler(database.catalog, JobKeeper(database.catalog, "w1", NullListener()))


def claim(database: Lapse, owner: str, *, stale_before: timedelta = timedelta(minutes=1)) -> Task | None:
    with database.catalog.writing() as connection:
        now = database.engine.now(connection)
        found = tasks.claimable_tasks(connection, stale_before=now - stale_before, awake_at=now)
        return tasks.claim_task(connection, found, owner=owner, now=now)


def progress(cursor: str | None, **counts: int) -> Progress:
    return Progress(cursor=cursor, sweep=0, counts=Counts(**counts), worked_seconds=0.0, waited_seconds=0.0)


def saved(database: Lapse, lease: Task, cursor: str) -> None:
    with database.catalog.writing() as connection:
        tasks.save_progress(connection, lease, progress(cursor, deleted=1))


def test_a_new_table_is_due_at_once_and_gets_one_job(scheduler: Scheduler) -> None:
    (job,) = scheduler.run_once().jobs
    assert (job.status, job.cutoff) == (JobStatus.WAITING, NOW)
    assert [each.id for each in scheduler.run_once().jobs] == [job.id]


def test_a_table_that_was_asked_for_need_not_be_due(scheduler: Scheduler, database: Lapse) -> None:
    database.run()
    assert scheduler.run_once().jobs == ()
    assert len(scheduler.run_once(only=database.policy("events")).jobs) == 1


def test_the_next_job_comes_when_its_cron_says(scheduler: Scheduler, database: Lapse, clock: ManualClock) -> None:
    database.run()
    clock.advance(timedelta(minutes=59))
    assert scheduler.run_once().jobs == ()
    clock.advance(timedelta(minutes=1))
    (job,) = scheduler.run_once().jobs
    assert job.cutoff == NOW + timedelta(hours=1)


def test_a_worker_lets_the_grace_period_pass_and_a_person_does_not(
    scheduler: Scheduler, database: Lapse, clock: ManualClock
) -> None:
    database.execute("ALTER TABLE events RESET (ttl)")
    database.execute(DECLARE.replace("'0 s'", "'10 minutes'"))
    assert scheduler.run_once(patient=True).jobs == ()
    clock.advance(timedelta(minutes=10))
    assert len(scheduler.run_once(patient=True).jobs) == 1


def test_a_policy_that_is_paused_is_skipped_with_its_reason(scheduler: Scheduler, database: Lapse) -> None:
    database.pause("events")
    tick = scheduler.run_once()
    assert tick.jobs == ()
    (skip,) = tick.skipped
    assert (str(skip.table), skip.reason, skip.blocked) == ("events", PAUSED_BY_POLICY, None)


def test_a_table_that_is_gone_is_blocked_and_delays_no_other(scheduler: Scheduler, database: Lapse) -> None:
    database.execute("CREATE TABLE logs (id INTEGER PRIMARY KEY, at TEXT)")
    database.execute("INSERT INTO logs VALUES (1, '2020-01-01 00:00:00')")
    database.execute(DECLARE.replace("events", "logs"))
    with database.engine.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE events")
    tick = scheduler.run_once()
    assert [str(job.table) for job in tick.jobs if job.status.is_active] == ["logs"]
    assert [(str(skip.table), skip.blocked) for skip in tick.skipped] == [("events", BlockCode.TABLE_GONE)]


def test_an_idle_worker_is_told_so_until_something_changes(
    scheduler: Scheduler, database: Lapse, clock: ManualClock
) -> None:
    database.run()
    scheduler.run_once(patient=True)
    assert scheduler.is_idle()
    database.request_run("events")
    assert not scheduler.is_idle()


def test_what_was_asked_of_a_job_is_settled_in_the_next_round(scheduler: Scheduler, database: Lapse) -> None:
    (job,) = scheduler.run_once().jobs
    database.control(job.id, JobAction.PAUSE)
    assert [each.status for each in scheduler.run_once().jobs] == [JobStatus.PAUSED]
    database.control(job.id, JobAction.CANCEL)
    assert scheduler.run_once().jobs == ()
    assert database.job(job.id).job.status is JobStatus.CANCELLED


def test_a_paused_job_says_the_reason_of_now(scheduler: Scheduler, database: Lapse) -> None:
    (job,) = scheduler.run_once().jobs
    database.execute("ALTER TABLE events SET (ttl_pause = 'on')")
    assert [each.reason for each in scheduler.run_once().jobs] == [PAUSED_BY_POLICY]
    database.control(job.id, JobAction.PAUSE)
    database.execute("ALTER TABLE events SET (ttl_pause = 'off')")
    assert [each.reason for each in scheduler.run_once().jobs] == [PAUSED_BY_REQUEST]


def test_a_block_is_news_when_its_code_or_what_this_process_saw_is_another(
    scheduler: Scheduler, database: Lapse
) -> None:
    keeper = JobKeeper(database.catalog, "w1", NullListener())
    (stored,) = database.policies()

    def recorded(code: BlockCode, why: str) -> bool:
        with database.catalog.reading() as connection:
            (physical,) = policies.list_tables(connection, stored.id)
        return keeper.block(stored, physical, Blocked(code, why), always=False) is not None

    told = [
        recorded(code, why)
        for code, why in (
            (BlockCode.PRIVILEGE, "no right on a"),
            (BlockCode.PRIVILEGE, "no right on a"),
            (BlockCode.PRIVILEGE, "no right on b"),
            (BlockCode.LOCKED, "no right on b"),
        )
    ]
    assert told == [True, False, True, True]


def test_one_claim_wins(scheduler: Scheduler, database: Lapse) -> None:
    scheduler.run_once()
    first = claim(database, "w1")
    assert first is not None
    assert (first.owner, claim(database, "w2")) == ("w1", None)


def test_a_stale_owner_is_taken_over_from_its_checkpoint_and_fenced(
    scheduler: Scheduler, database: Lapse, clock: ManualClock
) -> None:
    scheduler.run_once()
    first = claim(database, "w1")
    assert first is not None
    saved(database, first, "7")
    clock.advance(timedelta(minutes=2))
    second = claim(database, "w2")
    assert second is not None
    assert (second.owner, second.cursor, second.fence) == ("w2", "7", first.fence + 1)
    with pytest.raises(Fenced):
        saved(database, first, "9")
    with database.catalog.reading() as connection:
        assert tasks.progress_of(connection, first.id).cursor == "7"


def test_a_heartbeat_keeps_a_task_and_tells_of_a_lost_one(
    scheduler: Scheduler, database: Lapse, clock: ManualClock
) -> None:
    scheduler.run_once()
    first = claim(database, "w1")
    assert first is not None
    clock.advance(timedelta(minutes=2))
    with database.catalog.writing() as connection:
        assert tasks.beat(connection, [first], clock.now()) == []
    assert claim(database, "w2") is None
    clock.advance(timedelta(minutes=2))
    assert claim(database, "w2") is not None
    with database.catalog.writing() as connection:
        assert tasks.beat(connection, [first], clock.now()) == [first.id]


def test_a_finished_task_refuses_its_own_worker(scheduler: Scheduler, database: Lapse) -> None:
    scheduler.run_once()
    lease = claim(database, "w1")
    assert lease is not None
    with database.catalog.writing() as connection:
        tasks.finish_task(connection, lease, progress(None, deleted=1))
    with pytest.raises(Fenced):
        saved(database, lease, "3")


def test_a_task_that_failed_rests_until_its_pause_is_over(
    scheduler: Scheduler, database: Lapse, clock: ManualClock
) -> None:
    scheduler.run_once()
    lease = claim(database, "w1")
    assert lease is not None
    with database.catalog.writing() as connection:
        tasks.resign_task(connection, lease, progress("5"))
        tasks.postpone_task(connection, lease.id, failures=1, not_before=NOW + timedelta(minutes=5))
    assert claim(database, "w2") is None
    clock.advance(timedelta(minutes=5))
    again = claim(database, "w2")
    assert again is not None
    assert (again.cursor, again.failures) == ("5", 1)


def test_history_is_forgotten_after_its_retention(scheduler: Scheduler, database: Lapse, clock: ManualClock) -> None:
    database.run()
    database.set_setting("lapse_history_retention", "30 days")
    clock.advance(timedelta(days=29))
    scheduler.run_once()
    with database.catalog.reading() as connection:
        kept = len(jobs.recent_jobs(connection, limit=10))
    clock.advance(timedelta(days=2))
    scheduler.run_once()
    with database.catalog.reading() as connection:
        assert len([job for job in jobs.recent_jobs(connection, limit=10) if job.cutoff == NOW]) == 0 < kept
