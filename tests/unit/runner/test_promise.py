"""The promise of a policy: what every surface says about a table, from what is stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lapse.catalog.jobs import LastJobs
from lapse.model import interval
from lapse.model.blocked import BlockCode
from lapse.model.job import Counts, Job, JobStatus
from lapse.model.policy import Policy
from lapse.model.settings import CLOCK_HOLD
from lapse.model.statement import JobAction
from lapse.runner.promise import Facts, Health, Promise, behind, grace_words, promise
from tests.unit.runner.build import NOW, ago, job, physical, settings, stored

TWO_HOURS = Policy(expression="at", delete_within=interval.parse("2 hours", name="x"))


def ended(status: JobStatus = JobStatus.FINISHED, **fields: Any) -> Job:
    return job(status=status, finished_at=ago(minutes=1), **fields)


def judged(**fields: Any) -> Promise:
    values: dict[str, Any] = {
        "now": NOW,
        "stored": stored(TWO_HOURS),
        "physical": physical(),
        "job": None,
        "last": LastJobs(),
        "settings": settings(),
        "has_workers": True,
    }
    return promise(Facts(**values | fields))


def test_a_clean_job_sets_the_watermark() -> None:
    clean = ended(cutoff=ago(minutes=30))
    found = judged(last=LastJobs(ended=clean, finished=clean, clean=clean, through=clean))
    assert (found.health, found.code, found.halted) == (Health.ON_TIME, None, False)
    assert (found.watermark, found.lateness, found.used) == (ago(minutes=30), timedelta(minutes=30), 0.25)


def test_before_the_first_clean_job_lateness_counts_from_the_declaration() -> None:
    assert judged().lateness == timedelta(hours=1)


def test_a_clock_that_runs_behind_makes_nothing_early() -> None:
    clean = ended(cutoff=NOW + timedelta(minutes=1))
    assert judged(last=LastJobs(ended=clean, clean=clean)).lateness == timedelta(0)


def test_late_is_later_than_promised_and_says_why() -> None:
    policy = stored(TWO_HOURS, created_at=ago(hours=3))
    assert judged(stored=policy).health is Health.LATE
    assert judged(stored=policy).reason == "no job has finished in time"
    assert judged(stored=policy, has_workers=False).reason == "no job has finished in time; no worker is running"
    assert judged(stored=policy, job=job()).reason == "the job is at work"
    assert judged(stored=policy, job=job(waiting_for="rate limit of 5 rows/s")).reason == "rate limit of 5 rows/s"
    through = ended(counts=Counts(skipped=1_234))
    locked = judged(stored=policy, last=LastJobs(ended=through, through=through))
    assert locked.reason == "1,234 expired rows were locked by other sessions"


@pytest.mark.parametrize(
    ("fields", "health", "code"),
    [
        ({"stored": stored(TWO_HOURS, suspended=BlockCode.DATABASE_COPIED)}, Health.BLOCKED, BlockCode.DATABASE_COPIED),
        ({"stored": stored(Policy(expression="at", pause=True))}, Health.PAUSED, None),
        ({"settings": settings({"tidb_ttl_job_enable": "OFF"})}, Health.PAUSED, None),
        ({"settings": settings({CLOCK_HOLD: "jumped"})}, Health.BLOCKED, BlockCode.CLOCK),
        ({"stored": stored(TWO_HOURS, held="waiting for confirmation: 90 %")}, Health.BLOCKED, BlockCode.GUARD),
        ({"physical": physical(blocked=BlockCode.PRIVILEGE, blocked_reason="no right")}, Health.BLOCKED, "privilege"),
        ({"job": job(control=JobAction.PAUSE, reason="paused by request")}, Health.PAUSED, None),
    ],
)
def test_what_halts_a_table(fields: dict[str, Any], health: Health, code: BlockCode | None) -> None:
    found = judged(**fields)
    assert (found.health, found.code, found.halted) == (health, code, True)
    assert found.reason


def test_a_guard_that_was_switched_off_holds_nothing() -> None:
    policy = Policy(expression="at", guard=False)
    assert judged(stored=stored(policy, held="waiting for confirmation")).health is Health.ON_TIME


def test_what_is_tried_again_says_since_when() -> None:
    locked = physical(blocked=BlockCode.LOCKED, blocked_reason="the table stayed locked", blocked_since=ago(minutes=5))
    assert judged(physical=locked).reason == "the table stayed locked (since 2026-03-01 11:55:00 UTC)"
    gone = physical(blocked=BlockCode.TABLE_GONE, blocked_reason="gone", blocked_since=ago(minutes=5))
    assert judged(physical=gone).reason == "gone"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (ended(JobStatus.TIMED_OUT, reason="not done after 6 hours"), BlockCode.TIMED_OUT),
        (ended(JobStatus.FAILED, reason="disk full"), BlockCode.ERROR),
    ],
)
def test_a_job_that_failed_blocks_until_the_next_one(last: Job, code: BlockCode) -> None:
    assert judged(last=LastJobs(ended=last)).code is code
    assert judged(last=LastJobs(ended=last), job=job()).code is None


def test_rows_that_are_held_block_and_are_counted() -> None:
    through = ended(counts=Counts(held=1_200))
    found = judged(last=LastJobs(ended=through, through=through))
    assert (found.code, found.halted) == (BlockCode.ROWS_HELD, False)
    assert "1,200 expired rows" in (found.reason or "")


def test_grace_is_no_failure_but_is_told() -> None:
    policy = stored(TWO_HOURS, grace_until=NOW + timedelta(minutes=4))
    assert (judged(stored=policy).health, judged(stored=policy).code) == (Health.ON_TIME, BlockCode.GRACE)
    assert judged(stored=stored(TWO_HOURS, grace_until=ago(seconds=1))).code is None


@pytest.mark.parametrize(
    ("left", "words"),
    [(30, "30 s"), (61, "2 min"), (7200, "120 min"), (7201, "3 h"), (2 * 86_400, "48 h"), (2 * 86_400 + 1, "3 days")],
)
def test_the_words_of_a_grace_period(left: int, words: str) -> None:
    assert grace_words(NOW + timedelta(seconds=left), NOW).startswith(
        f"deletes nothing for another {words}, until 2026"
    )


def test_a_first_job_needs_a_worker() -> None:
    due = physical(next_run_at=None)
    assert judged(physical=due, has_workers=False).code is BlockCode.NO_WORKER
    assert judged(physical=due).code is None
    assert judged(has_workers=False).code is None


def test_a_month_is_as_long_as_the_one_that_begins_now() -> None:
    policy = Policy(expression="at", delete_within=interval.parse("1 month", name="x"))
    assert judged(stored=stored(policy)).within == timedelta(days=31)
    assert behind(policy, watermark=ago(days=31), now=NOW) == 1.0
