"""Global settings and the schedule window."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lapse.errors import InvalidValue
from lapse.model.settings import SETTINGS, Settings, normalise


def _at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 15, hour, minute, tzinfo=UTC)


def _window(start: str, end: str) -> Settings:
    return Settings.from_texts(
        {
            "tidb_ttl_job_schedule_window_start_time": start,
            "tidb_ttl_job_schedule_window_end_time": end,
        }
    )


def test_defaults_are_valid_and_open_all_day() -> None:
    settings = Settings.from_texts({})
    assert settings.job_enable
    assert settings.window_is_open(_at(0)) and settings.window_is_open(_at(23, 59))
    assert settings.blocker(_at(12)) is None


def test_a_window_includes_its_last_minute() -> None:
    settings = _window("01:00 +0000", "03:00 +0000")
    assert not settings.window_is_open(_at(0, 59))
    assert settings.window_is_open(_at(1)) and settings.window_is_open(_at(3))
    assert not settings.window_is_open(_at(3, 1))


def test_a_window_may_cross_midnight_and_have_an_offset() -> None:
    settings = _window("23:00 +0200", "02:30 +0200")
    assert settings.window_is_open(_at(21)) and settings.window_is_open(_at(0, 30))
    assert not settings.window_is_open(_at(20, 59))
    assert not settings.window_is_open(_at(0, 31))


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("tidb_ttl_job_enable", "off", "OFF"),
        ("TIDB_TTL_DELETE_BATCH_SIZE", " 250 ", "250"),
        ("tidb_ttl_running_tasks", "-1", "-1"),
        ("tidb_ttl_job_run_interval", "90m", "1 hour 30 minutes"),
        ("tidb_ttl_job_schedule_window_start_time", "1:05 -0330", "01:05 -0330"),
        ("lapse_mode", "FAST", "fast"),
    ],
)
def test_values_are_stored_in_one_spelling(name: str, value: str, stored: str) -> None:
    assert normalise(name, value) == (name.lower(), stored)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tidb_ttl_job_enable", "maybe"),
        ("tidb_ttl_delete_batch_size", "0"),
        ("tidb_ttl_scan_worker_count", "257"),
        ("tidb_ttl_running_tasks", "0"),
        ("tidb_ttl_job_schedule_window_end_time", "24:00 +0000"),
        ("lapse_job_timeout", "0 seconds"),
        ("lapse_mode", "loud"),
    ],
)
def test_values_out_of_range_are_refused_never_clamped(name: str, value: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        normalise(name, value)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(InvalidValue, match="tidb_ttl_nonsense"):
        normalise("tidb_ttl_nonsense", "1")
    assert all(setting.help for setting in SETTINGS.values())
