"""A private TiDB, and one fresh database per test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from lapse.app import Lapse
from tests.backends.tidb import TidbServer
from tests.backends.tidb_build import why_not


@pytest.fixture(scope="session")
def server() -> Iterator[TidbServer]:
    reason = why_not()
    if reason is not None and not os.environ.get("LAPSE_TEST_TIDB"):
        pytest.skip(reason)
    started = TidbServer()
    yield started
    started.close()


@pytest.fixture
def database(server: TidbServer) -> Iterator[str]:
    name = server.create()
    yield name
    server.execute(f"DROP DATABASE {name}")


@pytest.fixture
def db(server: TidbServer, database: str) -> Iterator[Lapse]:
    with Lapse(server.url(database)) as opened:
        yield opened


@pytest.fixture
def client(server: TidbServer, database: str) -> Callable[..., list[tuple[object, ...]]]:
    """Another client of the same database, which knows nothing of Lapse."""
    return lambda *statements: server.execute(*statements, database=database)
