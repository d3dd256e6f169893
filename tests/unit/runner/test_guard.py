"""The first run of a policy is held where it looks like a mistake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lapse.engines.base import Expiring
from lapse.runner.guard import LARGE_SHARE, SMALL_TABLE_ROWS, blocker_of
from tests.unit.runner.build import NOW


def found(rows: int, expired: int, oldest: datetime | None = None, *, exact: bool = True) -> Expiring:
    return Expiring(counts=(expired,), rows=rows, bytes=None, oldest=oldest, exact=exact, method="scan")


def test_a_small_table_is_not_worth_a_question() -> None:
    rows = SMALL_TABLE_ROWS - 1
    assert blocker_of([found(rows, rows, datetime(1970, 1, 1, tzinfo=UTC))], NOW) is None


@pytest.mark.parametrize(("expired", "is_held"), [(5_000, False), (5_001, True), (10_000, True), (0, False)])
def test_more_than_half_of_the_rows(expired: int, is_held: bool) -> None:
    assert LARGE_SHARE == 0.5
    assert (blocker_of([found(10_000, expired)], NOW) is not None) is is_held


def test_the_reason_has_the_numbers() -> None:
    assert blocker_of([found(20_000, 15_000)], NOW) == "the first run would delete 15,000 of 20,000 rows (75%)"
    assert blocker_of([found(20_000, 15_000, exact=False)], NOW) == (
        "the first run would delete about 15,000 of 20,000 rows (75%)"
    )


@pytest.mark.parametrize(
    "oldest", [datetime(1970, 1, 1, tzinfo=UTC), datetime(1989, 12, 31, tzinfo=UTC), NOW + timedelta(days=101 * 365)]
)
def test_times_that_no_row_has(oldest: datetime) -> None:
    reason = blocker_of([found(10_000, 1, oldest)], NOW)
    assert reason is not None
    assert f"{oldest:%Y-%m-%d}" in reason


@pytest.mark.parametrize("oldest", [None, datetime(1990, 1, 1, tzinfo=UTC), NOW, NOW + timedelta(days=99 * 365)])
def test_times_that_rows_have(oldest: datetime | None) -> None:
    assert blocker_of([found(10_000, 1, oldest)], NOW) is None


def test_partitions_are_judged_together() -> None:
    """One that has expired as a whole is what partitions by time are for."""
    assert blocker_of([found(10_000, 10_000), found(10_000, 0), found(10_000, 0)], NOW) is None
    assert blocker_of([found(6_000, 6_000), found(4_000, 0)], NOW) is not None


def test_the_oldest_of_all_partitions_counts() -> None:
    parts = [found(10_000, 0, NOW), found(1, 1, datetime(1971, 5, 4, tzinfo=UTC)), found(1, 0, None)]
    assert "1971-05-04" in (blocker_of(parts, NOW) or "")
