"""One fresh database per test, on every engine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.backends import CONFORMING
from tests.conformance.harness import Harness
from tests.conftest import Servers

PARTS = {
    "mysql": "deleting expiry isolation keep_last killed lost_replies taken_names introspection",
    "postgres15": "alembic archive comments control declare deleting doctor expiry first_steps killed policyfile",
    "postgres18-role": "archive at_once comments declare deleting doctor expiry exporting holds introspection keep_last"
    " killed ledger_keys preview references statements",
}
"""The topics that `make test` runs there, in files named `test_TOPIC.py`: MySQL's engine is MariaDB's but for what
`tests/mysql` tests on both; on PostgreSQL all topics run in version 15 with a role for the worker, and in version 18
those that depend on what the server says or does. `LAPSE_TEST_ALL` runs everything, and so do `make mysql` and
`make matrix`."""
EVERYTHING = ("LAPSE_TEST_ALL", "LAPSE_TEST_ONLY", "LAPSE_TEST_MYSQL_URL")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(map(os.environ.get, EVERYTHING)):
        return
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item) -> bool:
    calls = getattr(item, "callspec", None)
    if item.path.parent.name != "conformance" or calls is None:
        return False
    topics = PARTS.get(calls.params.get("h"))
    return topics is not None and item.path.stem.removeprefix("test_") not in topics.split()


@pytest.fixture(params=list(CONFORMING))
def h(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Harness]:
    with Harness.fresh(servers.get(request.param)) as harness:
        yield harness
