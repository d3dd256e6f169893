"""The thread in which a worker purges key-value stores."""

from __future__ import annotations

import logging
from threading import Event

import pytest

from lapse.cli import stores
from lapse.kv import Purger, PurgerConfig


class Stuck(Purger):
    """Waits for something that does not come."""

    def __init__(self) -> None:
        super().__init__(PurgerConfig(stores=()))
        self.began, self.let_go = Event(), Event()

    def run_forever(self, stop: Event, **_: object) -> None:
        self.began.set()
        self.let_go.wait()


def test_a_store_that_does_not_answer_does_not_keep_a_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stores, "STOP_S", 0.01)
    purger, stopping = Stuck(), Event()
    with caplog.at_level(logging.WARNING), stores.purging(purger, stopping):
        purger.began.wait()
    purger.let_go.set()
    assert stopping.is_set()
    assert "did not answer" in caplog.text


def test_a_purge_that_stops_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    stopping = Event()
    with stores.purging(Purger(PurgerConfig(stores=())), stopping):
        pass
    assert stopping.is_set() and caplog.text == ""
