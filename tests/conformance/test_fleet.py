"""Several workers on one database: one job per table, leases, fences, one rate, one clock."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Thread

import pytest
from sqlalchemy import insert

from lapse.app import Lapse
from lapse.bench import table_for
from lapse.catalog import Catalog, meta, new_jobs, tasks
from lapse.catalog import settings as stored_settings
from lapse.catalog.schema import setting as setting_table
from lapse.errors import Fenced, InvalidValue, JobExists, LapseError
from lapse.model.job import Counts, Job, JobStatus, KeyRange, Path, PathKind, Task
from lapse.runner.clockwatch import ClockWatch
from lapse.runner.controller import Controller
from lapse.runner.events import BatchDone, Cause, NullListener
from lapse.runner.jobs import JobKeeper
from lapse.runner.limiter import Limit, Limiter
from lapse.runner.promise import Health
from lapse.runner.worker import Claim, Worker
from tests.conformance.harness import Harness
from tests.conformance.test_idle import _until, many

DUE_TABLES = 24


def _backlog(h: Harness, rows: int = 500) -> None:
    h.events()
    moment = h.at(days=-2)
    for start in range(0, rows, 500):
        h.insert(*((i, moment) for i in range(start, min(start + 500, rows))))


@contextmanager
def _other(h: Harness) -> Iterator[Lapse]:
    other = h.open()
    try:
        yield other
    finally:
        other.close()


def _create_job(h: Harness) -> int:
    worker = Worker(h.db.catalog)
    worker._scheduler.run_once()
    (job,) = h.db.jobs()
    return job.id


def _claim(h: Harness, owner: str) -> Task | None:
    with h.db.catalog.writing() as connection:
        found = tasks.claimable_tasks(connection, stale_before=h.now - timedelta(seconds=20), awake_at=h.now)
        return tasks.claim_task(connection, found, owner=owner, now=h.now)


def test_a_table_has_one_active_job(h: Harness) -> None:
    _backlog(h)
    _create_job(h)
    (stored,) = h.db.policies()
    (status,) = h.db.status()
    assert status.current is not None
    with pytest.raises(JobExists), h.db.catalog.writing() as connection:
        new_jobs.create_job(
            connection,
            table_id=status.current.table_id,
            stored=stored,
            name=stored.table,
            cutoff=h.now,
            path=Path(kind=PathKind.PHYSICAL),
            fingerprint="",
            ranges=[KeyRange()],
            now=h.now,
            owner="other",
        )
    assert len(h.db.jobs()) == 1


def test_two_workers_race_for_the_same_work(h: Harness) -> None:
    _backlog(h, 2000)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 20)")
    with _other(h) as second, _other(h) as third:
        threads = [Thread(target=db.run) for db in (h.db, second, third)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert h.ids() == []
    finished = [job for job in h.db.history() if job.counts.deleted]
    assert sum(job.counts.deleted for job in finished) == 2000
    assert len(finished) == 1


def test_a_claimed_task_is_not_claimed_again_until_its_owner_is_silent(h: Harness) -> None:
    _backlog(h)
    _create_job(h)
    first = _claim(h, "first")
    assert first is not None
    assert _claim(h, "second") is None
    h.advance(seconds=19)
    assert _claim(h, "second") is None
    h.advance(seconds=2)
    second = _claim(h, "second")
    assert second is not None
    assert (second.id, second.fence) == (first.id, first.fence + 1)


def test_the_old_owner_is_fenced_off_and_deletes_nothing(h: Harness) -> None:
    _backlog(h)
    job_id = _create_job(h)
    stale = _claim(h, "first")
    assert stale is not None
    h.advance(seconds=30)
    fresh = _claim(h, "second")
    assert fresh is not None
    runner = Worker(h.db.catalog)._prepare(Claim(task=stale, settings=_settings(h), now=h.now))
    with h.db.catalog.reading() as connection:
        before = tasks.progress_of(connection, stale.id)
    assert runner.run() == "fenced"
    assert len(h.ids()) == 500
    with pytest.raises(Fenced), h.db.catalog.writing() as connection:
        tasks.finish_task(connection, stale, before)
    h.advance(seconds=30)
    assert h.run_one().id == job_id
    assert h.ids() == []


def test_a_batch_that_commits_while_its_job_ends_is_counted(h: Harness) -> None:
    if not h.features.row_locks:
        pytest.skip("there is one writer at a time anyway")
    _backlog(h)
    job_id, lease = _create_job(h), _claim(h, "first")
    assert lease is not None

    def end() -> None:
        JobKeeper(h.db.catalog, "test", NullListener()).fail(job_id, LapseError("x"))

    ending = Thread(target=end)
    with h.db.catalog.writing() as connection:
        before = tasks.progress_of(connection, lease.id)
        tasks.save_progress(connection, lease, replace(before, counts=Counts(selected=7, deleted=7)))
        ending.start()
        ending.join(0.3)
        assert ending.is_alive(), "it did not wait for the batch"
    ending.join()
    (job,) = h.db.history()
    assert job.summary is not None
    assert job.counts.deleted == job.summary.success_rows == 7


def test_a_takeover_goes_on_from_the_checkpoint_with_the_same_cutoff_and_counts(h: Harness) -> None:
    _backlog(h)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 100)")
    job_id = _create_job(h)

    class Die(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            raise KeyboardInterrupt

    with _other(h) as doomed, pytest.raises(KeyboardInterrupt):
        Worker(doomed.catalog, Die()).work_once()
    left = len(h.ids())
    assert 0 < left < 500
    h.insert((9001, h.at(days=-2)))
    h.advance(minutes=5)
    job = h.run_one()
    assert job.id == job_id
    assert job.counts.deleted + len(h.ids()) == 501
    assert job.status is JobStatus.FINISHED


def test_a_worker_that_stops_resigns_at_once(h: Harness) -> None:
    _backlog(h, 1000)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 50)")
    with _other(h) as other:
        worker: list[Worker] = []

        class Stop(NullListener):
            def batch_done(self, event: BatchDone) -> None:
                worker[0].stop()

        worker.append(other.worker(Stop()))
        worker[0].run()
    assert 0 < len(h.ids()) < 1000
    # No heartbeat has to be missed: the clock has not moved.
    h.run()
    assert h.ids() == []


def test_a_failing_heartbeat_of_one_task_does_not_stop_the_others(h: Harness) -> None:
    _backlog(h)
    _create_job(h)
    lease = _claim(h, "first")
    assert lease is not None
    stolen = Task(
        id=lease.id,
        job_id=lease.job_id,
        ordinal=0,
        range=lease.range,
        cursor=None,
        sweep=0,
        fence=lease.fence - 1,
        owner="gone",
        status=lease.status,
        counts=lease.counts,
    )
    with h.db.catalog.writing() as connection:
        assert tasks.beat(connection, [lease], h.now) == []
        assert tasks.beat(connection, [stolen], h.now) == [stolen.id]


def test_a_table_dropped_while_its_owner_is_dead(h: Harness) -> None:
    _backlog(h)
    _create_job(h)
    assert _claim(h, "dead") is not None
    with h.client() as connection:
        connection.exec_driver_sql("DROP TABLE events")
    h.advance(minutes=5)
    result = h.run(None)
    assert [job.status for job in result.jobs] == [JobStatus.FAILED]
    assert h.db.jobs() == []


def test_running_tasks_is_a_limit_of_the_whole_fleet(h: Harness) -> None:
    _backlog(h)
    _create_job(h)
    h.sql("SET GLOBAL tidb_ttl_running_tasks = 1")
    assert _claim(h, "first") is not None
    assert not Worker(h.db.catalog).work_once()
    h.sql("SET GLOBAL tidb_ttl_running_tasks = -1")


def test_the_table_furthest_behind_comes_first_and_none_starves(h: Harness) -> None:
    for name in ("late", "early"):
        h.sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
        h.insert((1, h.at(days=-2)), table=name)
    h.advance(hours=10)
    h.run("early")
    h.insert((2, h.at(days=-2)), table="early")
    h.advance(hours=2)
    Worker(h.db.catalog)._scheduler.run_once()
    jobs = {job.id: job.table.name for job in h.db.jobs()}
    order = []
    while (task := _claim(h, "w")) is not None:
        order.append(jobs[task.job_id])
    assert order == ["late", "early"]


def test_one_rate_for_the_whole_fleet(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several limiters take from one row at once. The database's clock stands still, so every wait is known exactly:
    none is missing, and no two of them are told the same moment."""
    takes, rows, limit = 15, 50, 2000
    rule = [Limit(name="delete:1", per_second=limit)]
    waits: list[float] = []
    h.events()
    monkeypatch.setattr(type(h.db.engine), "stopwatch", lambda engine, connection: h.now)

    def take(db: Lapse) -> None:
        limiter = Limiter(Catalog(db.engine))
        for _ in range(takes):
            limiter.acquire(rule, rows, lambda seconds, reason: waits.append(seconds))

    with _other(h) as second:
        threads = [Thread(target=take, args=(db,)) for db in (h.db, h.db, second, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # The very first take has nothing to wait for.
    assert sorted(waits) == pytest.approx([number * rows / limit for number in range(1, 4 * takes)])


def test_a_closed_gate_stops_deleting_and_says_why(h: Harness) -> None:
    _backlog(h)
    reasons: list[str] = []
    worker: list[Worker] = []

    class Listen(NullListener):
        def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
            reasons.append(reason)
            worker[0].stop()

    worker.append(Worker(h.db.catalog, Listen(), gate_sql="SELECT 1"))
    worker[0].run()
    assert "gate_sql" in reasons[0]
    assert len(h.ids()) == 500
    Worker(h.db.catalog, gate_sql="SELECT 0").run()
    assert h.ids() == []


def test_a_gate_that_fails_is_closed(h: Harness) -> None:
    h.events()
    controller = Controller(h.db.catalog, "SELECT no_such_thing")
    controller.run_once()
    assert controller.stop_reason() is not None


def test_a_query_in_the_settings_is_not_run(h: Harness) -> None:
    """Writing settings is no way to the worker's rights; nor does a gate that was there open by itself."""
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    with pytest.raises(InvalidValue):
        h.owner.set_setting("lapse_gate_sql", "SELECT 0")
    with h.owner.catalog.writing() as connection:
        connection.execute(
            insert(setting_table).values(name="lapse_gate_sql", value="DELETE FROM events", changed_at=h.now)
        )
    (skip,) = h.run().skipped
    assert "LAPSE_GATE_SQL" in skip.reason
    assert h.ids() == [1, 2]


def test_beside_an_application_statements_are_short_and_rests_are_taken(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = h.db.engine.gauges
    # The others tell of what earlier tests have left behind: pages that are not written yet, say.
    monkeypatch.setattr(
        h.db.engine, "gauges", lambda c, s: [gauge for gauge in every(c, s) if gauge.name == "foreground"]
    )
    naps = {"postgres": "SELECT pg_sleep(1)", "mysql": "SELECT sleep(1)"}
    nap = naps.get(h.db.engine.dialect)
    h.events()
    controller = Controller(h.db.catalog)
    controller.run_once()
    if nap is None or controller.readings[0].value is None:
        pytest.skip("what others do is not seen")
    assert (controller.batch_seconds(), controller.pause_after(1.1, 1.0)) == (h.features.target_seconds, (0.0, None))
    assert controller.pause() == Controller.seconds
    with closing(table_for(h.db.engine.database.url, "events").connect()) as application:
        asleep = Thread(target=application.cursor().execute, args=(nap,))
        asleep.start()
        share, reason = 1.0, None
        while asleep.is_alive() and share > h.features.gentle_share * 1.001:
            controller.run_once()
            pause, reason = controller.pause_after(1.1, 1.0)
            share = 1.0 / (1.1 + pause)
        asleep.join()
    assert controller.batch_seconds() == h.features.short_seconds
    assert controller.pause() > Controller.seconds
    assert share == pytest.approx(h.features.gentle_share)
    assert "foreground" in str(reason)


def test_gauges_can_be_read(h: Harness) -> None:
    h.events()
    for reading in h.db.gauges():
        assert reading.value is not None or reading.note
        assert not reading.stops


def test_a_clock_that_jumps_ahead_stops_everything_until_confirmed(h: Harness) -> None:
    _backlog(h)
    worker = Worker(h.db.catalog)
    h.sql("ALTER TABLE events SET (ttl_job_cron = '0 0 1 1 *')")
    worker._scheduler.run_once()
    h.advance(days=400)
    tick = worker._scheduler.run_once()
    (status,) = h.db.status()
    assert status.state == "blocked"
    assert "jumped ahead" in (status.reason or "")
    assert all(job.status is JobStatus.PAUSED for job in tick.jobs)
    assert [job.status for job in h.run(None).jobs] == [JobStatus.PAUSED]
    assert len(h.ids()) == 500
    assert h.db.confirm_clock()
    h.run()
    assert h.ids() == []


def test_a_run_remembers_what_an_earlier_run_saw(h: Harness) -> None:
    h.events()
    h.run()
    with Lapse(h.backend.worker_url(h.url)) as db:
        db.run()
        assert db.clock_hold() is None
        with db.catalog.writing() as connection:
            before = meta.read_fact(connection, meta.CLOCK_SEEN)
            assert before is not None
            seen = json.loads(before)
            earlier = datetime.fromisoformat(seen["now"]) - timedelta(hours=5)
            meta.replace_fact(connection, meta.CLOCK_SEEN, before, json.dumps(seen | {"now": earlier.isoformat()}))
    with Lapse(h.backend.worker_url(h.url)) as db:
        db.run()
        assert re.search(r"jumped ahead by (4:59|5:00)", db.clock_hold() or "")
        assert db.confirm_clock()
    with Lapse(h.backend.worker_url(h.url)) as db:
        db.run()
        assert db.clock_hold() is None


def test_a_clock_that_goes_back_runs_nothing_twice(h: Harness) -> None:
    _backlog(h)
    h.run(None)
    h.advance(hours=-3)
    assert h.run(None).jobs == ()
    h.insert((1, h.at(days=-1, seconds=1)))
    assert h.run_one().counts.deleted == 0


def test_the_clock_watch() -> None:
    from datetime import UTC, datetime

    seconds = [0.0]
    watch = ClockWatch(lambda: seconds[0])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert watch.jump(start) is None
    seconds[0] = 3600
    assert watch.jump(start + timedelta(hours=1, minutes=5)) is None
    seconds[0] = 3601
    assert watch.jump(start + timedelta(days=1)) is not None


def test_promises(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_within = '2 hours')")
    assert h.db.status()[0].promise.health is Health.ON_TIME
    h.run()
    h.advance(hours=1)
    assert h.db.status()[0].promise.lateness == timedelta(hours=1)
    h.advance(hours=2)
    assert h.db.status()[0].promise.health is Health.LATE
    h.sql("ALTER TABLE events SET (ttl_pause = 'on')")
    promise = h.db.status()[0].promise
    assert (promise.health, promise.reason) == (Health.PAUSED, "ttl_pause is on")


def test_the_phases_of_a_job_add_up(h: Harness) -> None:

    _backlog(h)
    h.sql("ALTER TABLE events SET (ttl_delete_rate_limit = 1000)")
    summary = h.run_one().summary
    assert summary is not None
    parts = summary.select_seconds + summary.delete_seconds + summary.waited_seconds + summary.other_seconds
    assert parts == pytest.approx(summary.task_seconds, abs=0.01)
    assert summary.waited_seconds > 0


def _settings(h: Harness):  # type: ignore[no-untyped-def]
    with h.db.catalog.reading() as connection:
        return stored_settings.load_settings(connection)


def test_a_worker_told_to_stop_before_it_began_does_not_begin(h: Harness) -> None:
    _backlog(h)
    h.sql("ALTER TABLE events SET (ttl_delete_rate_limit = 1)")
    _create_job(h)
    worker = Worker(h.db.catalog)
    worker.stop()
    assert worker.work_once()
    assert len(h.ids()) == 500


def test_four_workers_plan_each_due_table_once(h: Harness) -> None:
    """Each comes to all tables, and none makes a job for a table that another has taken."""
    if not h.features.concurrent_writers:
        pytest.skip("one writer at a time")
    many(h, DUE_TABLES)
    for number in range(DUE_TABLES):
        h.insert((1, h.at(days=-1)), table=f"t{number}")
    opened = [h.open() for _ in range(4)]
    workers = [database.worker() for database in opened]
    threads = [Thread(target=worker.serve) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        _until(lambda: sum(not job.status.is_active for job in h.owner.history(limit=1000)) >= DUE_TABLES)
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
        for database in opened:
            database.close()
    jobs = Counter(job.table.name for job in h.owner.history(limit=1000))
    assert jobs == {f"t{number}": 1 for number in range(DUE_TABLES)}
    assert sum(len(h.ids(f"t{number}")) for number in range(DUE_TABLES)) == 0
