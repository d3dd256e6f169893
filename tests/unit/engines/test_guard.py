"""A DELETE cannot be built without its expiry condition and its bound; wall clocks are never early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.engines.guard import GuardedDelete
from lapse.engines.walltime import safe_wall_clock
from lapse.errors import LapseError

BERLIN = ZoneInfo("Europe/Berlin")


def test_a_guarded_delete() -> None:
    sql = GuardedDelete(table="t", condition="ts <= 1", bound="id IN (1)", extra="x").sql()
    assert sql == "DELETE FROM t WHERE id IN (1) AND ts <= 1 AND x"


@pytest.mark.parametrize("missing", ["table", "condition", "bound"])
def test_what_is_missing_is_refused(missing: str) -> None:
    parts = {"table": "t", "condition": "c", "bound": "b"} | {missing: "  "}
    with pytest.raises(LapseError, match=missing):
        GuardedDelete(**parts)


@given(st.integers(0, 215 * 24 * 60))
def test_every_reading_of_a_safe_wall_clock_has_passed(minutes: int) -> None:
    """From the day before clocks go forward to the day after they go back."""
    instant = datetime(2026, 3, 28, tzinfo=UTC) + timedelta(minutes=minutes)
    wall = safe_wall_clock(instant, BERLIN)
    for fold in (0, 1):
        assert wall.replace(tzinfo=BERLIN, fold=fold).astimezone(UTC) <= instant
    assert instant.astimezone(BERLIN).replace(tzinfo=None) - wall <= timedelta(hours=1)
