"""The rig on which tasks run without a server, and without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.clock import ManualClock
from tests.unit.runner.build import NOW
from tests.unit.runner.rig import CREATE, Rig


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    clock = ManualClock(NOW)
    with Lapse(f"sqlite:///{tmp_path / 'rig.db'}", clock=clock) as database:
        database.execute(CREATE)
        database.execute("INSERT INTO events VALUES (1, '2020-01-01 00:00:00')")
        yield Rig(database, clock, monkeypatch)
