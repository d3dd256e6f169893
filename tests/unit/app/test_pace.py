"""How long a run takes, judged by the last ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from lapse.app.pace import pace_of
from lapse.model import interval
from lapse.model.job import Counts, Job, JobStatus, JobSummary, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import TableName

NOW = datetime(2026, 3, 15, tzinfo=UTC)
POLICY = Policy(column="ts", interval=interval.parse("1 day"))
JOB = Job(
    id=1,
    table_id=1,
    policy_id=1,
    table=TableName("events"),
    policy_version=1,
    cutoff=NOW,
    status=JobStatus.FINISHED,
    control=None,
    reason=None,
    fingerprint="",
    created_at=NOW,
    started_at=NOW,
    finished_at=NOW,
    path=Path(kind=PathKind.PHYSICAL),
    tasks_total=1,
    tasks_finished=1,
    counts=Counts(deleted=1000),
    summary=JobSummary(task_seconds=2.0),
)


def test_the_pace_of_the_last_jobs() -> None:
    pace = pace_of(POLICY, [JOB, replace(JOB, summary=JobSummary(task_seconds=6.0))])
    assert pace is not None
    assert pace.rows_per_second == 250
    assert pace.seconds_for(1000) == 4


def test_a_rate_limit_bounds_it() -> None:
    limited = replace(POLICY, delete_rate_limit=100)
    assert pace_of(limited, [JOB]) == pace_of(limited, [])
    pace = pace_of(limited, [JOB])
    assert pace is not None
    assert pace.seconds_for(1000) == 10


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert pace_of(POLICY, []) is None
    assert pace_of(POLICY, [replace(JOB, counts=Counts())]) is None
    assert pace_of(POLICY, [replace(JOB, status=JobStatus.FAILED)]) is None
