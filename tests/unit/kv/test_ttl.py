from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.errors import InvalidValue
from lapse.kv.ttl import (
    MAX_EXPIRY_MS,
    NEVER_MS,
    Ttl,
    expiry_ms,
    from_millis,
    read_default,
    read_duration,
    to_millis,
)
from lapse.model.interval import Interval

NOW_MS = to_millis(datetime(2030, 1, 31, 12, tzinfo=UTC))
HOUR_MS = 3_600_000


def expire(ttl: Any, default: Any = None) -> int:
    return expiry_ms(ttl, now_ms=NOW_MS, default=read_default(default))


def test_default_no_expiry_and_durations() -> None:
    assert expire(Ttl.DEFAULT) == NEVER_MS
    assert expire(Ttl.DEFAULT, "1 hour") == NOW_MS + HOUR_MS
    assert expire(Ttl.NO_EXPIRY, "1 hour") == NEVER_MS
    assert expire(Interval(micros=3_600_000_000)) == NOW_MS + HOUR_MS
    assert expire(timedelta(hours=1)) == NOW_MS + HOUR_MS


def test_months_follow_the_calendar() -> None:
    assert from_millis(expire("1 month")) == datetime(2030, 2, 28, 12, tzinfo=UTC)
    assert from_millis(expire(Ttl.DEFAULT, "1 month")) == datetime(2030, 2, 28, 12, tzinfo=UTC)


def test_instants_in_any_zone() -> None:
    moment = datetime(2030, 1, 31, 15, tzinfo=timezone(timedelta(hours=2)))
    assert expire(moment) == NOW_MS + HOUR_MS


def test_a_part_of_a_millisecond_counts_as_a_whole_one() -> None:
    assert expire(timedelta(microseconds=1)) == NOW_MS + 1
    assert expire("1500 us") == NOW_MS + 2


@pytest.mark.parametrize("ttl", ["0 s", timedelta(0), timedelta(-1), timedelta.max, "1001 years", from_millis(NOW_MS)])
def test_refused(ttl: Any) -> None:
    with pytest.raises(InvalidValue):
        expire(ttl)


def test_an_expiry_after_the_year_9999_is_refused() -> None:
    late = to_millis(datetime(9999, 6, 1, tzinfo=UTC))
    for ttl in ("1 year", "366 days"):
        with pytest.raises(InvalidValue, match="10000"):
            expiry_ms(ttl, now_ms=late, default=None)
    assert expiry_ms("1 day", now_ms=late, default=None) < MAX_EXPIRY_MS


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))  # noqa: DTZ001
def test_milliseconds_and_back(moment: datetime) -> None:
    back = from_millis(to_millis(moment))
    assert timedelta(0) <= moment - back < timedelta(milliseconds=1)


@given(st.integers(min_value=1, max_value=10**12))
def test_a_stored_default_reads_as_it_was(micros: int) -> None:
    duration = read_duration(timedelta(microseconds=micros))
    assert read_duration(str(duration)) == duration
