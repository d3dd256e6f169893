"""One fresh database per test, on every engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends import CONFORMING
from tests.conformance.harness import Harness
from tests.conftest import Servers


@pytest.fixture(params=list(CONFORMING))
def h(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Harness]:
    with Harness.fresh(servers.get(request.param)) as harness:
        yield harness
