"""What `--json` and the API answer: stable names, ISO 8601 times, null for what is not there."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from lapse.app.doctor.finding import Finding, Level
from lapse.app.forecast import Forecast, ForecastDay, SteadyState
from lapse.app.records import (
    comment_record,
    expiry_words,
    finding_record,
    forecast_record,
    job_record,
    run_record,
    status_record,
)
from lapse.model import interval
from lapse.model.blocked import BlockCode
from lapse.model.job import Counts, JobStatus, JobSummary, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, TableName
from lapse.runner.comments import CommentProblem
from lapse.runner.promise import Health
from lapse.runner.scheduler import Skip
from lapse.runner.worker import RunResult
from tests.unit.app.build import promise, status
from tests.unit.runner.build import NOW, ago, job, stored

DAY, WEEK = interval.parse("1 day", name="x"), interval.parse("7 days", name="x")


def test_a_job() -> None:
    found = job_record(
        job(
            table=TableName("events", "public", "p1"),
            status=JobStatus.FINISHED,
            finished_at=NOW,
            path=Path(kind=PathKind.INDEX, index="by_at", evidence="indexed"),
            counts=Counts(selected=9, deleted=5, held=2, skipped=1, errors=1, batches=3),
            summary=JobSummary(total_rows=9, waits={"gate": 1.5}),
        )
    )
    assert (found["table"], found["schema"], found["partition"]) == ("events", "public", "p1")
    assert (found["status"], found["path"], found["path_index"]) == ("finished", "index", "by_at")
    assert (found["finished_at"], found["cutoff"]) == ("2026-03-01T12:00:00+00:00", "2026-03-01T11:59:00+00:00")
    assert [found[name] for name in ("selected", "deleted", "held", "skipped", "errors", "batches")] == [
        9,
        5,
        2,
        1,
        1,
        3,
    ]
    assert (found["summary"]["total_rows"], found["summary"]["waits"]) == (9, {"gate": 1.5})
    assert json.loads(json.dumps(found)) == found


def test_a_job_that_has_not_begun_has_nulls_and_no_empty_texts() -> None:
    found = job_record(job(started_at=None, finished_at=None))
    assert (found["started_at"], found["finished_at"], found["summary"], found["reason"]) == (None, None, None, None)


def test_a_job_without_a_reason_of_its_own_says_what_it_waits_for() -> None:
    assert job_record(job(waiting_for="locked"))["reason"] == "locked"
    assert job_record(job(waiting_for="locked", reason="paused by request"))["reason"] == "paused by request"


def test_counts_of_the_engine_s_own_ttl_are_said_to_be_estimates() -> None:
    assert job_record(job(path=Path(kind=PathKind.NATIVE)))["estimated"] is True
    assert job_record(job())["estimated"] is False


def test_a_table() -> None:
    through = job(status=JobStatus.FINISHED, counts=Counts(held=4, skipped=2))
    found = status_record(
        status(
            kept=promise(Health.BLOCKED, late=2, code=BlockCode.LOCKED, reason="locked by another session"),
            state="blocked",
            reason="locked",
            stored=stored(Policy(column="at", interval=DAY), version=3),
            statistics='{"total_rows": 5}',
            blocked_since=ago(minutes=1),
            last=through,
            last_through=through,
            next_run_at=None,
        )
    )
    assert (found["state"], found["health"], found["blocked"]) == ("blocked", "blocked", "locked")
    assert (found["reason"], found["why"]) == ("locked", "locked by another session")
    assert (found["expires"], found["policy_version"]) == ("1 day after at", 3)
    assert (found["next_run_at"], found["blocked_since"]) == (None, "2026-03-01T11:59:00+00:00")
    assert (found["lateness_seconds"], found["delete_within_seconds"]) == (7200.0, 86400.0)
    assert (found["held_rows"], found["locked_rows"], found["statistics"]) == (4, 2, {"total_rows": 5})
    assert (found["current_job"], found["last_job"]["job_id"]) == (None, through.id)
    assert json.loads(json.dumps(found)) == found


def test_a_comment_that_proposes_a_policy_and_one_that_is_wrong() -> None:
    proposal = CommentProblem(
        table=TableName("logs"), reason="not obeyed", text="ttl…", policy=Policy(expression="at"), proposal=True
    )
    found = comment_record(proposal)
    assert (found["state"], found["expires"], found["fix"]) == ("proposed", "at at", "lapse accept URL logs")
    wrong = comment_record(replace(proposal, proposal=False, policy=None))
    assert (wrong["state"], wrong["expires"], wrong["policy"], wrong["fix"]) == ("refused", None, None, None)


def test_a_run() -> None:
    result = RunResult(
        jobs=(job(status=JobStatus.FINISHED, counts=Counts(deleted=3)),),
        skipped=(Skip(table=TableName("logs"), reason="waits", blocked=BlockCode.GUARD),),
        reclaimed_bytes=10,
    )
    found = run_record(result)
    assert (found["deleted"], found["complete"], found["failed"], found["reclaimed_bytes"]) == (3, False, False, 10)
    assert found["skipped"] == [{"table": "logs", "schema": None, "partition": None, "reason": "waits", "held": True}]
    assert [each["deleted"] for each in found["jobs"]] == [3]


def test_a_forecast() -> None:
    day = ForecastDay(start=NOW, end=NOW + timedelta(days=1), rows=7, bytes=None)
    forecast = Forecast(
        table=TableName("events"),
        policy=Policy(expression="at"),
        at=NOW,
        ttl=None,
        rows=100,
        bytes=None,
        expired=3,
        days=(day,),
        steady=None,
        exact=False,
        method="sample",
        margin=2,
    )
    found = forecast_record(forecast)
    assert found["days"] == [{"start": "2026-03-01T12:00:00+00:00", "rows": 7, "bytes": None}]
    assert (found["ttl"], found["steady_state"], found["exact"], found["margin"]) == (None, None, False, 2)
    steady = SteadyState(ttl=DAY, rows_per_day=2.5, rows=3, bytes=30)
    with_steady = forecast_record(replace(forecast, ttl=DAY, steady=steady))
    assert with_steady["ttl"] == "1 day"
    assert with_steady["steady_state"] == {"ttl": "1 day", "rows_per_day": 2.5, "rows": 3, "bytes": 30}


def test_a_finding() -> None:
    finding = Finding(level=Level.PROBLEM, subject="events", text="no index", fix="CREATE INDEX …")
    assert finding_record(finding) == {
        "level": "problem",
        "subject": "events",
        "text": "no index",
        "fix": "CREATE INDEX …",
        "fixed": False,
    }


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(expression="created + lifetime"), "at created + lifetime"),
        (Policy(column="at", interval=DAY), "1 day after at"),
        (Policy(expire_after=DAY), "1 day after insert or update"),
        (Policy(expression="at", filter="status = 'done'"), "at at, if status = 'done'"),
        (Policy(column=MANAGED_COLUMN, interval=DAY), f"1 day after {MANAGED_COLUMN}"),
        (Policy(expire_after=WEEK, column=MANAGED_COLUMN, interval=DAY), f"1 day after {MANAGED_COLUMN}"),
    ],
)
def test_which_rows_expire_and_when(policy: Policy, words: str) -> None:
    assert expiry_words(policy) == words
