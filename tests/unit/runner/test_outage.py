"""An outage is told once when it begins and once when it is over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseUnavailable
from lapse.runner import outage
from lapse.runner.outage import Outage


def test_pauses_grow_and_start_again(caplog: pytest.LogCaptureFixture) -> None:
    found = Outage()
    found.over()
    assert not found.is_on
    pauses = []
    for _ in range(8):
        found.met("no answer")
        pauses.append(found.pause_seconds)
        found.tried()
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    found.over()
    assert (found.is_on, found.pause_seconds) == (False, 1.0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the database is unreachable: no answer; trying again with growing pauses",
        "the database is reachable again after 0 s",
    ]


def test_a_worker_tells_it_once_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_SECONDS", 0.001)
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}") as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
        worker = database.worker()
        real, rounds = worker._scheduler.run_once, iter(range(100))

        def sometimes(*, patient: bool, **_: object) -> object:
            number = next(rounds)
            if number < 6:
                raise DatabaseUnavailable("the server closed the connection")
            worker.stop()
            return real(patient=patient)

        monkeypatch.setattr(worker._scheduler, "run_once", sometimes)
        worker.serve()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2, said
    assert said[0].startswith("the database is unreachable: the server closed the connection")
    assert said[1].startswith("the database is reachable again after")
