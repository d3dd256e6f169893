"""Does a policy keep its promise? All its physical tables together, the worst of them first."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from lapse.app.health import policy_healths
from lapse.app.status import DUE
from lapse.model.blocked import BlockCode
from lapse.model.job import Counts, JobStatus
from lapse.model.table import TableName
from lapse.runner.promise import Health
from tests.unit.app.build import health, promise, status
from tests.unit.runner.build import NOW, ago, job, stored


def counted(rows: int, expired: int, minutes: float) -> str:
    at = ago(minutes=minutes).isoformat()
    return json.dumps({"total_rows": rows, "total_expired_rows": expired, "counted_at": at})


def test_the_worst_part_is_the_verdict_and_the_furthest_behind_is_the_lateness() -> None:
    found = health(
        status(kept=promise(Health.ON_TIME, late=1)),
        status(kept=promise(Health.BLOCKED, late=2, code=BlockCode.LOCKED, reason="locked")),
        status(kept=promise(Health.LATE, late=30, within=timedelta(hours=10))),
    )
    assert (found.health, found.blocked, found.why) == (Health.BLOCKED, BlockCode.LOCKED, "locked")
    assert (found.lateness, found.promise, found.promise_used) == (timedelta(hours=30), timedelta(hours=10), 3.0)


def test_among_equally_bad_parts_the_latest_speaks() -> None:
    found = health(*(status(kept=promise(Health.LATE, late=late, reason=f"{late} h")) for late in (26, 40, 30)))
    assert found.why == "40 h"


def test_each_policy_is_judged_by_itself() -> None:
    parts = [status("a"), status("b", stored=stored(id=2, table=TableName("b"))), status("a")]
    assert [(str(found.stored.table), len(found.parts)) for found in policy_healths(parts)] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("code", "fails"),
    [
        (BlockCode.ERROR, True),
        (BlockCode.PRIVILEGE, True),
        (BlockCode.GUARD, False),
        (BlockCode.ROWS_HELD, False),
        (BlockCode.NO_WORKER, False),
    ],
)
def test_a_person_who_is_asked_and_rows_that_are_held_are_no_failure(code: BlockCode, fails: bool) -> None:
    found = health(status(), status(kept=promise(Health.BLOCKED, code=code)))
    assert found.is_failing is fails


def test_a_code_without_a_block_is_no_failure() -> None:
    assert not health(status(kept=promise(Health.ON_TIME, code=BlockCode.GRACE))).is_failing


def test_the_next_run_is_the_first_of_its_parts_and_none_is_at_once() -> None:
    soon, later = NOW + timedelta(minutes=1), NOW + timedelta(hours=1)
    assert health(status(next_run_at=later), status(next_run_at=soon)).next_run_at == soon
    assert health(status(next_run_at=later), status(next_run_at=None)).next_run_at is None


def test_a_job_starts_no_earlier_than_the_grace_period_ends() -> None:
    soon, later = NOW + timedelta(minutes=1), NOW + timedelta(hours=1)
    assert health(status(next_run_at=soon, grace_until=later)).starts_at == later
    assert health(status(next_run_at=later, grace_until=soon)).starts_at == later
    assert health(status(next_run_at=None, grace_until=soon)).starts_at == soon
    assert health(status(next_run_at=None)).starts_at is None


def test_a_policy_is_due_where_a_part_is_and_none_is_at_work() -> None:
    assert health(status(), status(state=DUE)).is_due
    assert not health(status(current=job()), status(state=DUE)).is_due
    assert not health(status(), status()).is_due


def test_jobs_and_rows_of_all_parts() -> None:
    first = job(id=3, status=JobStatus.FINISHED, counts=Counts(held=2, skipped=1))
    second = job(id=8, status=JobStatus.FINISHED, counts=Counts(held=3, skipped=4))
    running = job(id=9)
    found = health(
        status(last=first, last_through=first, last_success_at=ago(hours=3)),
        status(last=second, last_through=second, last_success_at=ago(hours=1), current=running),
        status(),
    )
    assert (found.last, found.jobs) == (second, (running,))
    assert (found.held, found.locked) == (5, 5)
    assert found.last_success_at == ago(hours=1)


def test_a_policy_that_never_ran() -> None:
    found = health()
    assert (found.last, found.jobs, found.held, found.last_success_at, found.counted) == (None, (), 0, None, None)


def test_counts_add_up_and_are_as_old_as_the_oldest() -> None:
    found = health(status(statistics=counted(10, 4, 5)), status(statistics=counted(20, 1, 9)))
    assert found.counted is not None
    assert (found.counted.rows, found.counted.expired, found.counted.counted_at) == (30, 5, ago(minutes=9))


def test_a_part_of_the_sum_is_not_shown_as_the_whole() -> None:
    assert health(status(statistics=counted(10, 4, 5)), status()).counted is None
