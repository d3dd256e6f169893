"""One fresh PostgreSQL database per test."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.backends import BACKENDS
from tests.backends.postgres import PostgresBackend
from tests.conformance.harness import Harness
from tests.conftest import Servers

VERSIONS = [name for name, backend in BACKENDS.items() if issubclass(backend, PostgresBackend)]


@pytest.fixture
def server(servers: Servers) -> PostgresBackend:
    """One version is enough for what does not depend on it; the conformance suite runs on all."""
    backend = servers.get(VERSIONS[0])
    assert isinstance(backend, PostgresBackend)
    return backend


@pytest.fixture
def h(server: PostgresBackend) -> Iterator[Harness]:
    with Harness.fresh(server) as harness:
        yield harness


@pytest.fixture(params=VERSIONS)
def each(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Harness]:
    """Every version, for what its planner or its catalog decides."""
    with Harness.fresh(servers.get(request.param)) as harness:
        yield harness


@pytest.fixture
def client(h: Harness) -> Iterator[psycopg.Connection]:
    """Another client of the same database, which knows nothing of Lapse; in UTC, committing each statement."""
    with psycopg.connect(h.url, autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        yield connection
