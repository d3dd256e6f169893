"""When the next job is due."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lapse.model import interval
from lapse.model.policy import Policy
from lapse.model.settings import Settings
from lapse.schedule import next_run, recurrence

NOW = datetime(2026, 3, 15, 12, 34, 56, tzinfo=UTC)
AFTER = interval.parse("1 day")


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        (None, datetime(2026, 3, 15, 13, 0, tzinfo=UTC)),
        ("@daily", datetime(2026, 3, 16, 0, 0, tzinfo=UTC)),
        ("@weekly", datetime(2026, 3, 22, 0, 0, tzinfo=UTC)),
        ("*/15 * * * *", datetime(2026, 3, 15, 12, 45, tzinfo=UTC)),
    ],
)
def test_cron(cron: str | None, expected: datetime) -> None:
    policy = Policy(expire_after=AFTER, job_cron=cron)
    assert next_run(policy, Settings.from_texts({}), after=NOW) == expected


def test_intervals_count_from_the_last_run() -> None:
    policy = Policy(expire_after=AFTER, job_interval=interval.parse("90 minutes"))
    assert next_run(policy, Settings.from_texts({}), after=NOW) == datetime(2026, 3, 15, 14, 4, 56, tzinfo=UTC)
    assert recurrence(policy) == "every 1 hour 30 minutes"


def test_the_global_interval_is_for_policies_without_their_own() -> None:
    settings = Settings.from_texts({"tidb_ttl_job_run_interval": "2 hours"})
    assert next_run(Policy(expire_after=AFTER), settings, after=NOW).hour == 14
    assert next_run(Policy(expire_after=AFTER, job_cron="@hourly"), settings, after=NOW).hour == 13
