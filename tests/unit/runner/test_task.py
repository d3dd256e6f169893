"""The task loop, batch by batch: limits, waits, rows that cannot go, sweeps, errors, lost leases, stopping."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from lapse.catalog import jobs, tasks
from lapse.catalog.tasks import Progress
from lapse.engines.base import Batch, Checkpoint, Stretch
from lapse.errors import BadData, Fenced, Interrupted, Locked, Retryable, RowUndeletable, TooSlow
from lapse.model.job import Counts, JobStatus, PathKind, Task, TaskStatus
from lapse.runner.events import Cause
from lapse.runner.task import (
    ERRORS_MIN_ROWS,
    GATE_SECONDS,
    MAX_RETRIES,
    SAVE_SECONDS,
    Outcome,
    TaskRunner,
    TooManyErrors,
)
from tests.unit.runner.rig import Rig, Step, rolled_back, unseen_commit, without_checkpoint

DONE = Batch(done=True)


def deleted(count: int, cursor: str = "c", *, held: int = 0, skipped: int = 0) -> Batch:
    return Batch(examined=count, selected=count, deleted=count, held=held, skipped=skipped, cursor=cursor)


def begun(task: Task, **counts: int) -> Progress:
    return Progress(cursor="k", sweep=0, counts=Counts(**counts), worked_seconds=0.0, waited_seconds=0.0)


@pytest.fixture(autouse=True)
def _declared(rig: Rig) -> None:
    rig.declare()


# Progress


def test_batches_add_up_and_the_task_is_finished(rig: Rig) -> None:
    runner = rig.runner(deleted(3, "a"), deleted(2, "b", held=1), DONE)
    assert runner.run() is Outcome.FINISHED
    job = rig.read(jobs.get_job, runner.task.job_id)
    assert (runner.job, runner.has_ended_job) == (job, True)
    assert (job.status, job.tasks_finished, job.counts) == (
        JobStatus.FINISHED,
        1,
        Counts(selected=5, deleted=5, held=1, batches=2),
    )
    assert [event.batch.deleted for event in rig.heard.batches] == [3, 2, 0]


def test_a_new_task_begins_at_its_start_and_one_given_back_at_its_cursor(rig: Rig) -> None:
    first = rig.runner(deleted(3, "a"), lambda limit, checkpoint: stopping(limit, checkpoint))

    def stopping(limit: int, checkpoint: Checkpoint) -> Batch:
        first.stop()
        return rig.deleter.commit(deleted(1, "b"), checkpoint)

    assert first.run() is Outcome.RESIGNED
    second = rig.runner(DONE, task=rig.claim("w2"))
    assert second.run() is Outcome.FINISHED
    assert [cursor for _, cursor in rig.opened] == [None, "b"]
    assert rig.counts(second).deleted == 4


def test_a_batch_that_rolled_back_is_not_counted(rig: Rig) -> None:
    runner = rig.runner(rolled_back(rig, deleted(100, "x"), Retryable("deadlock")), deleted(3, "a"), DONE)
    assert runner.run() is Outcome.FINISHED
    assert rig.counts(runner) == Counts(selected=3, deleted=3, batches=1)


def test_a_commit_whose_answer_was_lost_is_counted_once(rig: Rig) -> None:
    runner = rig.runner(unseen_commit(rig, deleted(7, "x"), BadData("connection lost")))
    with pytest.raises(BadData):
        runner.run()
    state = rig.state(runner.task)
    assert (state.task.status, state.task.owner, state.task.cursor) == (TaskStatus.WAITING, None, "x")
    assert (state.task.counts.deleted, state.last_error) == (7, "connection lost")


def test_the_task_of_a_dropped_partition_ends_in_the_transaction_that_drops_it(rig: Rig) -> None:
    seen: list[TaskStatus] = []

    def drop(limit: int, checkpoint: Checkpoint) -> Batch:
        batch = rig.deleter.commit(Batch(selected=9, deleted=9, done=True), checkpoint)
        seen.append(rig.state(runner.task).task.status)
        return batch

    runner = rig.runner(drop, path=PathKind.PARTITION)
    runner.run()
    assert seen == [TaskStatus.FINISHED]
    assert rig.state(runner.task).task.counts.deleted == 9


def test_a_scan_that_finds_nothing_saves_its_cursor_now_and_then(rig: Rig) -> None:
    seen: list[str | None] = []

    def look(limit: int, checkpoint: Checkpoint) -> Batch:
        seen.append(rig.state(runner.task).task.cursor)
        rig.advance(0.6 * SAVE_SECONDS)
        return Batch(examined=10, cursor=f"at {len(seen)}")

    runner = rig.runner(look, look, look, DONE)
    runner.run()
    assert seen == [None, None, "at 2"]


def test_where_the_time_went_is_written_down(rig: Rig) -> None:
    def work(limit: int, checkpoint: Checkpoint) -> Batch:
        rig.advance(2.0)
        return rig.deleter.commit(Batch(selected=1, deleted=1, cursor="a", locked_seconds=0.5), checkpoint)

    rig.controller.rest = 3.0
    runner = rig.runner(work, DONE)
    runner.run()
    spent = runner.job.summary
    assert spent is not None
    assert (spent.select_seconds, spent.delete_seconds, spent.waited_seconds, spent.task_seconds) == (
        1.5,
        0.5,
        3.0,
        5.0,
    )
    assert spent.waits == {"yield": 3.0}
    assert rig.heard.ended[0].seconds == 5.0


# Limits


def test_a_rate_limit_bounds_the_batch_and_delays_the_next(rig: Rig) -> None:
    rig.declare("ttl_delete_rate_limit = 100")
    runner = rig.runner(deleted(25), deleted(25), deleted(25), DONE)
    runner.run()
    assert rig.deleter.limits == [25, 25, 25, 25]
    assert rig.heard.waits == [(0.25, "rate limit of 100 rows/s", Cause.RATE_LIMIT)] * 3


def test_rows_that_were_reserved_and_not_deleted_are_given_back(rig: Rig) -> None:
    rig.declare("ttl_delete_rate_limit = 100")
    rig.runner(deleted(5), without_checkpoint(Batch(examined=10)), DONE).run()
    assert rig.waits == [pytest.approx(0.05)]


def test_a_batch_that_failed_gives_everything_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    rig.declare("ttl_delete_rate_limit = 100")
    rig.runner(Retryable("deadlock"), deleted(10), DONE).run()
    assert [reason for _, reason, cause in rig.heard.waits if cause is Cause.RATE_LIMIT] == ["rate limit of 100 rows/s"]
    assert rig.waits[-1] == pytest.approx(0.1)


def test_a_task_that_is_stopped_while_it_waits_for_its_limit_gives_its_rows_back(rig: Rig) -> None:
    rig.declare("ttl_delete_rate_limit = 100")
    runner = rig.runner(deleted(25), deleted(25))
    rig.heard.waiting = lambda *_: runner.stop()  # type: ignore[method-assign]
    assert runner.run() is Outcome.RESIGNED
    assert rig.deleter.limits == [25]
    # Only the first batch was used: 0.25 s of the limit, which have passed.
    rig.heard.waiting = lambda *_: None  # type: ignore[method-assign]
    rig.waits.clear()
    rig.runner(DONE, task=rig.claim("w2")).run()
    assert rig.waits == []


def test_a_limit_of_reading_is_paid_for_what_was_read(rig: Rig) -> None:
    rig.declare("ttl_select_rate_limit = 1000")
    rig.runner(without_checkpoint(Batch(examined=500, cursor="a")), DONE).run()
    assert rig.waits == [pytest.approx(0.5)]


def test_new_parameters_hold_from_the_next_batch_on(rig: Rig) -> None:
    def change(limit: int, checkpoint: Checkpoint) -> Batch:
        rig.declare("ttl_delete_batch_size = 7")
        runner.adopt(rig.database.policy("events"), rig.settings())
        return rig.deleter.commit(deleted(1), checkpoint)

    runner = rig.runner(change, DONE)
    runner.run()
    assert rig.deleter.limits == [rig.settings().delete_batch_size, 7]


# Waiting


def test_a_closed_gate_stops_everything_and_says_why(rig: Rig) -> None:
    rig.controller.closed = "gate: replication lag 90s of 60s"
    shown: list[str | None] = []

    def open_gate(job: object, seconds: float, reason: str, cause: Cause) -> None:
        shown.append(rig.state(runner.task).pause_reason)
        assert (seconds, cause, rig.deleter.limits) == (GATE_SECONDS, Cause.GATE, [])
        rig.controller.closed = None if len(shown) == 2 else rig.controller.closed

    rig.heard.waiting = open_gate  # type: ignore[method-assign]
    runner = rig.runner(deleted(1), DONE)
    assert runner.run() is Outcome.FINISHED
    assert shown == ["gate: replication lag 90s of 60s"] * 2
    assert rig.read(jobs.get_job, runner.task.job_id).waiting_for is None


def test_short_waits_are_not_written_down(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Progress] = []
    save = tasks.save_progress

    def counted(connection: Connection, lease: Task, progress: Progress) -> None:
        saved.append(progress)
        save(connection, lease, progress)

    monkeypatch.setattr(tasks, "save_progress", counted)
    rig.controller.rest = 0.1
    runner = rig.runner(deleted(1), deleted(1), DONE)
    runner.run()
    assert (rig.waits, len(saved)) == ([0.1, 0.1], 3)


def test_metrics_have_the_table_only_where_the_policy_says_so(rig: Rig) -> None:
    rig.runner(DONE).run()
    assert [event.label for event in rig.heard.batches] == [None]
    rig.keeper.settle(rig.heard.batches[0].job.id)
    rig.declare("ttl_label_metrics = true")
    rig.database.request_run("events")
    rig.runner(DONE).run()
    assert [event.label for event in rig.heard.batches] == [None, "events"]
    assert [event.label for event in rig.heard.ended] == [None, "events"]


# Rows that cannot go


@pytest.mark.parametrize("error", [RowUndeletable("a trigger refuses"), TooSlow("2 s")])
def test_a_row_that_cannot_go_is_isolated_by_halving_and_passed(rig: Rig, error: Exception) -> None:
    rig.declare("ttl_delete_batch_size = 8")
    runner = rig.runner(error, error, deleted(2, "b"), deleted(2, "c"), error, error, error, error, deleted(3), DONE)
    runner.run()
    assert rig.deleter.limits == [8, 4, 2, 8, 8, 4, 2, 1, 8, 8]
    assert rig.deleter.skipped == 1
    assert rig.counts(runner) == Counts(selected=8, deleted=7, held=1, errors=1, batches=4)
    assert runner.job.summary is not None
    assert runner.job.summary.scan_task_err == error.args[0]


def test_the_size_that_the_next_task_learns_is_the_one_before_isolating(rig: Rig) -> None:
    rig.declare("ttl_delete_batch_size = 8")
    sizes: list[int] = []

    def look(limit: int, checkpoint: Checkpoint) -> Batch:
        sizes.append(runner.batch_size)
        return DONE

    runner = rig.runner(RowUndeletable("no"), RowUndeletable("no"), look)
    runner.run()
    assert (rig.deleter.limits[-1], sizes) == (2, [8])


def test_a_job_with_mostly_errors_is_given_up(rig: Rig) -> None:
    task = rig.claim()
    rows = ERRORS_MIN_ROWS
    rig.write(tasks.resign_task, task, begun(task, selected=rows - 1, errors=int(0.4 * rows)))
    rig.declare("ttl_delete_batch_size = 1")
    runner = rig.runner(RowUndeletable("a trigger refuses"), task=rig.claim())
    with pytest.raises(TooManyErrors, match=f"4001 of {rows} rows could not be deleted: a trigger refuses"):
        runner.run()
    state = rig.state(task)
    assert (state.task.status, state.task.owner) == (TaskStatus.WAITING, None)


def test_a_few_errors_among_many_rows_are_none_to_give_up_for(rig: Rig) -> None:
    task = rig.claim()
    rows = ERRORS_MIN_ROWS
    rig.write(tasks.resign_task, task, begun(task, selected=rows, errors=int(0.4 * rows)))
    assert rig.runner(deleted(1), DONE, task=rig.claim()).run() is Outcome.FINISHED


# Sweeps


def test_skipped_rows_get_one_more_sweep(rig: Rig) -> None:
    runner = rig.runner(deleted(2, skipped=3), DONE, deleted(1, skipped=2), DONE)
    assert runner.run() is Outcome.FINISHED
    assert rig.deleter.restarts == 1
    assert rig.counts(runner) == Counts(selected=3, deleted=3, skipped=2, batches=2)


def test_held_rows_get_none_where_deleting_cannot_have_freed_them(rig: Rig) -> None:
    runner = rig.runner(deleted(2, held=3), DONE)
    assert runner.run() is Outcome.FINISHED
    assert (rig.deleter.restarts, rig.counts(runner).held) == (0, 3)


def test_held_rows_of_a_table_that_refers_to_itself_get_sweeps_while_something_goes(rig: Rig) -> None:
    rig.database.execute("ALTER TABLE events RESET (ttl)")
    rig.database.execute("DROP TABLE events")
    rig.database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT, parent INTEGER REFERENCES events (id))")
    rig.database.execute("INSERT INTO events VALUES (1, '2020-01-01 00:00:00', NULL)")
    rig.declare()
    runner = rig.runner(deleted(2, held=3), DONE, deleted(1, held=2), DONE, Batch(selected=2, held=2, cursor="z"), DONE)
    assert runner.run() is Outcome.FINISHED
    assert rig.deleter.restarts == 2
    assert rig.counts(runner) == Counts(selected=5, deleted=3, held=2, batches=3)


# Errors


def test_what_may_be_tried_again_is_tried_with_fewer_rows_after_longer_and_longer_pauses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    rig.declare("ttl_delete_batch_size = 8")
    rig.runner(*[Retryable("deadlock")] * 4, deleted(1), DONE).run()
    assert rig.deleter.limits == [8, 4, 2, 1, 1, 8]
    assert rig.heard.waits == [(seconds, "deadlock", Cause.RETRY) for seconds in (0.02, 0.04, 0.08, 0.16)]


def test_pauses_have_an_upper_bound_and_retries_an_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    runner = rig.runner(*[Retryable("deadlock")] * (MAX_RETRIES + 1))
    with pytest.raises(Retryable, match="deadlock"):
        runner.run()
    assert (len(rig.waits), max(rig.waits)) == (MAX_RETRIES, 5.0)
    state = rig.state(runner.task)
    assert (state.task.status, state.last_error) == (TaskStatus.WAITING, "deadlock")


def test_a_batch_that_succeeds_forgets_the_retries_before_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    troubled: list[Step] = [*[Retryable("deadlock")] * MAX_RETRIES, deleted(1)]
    assert rig.runner(*troubled, *troubled, DONE).run() is Outcome.FINISHED


@pytest.mark.parametrize("everything", [False, True])
def test_a_lock_that_lasts_is_told_once_and_when_it_is_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.6)
    runner = rig.runner(*[Locked("locked", everything=everything)] * 4, deleted(1), DONE)
    shown: list[str | None] = []
    rig.heard.waiting = lambda *_: shown.append(rig.state(runner.task).pause_reason)  # type: ignore[method-assign]
    runner.run()
    (lock,) = rig.heard.locks
    assert rig.heard.unlocks == [lock]
    assert (str(lock.table), lock.since) == (
        "None" if everything else "events",
        rig.clock.now() - timedelta(seconds=2.4),
    )
    # Where everything is locked, nothing can be written down.
    assert shown == [None, None, *[None if everything else str(lock)] * 2]


def test_an_error_gives_the_task_back_with_what_it_was(rig: Rig) -> None:
    runner = rig.runner(deleted(3, "a"), BadData("30 February"))
    with pytest.raises(BadData):
        runner.run()
    state = rig.state(runner.task)
    assert (state.task.status, state.task.owner, state.task.cursor) == (TaskStatus.WAITING, None, "a")
    assert (state.task.counts.deleted, state.last_error) == (3, "30 February")
    assert len(rig.heard.ended) == 1


# Leases and stopping


def test_a_worker_that_was_taken_over_writes_nothing(rig: Rig) -> None:
    def taken_over(limit: int, checkpoint: Checkpoint) -> Batch:
        rig.clock.advance(timedelta(minutes=5))
        other = rig.claim("w2")
        rig.write(tasks.save_progress, other, begun(other, deleted=1))
        return rig.deleter.commit(deleted(100, "mine"), checkpoint)

    runner = rig.runner(taken_over)
    assert runner.run() is Outcome.FENCED
    state = rig.state(runner.task)
    assert (state.task.owner, state.task.cursor, state.task.counts.deleted) == ("w2", "k", 1)


def test_an_error_after_a_takeover_does_not_take_the_task_away_from_its_new_owner(rig: Rig) -> None:
    def taken_over(limit: int, checkpoint: Checkpoint) -> Batch:
        rig.clock.advance(timedelta(minutes=5))
        rig.claim("w2")
        raise BadData("30 February")

    runner = rig.runner(taken_over)
    with pytest.raises(BadData):
        runner.run()
    state = rig.state(runner.task)
    assert (state.task.owner, state.task.status, state.last_error) == ("w2", TaskStatus.RUNNING, None)


def test_stopping_interrupts_the_statement_and_keeps_what_was_committed(rig: Rig) -> None:
    def interrupted(limit: int, checkpoint: Checkpoint) -> Batch:
        rig.deleter.commit(deleted(2, "b"), checkpoint)
        runner.stop()
        raise Interrupted("asked to stop")

    runner = rig.runner(deleted(3, "a"), interrupted)
    assert runner.run() is Outcome.RESIGNED
    assert rig.deleter.interrupts == 1
    state = rig.state(runner.task)
    assert (state.task.status, state.task.cursor, state.task.counts.deleted) == (TaskStatus.WAITING, "b", 5)


def test_a_statement_that_was_interrupted_by_nobody_is_an_error(rig: Rig) -> None:
    runner = rig.runner(Interrupted("an administrator has cancelled it"))
    with pytest.raises(Interrupted):
        runner.run()
    assert rig.state(runner.task).last_error == "an administrator has cancelled it"


def test_a_runner_that_was_stopped_before_it_began_deletes_nothing(rig: Rig) -> None:
    runner = rig.runner(deleted(1))
    runner.stop()
    assert (runner.run(), rig.deleter.limits) == (Outcome.RESIGNED, [])
    assert rig.state(runner.task).task.status is TaskStatus.WAITING


def test_a_task_whose_job_has_ended_is_fenced(rig: Rig) -> None:
    first = rig.claim()
    rig.write(tasks.resign_task, first, begun(first))
    runner = rig.runner(DONE, task=rig.claim("w2"))
    rig.keeper.fail(runner.job.id, Fenced("ended"))
    assert (runner.run(), rig.deleter.limits) == (Outcome.FENCED, [])


# Stretches


def with_stretches(rig: Rig, *long: Callable[[Stretch], Batch | None], script: Sequence[Step] = (DONE,)) -> TaskRunner:
    """Two batches go alone before."""

    def second(limit: int, checkpoint: Checkpoint) -> Batch:
        rig.deleter.long.extend(long)
        return rig.deleter.commit(deleted(limit, "b"), checkpoint)

    return rig.runner(deleted(50, "a"), second, *script)


def test_what_a_server_did_in_a_stretch_is_counted_as_its_batches(rig: Rig) -> None:
    def stretch(within: Stretch) -> Batch:
        assert within.share == rig.controller.duty
        for cursor in "cde":
            rig.deleter.save(within, cursor, 10)
        rig.advance(5.0)
        return Batch(
            examined=60, selected=30, deleted=30, cursor="f", locked_seconds=1.5, busy_seconds=1.5, read_seconds=0.5,
            holds=(0.5, 0.25, 0.75), rested_seconds=3.0, size=300, row_seconds=0.001,
        )  # fmt: skip

    runner = with_stretches(rig, stretch)
    assert runner.run() is Outcome.FINISHED
    alone = sum(event.batch.deleted for event in rig.heard.batches[:2])
    counts = rig.counts(runner)
    assert (counts.selected, counts.deleted, counts.batches) == (alone + 30, alone + 30, 5)
    # The server has rested, so the worker does not, and it has fitted the size.
    assert rig.waits == [] and rig.deleter.limits[-1] == 300
    assert runner.job.summary is not None
    assert (runner.job.summary.waits, runner.job.summary.waited_seconds) == ({"yield": 3.0}, 3.0)
    assert [event.seconds for event in rig.heard.batches] == [0.0, 0.0, 2.0, 0.0]


def test_a_stretch_that_does_not_apply_is_a_single_batch(rig: Rig) -> None:
    runner = with_stretches(rig, lambda within: None, script=(deleted(5, "c"), DONE))
    assert runner.run() is Outcome.FINISHED
    assert rig.counts(runner).batches == 3


def test_what_was_done_before_a_stretch_ended_early_counts_once(rig: Rig) -> None:
    def broken(within: Stretch) -> Batch:
        rig.deleter.save(within, "c", 10)
        rig.deleter.save(within, "d", 7)
        rig.advance(1.0)
        raise Locked("a row is locked")

    runner = with_stretches(rig, broken, script=(deleted(3, "e"), DONE))
    assert runner.run() is Outcome.FINISHED
    alone = sum(event.batch.deleted for event in rig.heard.batches[:2])
    counts = rig.counts(runner)
    assert (counts.deleted, counts.batches) == (alone + 20, 5)
    assert [event.batch.deleted for event in rig.heard.batches[2:]] == [17, 3, 0]
    # What comes next begins where the last batch has committed; nothing has to be waited for.
    assert rig.deleter.gone_on == ["d"] and rig.waits == []
    assert rig.heard.batches[2].batch.transactions == (0.25, 0.25)


def test_where_a_stretch_did_nothing_the_task_stays_where_it_is(rig: Rig) -> None:
    """Further than what it has saved: a scan that finds nothing saves its cursor now and then."""

    def met(within: Stretch) -> Batch:
        assert rig.state(runner.task).task.cursor == "b"
        raise Locked("a row is locked")

    scanned = without_checkpoint(Batch(examined=10, cursor="far"))
    runner = with_stretches(rig, lambda within: None, met, script=(scanned, deleted(3, "z"), DONE))
    assert runner.run() is Outcome.FINISHED
    assert rig.deleter.gone_on == []
    assert [event.batch.cursor for event in rig.heard.batches][-3:] == ["far", "z", None]


def test_a_table_that_is_locked_for_long_is_given_back_whatever_stretches_it_could_make(rig: Rig) -> None:
    def met(within: Stretch) -> Batch:
        raise Locked("the table is locked")

    locked = [Locked("the table is locked")] * (MAX_RETRIES + 1)
    runner = with_stretches(rig, *[met] * len(locked), script=locked)
    with pytest.raises(Locked):
        runner.run()
    # The waits become longer, and while it is locked no stretch is tried again.
    assert rig.waits[-1] > rig.waits[0] and len(rig.deleter.long) == MAX_RETRIES


def test_a_stretch_that_was_interrupted_is_given_back_as_it_stands(rig: Rig) -> None:
    def stopping(within: Stretch) -> Batch:
        rig.deleter.save(within, "c", 10)
        runner.stop()
        raise Interrupted("stopped")

    runner = with_stretches(rig, stopping)
    assert runner.run() is Outcome.RESIGNED
    state = rig.state(runner.task)
    assert (state.task.cursor, state.task.counts.batches, state.task.owner) == ("c", 3, None)


def test_a_stretch_of_a_task_that_another_worker_has_taken_saves_nothing(rig: Rig) -> None:
    def taken(within: Stretch) -> None:
        other = replace(runner.task, fence=runner.task.fence + 1)
        with rig.catalog.writing() as connection:
            connection.exec_driver_sql("UPDATE lapse_task SET fence = fence + 1")
        with pytest.raises(AssertionError):
            rig.deleter.save(within, "x", 10)
        assert rig.state(other).task.cursor == "b"
        return

    runner = with_stretches(rig, taken, script=(deleted(3, "c"),))
    assert runner.run() is Outcome.FENCED


@pytest.mark.parametrize("options", ["ttl_delete_rate_limit = 1000000", "ttl_select_rate_limit = 1000000"])
def test_rates_are_kept_batch_by_batch(rig: Rig, options: str) -> None:
    rig.database.execute(f"ALTER TABLE events SET ({options})")

    def never(within: Stretch) -> Batch:
        raise AssertionError("a stretch")

    runner = with_stretches(rig, never)
    assert runner.run() is Outcome.FINISHED
