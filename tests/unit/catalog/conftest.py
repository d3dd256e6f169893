"""A catalog on an SQLite file, inside one transaction that no other test sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from lapse.catalog import Catalog
from lapse.clock import ManualClock
from lapse.engines import Engine, open_engine
from tests.unit.runner.build import NOW


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    found = open_engine(f"sqlite:///{tmp_path / 'app.db'}", ManualClock(NOW))
    yield found
    found.close()


@pytest.fixture
def catalog(engine: Engine) -> Catalog:
    return Catalog(engine)


@pytest.fixture
def connection(catalog: Catalog) -> Iterator[Connection]:
    with catalog.writing() as found:
        yield found
