"""The first batch of a small table's job is one transaction with the job, which it may be all of; what is not as
expected goes the ordinary way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Thread

import pytest
from sqlalchemy import Connection, event, func, select

from lapse.app import Lapse
from lapse.catalog import schema
from lapse.catalog.new_jobs import Created
from lapse.engines.base import Batch, Target
from lapse.errors import Locked
from lapse.model.job import Job, JobStatus, KeyRange
from lapse.runner.atonce import AtOnce, Done, Record
from lapse.runner.events import BatchDone, Cause, NullListener, TaskDone
from lapse.runner.task import TaskRunner
from lapse.runner.worker import Worker
from tests.conformance.harness import Harness
from tests.crashing import begin_with

ROWS = 10
FIRST = 4
"""Rows of a first batch that is not all of its job."""


@pytest.fixture(params=[None, FIRST], ids=["all of it", "first of several"])
def first(request: pytest.FixtureRequest, h: Harness, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """How many rows the first batch has, where it is not all of the job."""
    rows: int | None = request.param
    if rows is not None:
        begin_with(rows, monkeypatch.setattr, h.db.engine)
    return rows


def _goes_on(h: Harness) -> bool:
    """Is a batch that is not all of its job kept? Not where a trigger may run unseen."""
    return h.features.records_with_batches and h.db.engine.name != "sqlite"


def _events(h: Harness, more: str = "") -> None:
    h.events()
    # The first run of a policy ends its grace period, and goes the ordinary way.
    h.run_one()
    if more:
        h.sql(f"ALTER TABLE events SET ({more})")
        h.run_one()
    h.insert(*((number, h.at(days=-2)) for number in range(1, ROWS + 1)), (100, h.at()))


class _Told(NullListener):
    def __init__(self) -> None:
        self.events: list[str] = []

    def job_created(self, job: Job) -> None:
        self.events.append("created")

    def batch_done(self, event: BatchDone) -> None:
        self.events.append(f"batch of {event.batch.deleted}")

    def task_done(self, event: TaskDone) -> None:
        self.events.append("task")

    def job_ended(self, job: Job) -> None:
        self.events.append(f"{job.status} with {job.counts.deleted}")


def _tasks_made(db: Lapse, run: Callable[[], object]) -> int:
    made = 0

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        nonlocal made
        made += "INSERT INTO" in statement and "lapse_task" in statement

    for pool in db.engine.pools:
        event.listen(pool, "before_cursor_execute", note)
    try:
        run()
    finally:
        for pool in db.engine.pools:
            event.remove(pool, "before_cursor_execute", note)
    return made


def _run_between(
    monkeypatch: pytest.MonkeyPatch,
    *,
    before: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
) -> list[Done | None]:
    """Something happens once between the plan and the batch, or between the batch and its record."""
    run, found = AtOnce.run, list[Done | None]()
    steps = [before, after]

    def happens(number: int) -> None:
        step, steps[number] = steps[number], None
        if step is not None:
            step()

    def between(self: AtOnce, target: Target, span: KeyRange, limit: int, record: Record) -> Done | None:
        happens(0)

        def recorded(connection: Connection, batch: Batch, seconds: float) -> Created:
            happens(1)
            return record(connection, batch, seconds)

        done = run(self, target, span, limit, recorded)
        found.append(done)
        return done

    monkeypatch.setattr(AtOnce, "run", between)
    return found


def test_a_small_job_has_no_task_and_is_in_the_history_as_any_other(h: Harness) -> None:
    if not h.features.records_with_batches:
        pytest.skip("every job has a task")
    _events(h)
    told = _Told()
    made = _tasks_made(h.db, lambda: Worker(h.db.catalog, told).run(h.db.policy("events")))
    assert (made, h.ids()) == (0, [100])
    assert told.events == ["created", f"batch of {ROWS}", "task", f"finished with {ROWS}"]
    job = h.db.history()[0]
    assert (job.status, job.counts.selected, job.counts.deleted, job.counts.batches) == (
        JobStatus.FINISHED,
        ROWS,
        ROWS,
        1,
    )
    assert (job.tasks_total, job.tasks_finished) == (1, 1)
    assert job.created_at <= (job.started_at or h.now) <= (job.finished_at or h.now)
    assert job.summary is not None
    assert (job.summary.success_rows, job.summary.total_scan_task, job.summary.finished_scan_task) == (ROWS, 1, 1)
    (entry,) = h.owner.ledger("events", limit=1)
    assert entry.after is not None
    recorded = json.loads(entry.after)
    assert (recorded["job"], recorded["deleted"]) == (job.id, ROWS)
    assert h.owner.verify_ledger().holds
    # The table is not due again before its time.
    assert h.db.run().jobs == ()


def test_where_nothing_has_expired_the_job_says_so(h: Harness) -> None:
    _events(h)
    h.run_one()
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.tasks_total) == (JobStatus.FINISHED, 0, 0)
    assert h.ids() == [100]


@pytest.mark.parametrize(
    "more",
    [
        "ttl_delete_batch_size = 3, ttl_adaptive = 'off'",
        "ttl_delete_rate_limit = 1000",
        "ttl_select_rate_limit = 10000",
        "ttl_archive = 'table:'",
        "ttl_ledger_keys = 'on'",
    ],
)
def test_what_needs_more_than_one_batch_gets_a_task(h: Harness, more: str) -> None:
    _events(h, more)
    jobs: list[Job] = []
    assert _tasks_made(h.db, lambda: jobs.append(h.run_one())) == 1
    assert (jobs[0].status, jobs[0].counts.deleted, h.ids()) == (JobStatus.FINISHED, ROWS, [100])


def test_a_table_that_is_larger_than_it_seemed_goes_the_ordinary_way(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    _events(h)
    monkeypatch.setattr("lapse.runner.atonce.SMALL_ROWS", 5)
    monkeypatch.setattr(h.db.engine, "planned_rows", lambda *_: 5)
    job = h.run_one()
    assert (job.status, job.counts.deleted, h.ids()) == (JobStatus.FINISHED, ROWS, [100])


def test_a_row_that_another_session_has_locked_is_left_and_told(h: Harness) -> None:
    if not h.features.row_locks:
        pytest.skip("no single row can be locked")
    _events(h)
    with h.client() as other:
        other.exec_driver_sql("BEGIN")
        other.exec_driver_sql("SELECT id FROM events WHERE id = 5 FOR UPDATE").all()
        job = h.run_one()
        assert (job.status, job.counts.deleted, job.counts.skipped) == (JobStatus.INCOMPLETE, ROWS - 1, 1)
        other.exec_driver_sql("ROLLBACK")
    assert h.ids() == [5, 100]


def test_a_policy_that_is_changed_before_the_batch_is_obeyed(
    h: Harness, monkeypatch: pytest.MonkeyPatch, first: int | None
) -> None:
    if not h.features.records_with_batches:
        pytest.skip("every job has a task")
    _events(h)
    change = "ALTER TABLE events TTL = ts + INTERVAL 30 DAY"
    _run_between(monkeypatch, before=lambda: h.owner.execute(change))
    h.run()
    assert h.ids() == [*range(1, ROWS + 1), 100]


def test_a_hold_that_is_placed_before_the_batch_keeps_its_rows(
    h: Harness, monkeypatch: pytest.MonkeyPatch, first: int | None
) -> None:
    if not h.features.records_with_batches:
        pytest.skip("every job has a task")
    _events(h)
    _run_between(monkeypatch, before=lambda: h.owner.hold("events", "id = 3"))
    h.run()
    assert set(h.ids()) >= {3, 100}
    h.run()
    assert h.ids() == [3, 100]


def test_a_row_that_is_unlocked_while_a_job_runs_goes_with_it(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do that another worker's batch had locked, which was undone."""
    if not h.features.row_locks:
        pytest.skip("no row can be locked")
    _events(h)
    rest, rested = TaskRunner._rest, list[str]()
    with h.client() as other:
        other.exec_driver_sql("BEGIN")
        other.exec_driver_sql("SELECT id FROM events WHERE id = 3 FOR UPDATE").all()

        def unlock_and_rest(runner: TaskRunner, seconds: float, reason: str, cause: Cause) -> None:
            if "locked" in reason and not rested:
                other.exec_driver_sql("ROLLBACK")
                rested.append(reason)
            rest(runner, seconds, reason, cause)

        monkeypatch.setattr(TaskRunner, "_rest", unlock_and_rest)
        job = h.run_one()
    assert (job.status, job.counts.deleted, len(rested)) == (JobStatus.FINISHED, ROWS, 1)
    assert h.ids() == [100]


def test_a_hold_that_returns_while_the_batch_is_open_keeps_its_rows(
    h: Harness, monkeypatch: pytest.MonkeyPatch, first: int | None
) -> None:
    """The rows are deleted, and not committed: the transaction sees that the policy has another hold, and undoes it."""
    if not h.features.concurrent_writers or not h.features.records_with_batches:
        pytest.skip("nothing can be written meanwhile")
    _events(h)
    _run_between(monkeypatch, after=lambda: h.owner.hold("events", "id = 3"))
    h.run()
    assert set(h.ids()) >= {3, 100}
    h.run()
    assert h.ids() == [3, 100]
    assert sum(job.counts.deleted for job in h.db.history()) == ROWS - 1


def test_another_worker_that_takes_the_table_first_does_it_once(
    h: Harness, monkeypatch: pytest.MonkeyPatch, first: int | None
) -> None:
    _events(h)
    other = h.open()
    _run_between(monkeypatch, before=lambda: other.run("events"))
    h.db.run("events")
    other.close()
    assert h.ids() == [100]
    assert sum(job.counts.deleted for job in h.db.history()) == ROWS


def test_a_declaration_at_work_is_not_waited_for_with_rows_locked(h: Harness, first: int | None) -> None:
    """It may hold the policy and wait for the table: a batch that held the table and waited for it would end one."""
    if not h.features.concurrent_writers or not h.features.records_with_batches:
        pytest.skip("nothing can be locked meanwhile")
    _events(h)
    failures: list[Exception] = []

    def run() -> None:
        try:
            h.db.run("events")
        except Locked as error:
            failures.append(error)

    with h.owner.catalog.writing() as declaring:
        declaring.execute(select(schema.policy.c.policy_id).with_for_update()).all()
        running = Thread(target=run)
        running.start()
        with h.client() as other:
            other.exec_driver_sql("BEGIN")
            # For as long as the run waits, no row of the table is its own.
            for _ in range(5):
                running.join(0.1)
                assert running.is_alive()
                other.exec_driver_sql("SELECT id FROM events WHERE id <= 10 FOR UPDATE NOWAIT").all()
                other.exec_driver_sql("ROLLBACK")
                other.exec_driver_sql("BEGIN")
            other.exec_driver_sql("ROLLBACK")
    running.join(30)
    assert not failures
    assert h.ids() == [100]


@pytest.mark.parametrize("first", [None, FIRST])
def test_a_worker_that_is_killed_at_any_statement_has_done_its_batch_or_nothing(h: Harness, first: int | None) -> None:
    _events(h)
    survives, outcomes = 1, list[int]()
    while True:
        command = [sys.executable, "-m", "tests.crashing", h.url, "events", str(survives), h.now.isoformat()]
        command += [] if first is None else [str(first)]
        done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": "0"})
        left = len(h.ids()) - 1
        outcomes.append(left)
        assert left in {0, ROWS, ROWS - (first or 0)}
        if first is None:
            assert sum(job.counts.deleted for job in h.db.history()) == ROWS - left
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        h.advance(minutes=1)
        survives += 3
    assert outcomes[0] == ROWS
    assert sum(job.counts.deleted for job in h.db.history()) == ROWS
    assert h.ids() == [100]


def test_a_first_batch_that_is_not_all_of_its_job_is_kept(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    _events(h)
    begin_with(FIRST, monkeypatch.setattr, h.db.engine)
    told = _Told()
    made = _tasks_made(h.db, lambda: Worker(h.db.catalog, told).run(h.db.policy("events")))
    assert (made, h.ids()) == (1, [100])
    batches = [f"batch of {FIRST}", f"batch of {ROWS - FIRST}"] if _goes_on(h) else [f"batch of {ROWS}"]
    assert told.events == ["created", *batches, "task", f"finished with {ROWS}"]
    job = h.db.history()[0]
    assert (job.counts.selected, job.counts.deleted, job.counts.batches) == (ROWS, ROWS, len(batches))
    assert (job.tasks_total, job.tasks_finished) == (1, 1)
    assert h.owner.verify_ledger().holds


def test_a_first_run_ends_the_grace_of_its_policy_with_its_batch(h: Harness) -> None:
    h.events()
    h.insert(*((number, h.at(days=-2)) for number in range(1, ROWS + 1)), (100, h.at()))
    h.sql("ALTER TABLE events SET (ttl_guard = 'off', ttl_grace = '1 day')")
    assert h.db.policy("events").grace_until is not None
    made = _tasks_made(h.db, lambda: h.run_one())
    assert (made, h.ids()) == (int(not h.features.records_with_batches), [100])
    assert h.db.policy("events").grace_until is None


def test_a_table_whose_rows_take_other_rows_with_them_begins_with_few(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    _events(h)
    columns = f"id {h.backend.bigint} PRIMARY KEY, event {h.backend.bigint}"
    h.sql(f"CREATE TABLE parts ({columns}, FOREIGN KEY (event) REFERENCES events (id) ON DELETE CASCADE)")
    begin_with(FIRST, monkeypatch.setattr, h.db.engine)
    told = _Told()
    Worker(h.db.catalog, told).run(h.db.policy("events"))
    assert told.events == ["created", f"batch of {ROWS}", "task", f"finished with {ROWS}"]


def test_a_worker_knows_how_many_rows_of_a_table_fit_into_a_batch(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting was dear there the last time."""
    _events(h)
    begin_with(FIRST, monkeypatch.setattr, h.db.engine)
    told = _Told()
    worker = Worker(h.db.catalog, told)
    with h.db.catalog.reading() as connection:
        (physical,) = connection.execute(select(schema.table.c.table_id)).scalars()
    worker._learned_sizes[physical] = FIRST - 1
    worker.run(h.db.policy("events"))
    assert told.events[1] != f"batch of {FIRST}"
    assert (told.events[-1], h.ids()) == (f"finished with {ROWS}", [100])


def test_a_worker_does_small_tables_as_it_finds_them(h: Harness) -> None:
    if not h.features.records_with_batches:
        pytest.skip("every job has a task")
    tables = [f"e{number}" for number in range(4)]
    for table in tables:
        columns = f"id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}"
        h.sql(f"CREATE TABLE {table} ({columns}) TTL = ts + INTERVAL 1 DAY")
        h.sql(f"ALTER TABLE {table} SET (ttl_grace = '0 seconds', ttl_guard = 'off')")
    assert len(h.db.run().jobs) == len(tables)
    h.advance(hours=2)
    for table in tables:
        h.insert(*((row, h.at(days=-2)) for row in range(4)), table=table)
    worker = Worker(h.db.catalog)
    worker.start_services()

    def look() -> None:
        # A round of a slow machine may have no time for all of them.
        while worker.look(lambda tick: None) == 0.0:
            pass

    try:
        assert _tasks_made(h.db, look) == 0
    finally:
        worker.close_services()
        worker.leave()
    assert [h.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables] == [0] * len(tables)
    with h.db.catalog.reading() as connection:
        active = select(func.count()).where(schema.job.c.active_table_id.is_not(None))
        assert connection.execute(active).scalar() == 0
