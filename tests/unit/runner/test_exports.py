"""When outboxes are looked at, without a database."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from lapse.catalog.policies import StoredPolicy
from lapse.model.policy import Policy
from lapse.runner import exports
from lapse.runner.exports import ENOUGH_ROWS, Exports
from tests.unit.runner.build import stored

SOON_SECONDS = 10.0
TO_FILES = Policy(expression="at", archive="file:///archive")
TO_A_TABLE = Policy(expression="at", archive="table:")


class Looks(Exports):
    """Counts its looks, and finds that jobs are at work."""

    def __init__(self) -> None:
        nothing: Any = type("Catalog", (), {"engine": None})()
        super().__init__(nothing, "tests")
        self.first, self.second = Event(), Event()

    def run_once(self, *, everything: bool = False, only: StoredPolicy | None = None) -> bool:
        (self.second if self.first.is_set() else self.first).set()
        return True


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setattr(exports, "ROUND_SECONDS", 60.0)
    found = Looks()
    found.wake()
    assert found.first.wait(SOON_SECONDS)
    return found


def test_enough_rows_for_a_file_are_not_kept_waiting_for_a_round(looks: Looks) -> None:
    for _ in range(4):
        looks.count(stored(TO_FILES), ENOUGH_ROWS // 4)
    assert looks.second.wait(SOON_SECONDS)
    looks.close()


def test_fewer_rows_and_those_of_archive_tables_wait(looks: Looks) -> None:
    looks.count(stored(TO_FILES), ENOUGH_ROWS - 1)
    looks.count(stored(TO_A_TABLE), ENOUGH_ROWS)
    looks.count(stored(), ENOUGH_ROWS)
    assert not looks.second.wait(0.2)
    looks.close()
    assert looks._thread is not None and not looks._thread.is_alive()
