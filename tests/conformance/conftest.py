"""One fresh database per test, on every engine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.backends import CONFORMING
from tests.conformance.harness import Harness
from tests.conftest import Servers

ON_MYSQL = ("deleting", "expiry", "isolation", "killed", "lost_replies", "taken_names", "introspection")
"""What `make test` runs on MySQL, whose engine is MariaDB's but for what `tests/mysql` tests on both; `make mysql` runs
everything."""
EVERYTHING = ("LAPSE_TEST_ALL_MYSQL", "LAPSE_TEST_MYSQL_URL")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(map(os.environ.get, EVERYTHING)):
        return
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item) -> bool:
    calls = getattr(item, "callspec", None)
    if item.path.parent.name != "conformance" or calls is None or calls.params.get("h") != "mysql":
        return False
    return item.path.stem.removeprefix("test_") not in ON_MYSQL


@pytest.fixture(params=list(CONFORMING))
def h(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Harness]:
    with Harness.fresh(servers.get(request.param)) as harness:
        yield harness
