"""A database's clock that jumps ahead is not trusted until a person has confirmed it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.catalog import settings as stored_settings
from lapse.clock import ManualClock
from lapse.model.settings import Settings
from lapse.runner.clockwatch import TOLERANCE, ClockWatch
from tests.unit.runner.build import NOW


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Lapse]:
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=ManualClock(NOW)) as found:
        found.catalog.install()
        yield found


class Watched:
    """A watch, with how much time has passed on this machine."""

    def __init__(self, database: Lapse) -> None:
        self.passed = 0.0
        self._catalog = database.catalog
        self._watch = ClockWatch(lambda: self.passed)

    def check(self, step: timedelta) -> Settings:
        with self._catalog.reading() as connection:
            current = stored_settings.load_settings(connection)
        return self._watch.check(self._catalog, NOW + step, current)


@pytest.fixture
def watched(database: Lapse) -> Watched:
    found = Watched(database)
    found.check(timedelta(0))
    return found


def test_a_clock_that_goes_on_as_time_does(watched: Watched) -> None:
    watched.passed = 7 * 86_400.0
    assert watched.check(timedelta(days=7)).clock_hold is None


@pytest.mark.parametrize("off", [TOLERANCE, -timedelta(days=300), timedelta(minutes=9)])
def test_what_it_may_be_off_by(watched: Watched, off: timedelta) -> None:
    watched.passed = 60.0
    assert watched.check(timedelta(seconds=60) + off).clock_hold is None


def test_a_jump_ahead_holds_all_jobs_and_says_how_to_go_on(watched: Watched, database: Lapse) -> None:
    watched.passed = 60.0
    held = watched.check(timedelta(hours=5, seconds=60)).clock_hold
    assert held == "the database's clock jumped ahead by 5:00:00; confirm with lapse resume --clock"
    assert database.clock_hold() == held


def test_it_stays_held_until_it_is_confirmed(watched: Watched, database: Lapse) -> None:
    watched.passed = 60.0
    watched.check(timedelta(hours=5))
    watched.passed = 120.0
    assert watched.check(timedelta(hours=5, seconds=60)).clock_hold is not None
    assert database.confirm_clock()
    watched.passed = 180.0
    assert watched.check(timedelta(hours=5, seconds=120)).clock_hold is None
    assert not database.confirm_clock()


def test_a_clock_set_back_and_forward_again_has_jumped(watched: Watched) -> None:
    watched.passed = 1.0
    assert watched.check(-timedelta(hours=3)).clock_hold is None
    watched.passed = 2.0
    assert watched.check(timedelta(0)).clock_hold is not None
