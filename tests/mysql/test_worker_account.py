"""A worker's account with the grants that `lapse doctor` prints, and an owner's that declares: no superuser."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.backends.mariadb import MariadbServer, WorkerAccount
from tests.conformance.harness import Harness


@pytest.fixture
def h(server: MariadbServer) -> Iterator[Harness]:
    with Harness.fresh(WorkerAccount(server)) as harness:
        yield harness


def test_a_column_with_an_interval(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    assert h.db is not h.owner
    assert h.run_one().counts.deleted == 1
    assert h.ids() == [2]


def test_a_managed_column(h: Harness) -> None:
    h.clock.set(datetime.now(UTC))
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, n INTEGER) WITH (ttl_expire_after = '1 hour')")
    h.sql("INSERT INTO events (id) VALUES (1), (2)")
    h.sql(f"UPDATE events SET crdb_internal_expiration = {h.at(days=-1)} WHERE id = 1")
    assert [finding.text for finding in h.db.doctor() if finding.level == "problem"] == []
    assert h.run_one().counts.deleted == 1
    assert h.ids() == [2]


def test_partitions_that_are_dropped_whole(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INTEGER, ts DATETIME, PRIMARY KEY (id, ts)) PARTITION BY RANGE COLUMNS (ts)"
        " (PARTITION old VALUES LESS THAN ('2026-01-01'), PARTITION new VALUES LESS THAN (MAXVALUE))"
    )
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 day''', ttl_partition_drop = 'on')")
    h.sql(f"INSERT INTO events VALUES (1, '2025-05-05'), (2, {h.at()})")
    h.run()
    assert h.ids() == [2]
