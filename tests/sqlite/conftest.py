from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.harness import Harness
from tests.conftest import Servers


@pytest.fixture
def h(servers: Servers) -> Iterator[Harness]:
    backend = servers.get("sqlite")
    url = backend.create()
    harness = Harness(backend, url)
    try:
        yield harness
    finally:
        harness.close()
        backend.drop(url)
