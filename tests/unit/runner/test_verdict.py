"""The judge of jobs: the first reason wins, reasons to end come before reasons to pause, and each pause has a code."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from lapse.model.policy import Policy
from lapse.model.settings import CLOCK_HOLD
from lapse.model.statement import JobAction
from lapse.runner.verdict import PauseCode, judge
from tests.unit.runner.build import NOW, ago, job, settings, stored

PAUSED = Policy(expression="at", pause=True)
CLOSED = {
    "tidb_ttl_job_schedule_window_start_time": "01:00 +0000",
    "tidb_ttl_job_schedule_window_end_time": "02:00 +0000",
}


def test_a_job_without_a_reason_goes_on() -> None:
    verdict = judge(job(), stored(), settings(), NOW)
    assert verdict.goes_on
    assert not verdict.ends
    assert verdict.pause is None


@pytest.mark.parametrize(
    ("fields", "policy", "texts", "status"),
    [
        ({"control": JobAction.CANCEL}, stored(), {}, JobStatus.CANCELLED),
        ({}, None, {}, JobStatus.CANCELLED),
        ({}, stored(), {"tidb_ttl_job_enable": "OFF"}, JobStatus.CANCELLED),
        ({}, stored(suspended=BlockCode.DATABASE_COPIED), {}, JobStatus.CANCELLED),
        ({"started_at": ago(hours=7)}, stored(), {"lapse_job_timeout": "6 hours"}, JobStatus.TIMED_OUT),
    ],
)
def test_reasons_to_end(fields: dict[str, Any], policy: Any, texts: dict[str, str], status: JobStatus) -> None:
    verdict = judge(job(**fields), policy, settings(texts), NOW)
    assert verdict.status is status
    assert verdict.ends
    assert verdict.reason


@pytest.mark.parametrize(
    ("fields", "policy", "texts", "code"),
    [
        ({}, stored(), {CLOCK_HOLD: "the clock jumped"}, PauseCode.CLOCK),
        ({"control": JobAction.PAUSE}, stored(), {}, PauseCode.REQUEST),
        ({}, stored(PAUSED), {}, PauseCode.POLICY),
        ({}, stored(), CLOSED, PauseCode.WINDOW),
    ],
)
def test_reasons_to_pause(fields: dict[str, Any], policy: Any, texts: dict[str, str], code: PauseCode) -> None:
    verdict = judge(job(**fields), policy, settings(texts), NOW)
    assert (verdict.status, verdict.pause) == (JobStatus.PAUSED, code)
    assert not verdict.ends
    assert verdict.reason


def test_cancelling_wins_over_pausing() -> None:
    verdict = judge(job(control=JobAction.CANCEL), stored(PAUSED), settings(CLOSED), NOW)
    assert verdict.status is JobStatus.CANCELLED


def test_a_clock_that_jumped_times_nothing_out() -> None:
    current = settings({CLOCK_HOLD: "the clock jumped", "lapse_job_timeout": "6 hours"})
    assert judge(job(started_at=ago(days=300)), stored(), current, NOW).pause is PauseCode.CLOCK


def test_a_request_is_told_before_the_policy() -> None:
    assert judge(job(control=JobAction.PAUSE), stored(PAUSED), settings(), NOW).pause is PauseCode.REQUEST


def test_a_job_that_was_never_started_times_out_by_its_creation() -> None:
    waiting = job(started_at=None, created_at=ago(hours=7), status=JobStatus.WAITING)
    assert judge(waiting, stored(), settings({"lapse_job_timeout": "6 hours"}), NOW).status is JobStatus.TIMED_OUT
    assert judge(waiting, stored(), settings({"lapse_job_timeout": "8 hours"}), NOW).goes_on


def test_the_window_opens_and_closes_by_the_minute() -> None:
    current = settings(CLOSED)
    one = NOW.replace(hour=1, minute=0)
    assert judge(job(started_at=one), stored(), current, one).goes_on
    assert judge(job(started_at=one), stored(), current, one - timedelta(minutes=1)).pause is PauseCode.WINDOW
    assert judge(job(started_at=one), stored(), current, one + timedelta(hours=1)).goes_on
    assert judge(job(started_at=one), stored(), current, one + timedelta(hours=1, minutes=1)).pause is PauseCode.WINDOW
