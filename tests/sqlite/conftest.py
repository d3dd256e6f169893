from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.harness import Harness
from tests.conftest import Servers


@pytest.fixture
def h(servers: Servers) -> Iterator[Harness]:
    with Harness.fresh(servers.get("sqlite")) as harness:
        yield harness
