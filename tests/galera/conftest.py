"""One cluster for all tests; every test gets a database of its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.galera.cluster import GaleraCluster, why_no_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[GaleraCluster]:
    reason = why_no_cluster()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    started = GaleraCluster()
    yield started
    started.close()


@pytest.fixture
def database(cluster: GaleraCluster) -> Iterator[str]:
    name = f"lapse_test_{uuid.uuid4().hex[:12]}"
    cluster.nodes[2].execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield name
    cluster.nodes[2].execute(f"DROP DATABASE {name}")
