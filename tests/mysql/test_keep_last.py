"""`ttl_keep_last` on MariaDB and MySQL: the rows that stay are locked until the commit, and few rows are read."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.mysql import condition
from lapse.engines.mysql.session import Flavour
from lapse.errors import Unsupported
from lapse.runner.policy_manager import load_bound
from tests.conformance.harness import Harness

KEEP = "ttl_keep_last = '3 BY (account) ORDER BY ts'"
GROUP, GROUPS = 200, 10


def _events(h: Harness, columns: str = "account INT", options: str = "") -> None:
    h.sql(f"CREATE TABLE events (id BIGINT PRIMARY KEY, {columns}, ts DATETIME(3)){options} TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events ADD INDEX events_last (account, ts, id)")


def _fill(h: Harness) -> None:
    rows = (f"({i}, {i // GROUP}, '2020-01-01' + INTERVAL {i} SECOND)" for i in range(GROUP * GROUPS))
    h.sql(f"INSERT INTO events (id, account, ts) VALUES {', '.join(rows)}")


def _surplus(h: Harness) -> str:
    with h.db.engine.connection() as connection:
        declared = load_bound(h.db.engine, connection, h.db.policies()[0])
        version = str(connection.exec_driver_sql("SELECT version()").scalar_one())
        return condition.lasting_surplus(declared, is_mariadb=Flavour.from_text(version).is_mariadb)


def test_the_rows_that_stay_are_locked_until_the_commit(h: Harness) -> None:
    _events(h)
    h.sql(f"ALTER TABLE events SET ({KEEP})")
    _fill(h)
    with h.client() as batch, h.client() as other:
        other.exec_driver_sql("SET innodb_lock_wait_timeout = 1")
        batch.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        batch.exec_driver_sql("BEGIN")
        found = batch.exec_driver_sql(
            f"SELECT id FROM events WHERE id < {GROUP} AND {_surplus(h)} IS TRUE FOR UPDATE SKIP LOCKED"
        ).all()
        assert len(found) == GROUP - 3
        assert [_is_locked(other, number) for number in (GROUP - 1, GROUP - 2, GROUP - 3)] == [True] * 3
        # What comes is not kept away, and other groups are not touched.
        other.exec_driver_sql("INSERT INTO events VALUES (100000, 0, '2021-01-01')")
        assert not _is_locked(other, GROUP)
        batch.exec_driver_sql("ROLLBACK")


def _is_locked(connection: Connection, number: int) -> bool:
    try:
        connection.exec_driver_sql(f"UPDATE events SET ts = ts + INTERVAL 1 YEAR WHERE id = {number}")
    except DBAPIError:
        return True
    return False


def test_each_row_is_compared_with_as_many_as_are_kept(h: Harness) -> None:
    _events(h)
    h.sql(f"ALTER TABLE events SET ({KEEP})")
    _fill(h)
    (preview,) = h.db.preview("events", exact=True)
    with h.client() as connection:
        before = _reads(connection)
        left = connection.exec_driver_sql(f"SELECT count(*) FROM events WHERE {preview.condition}").scalar_one()
        read = _reads(connection) - before
    assert left == (GROUP - 3) * GROUPS
    assert read < 6 * GROUP * GROUPS


def _reads(connection: Connection) -> int:
    found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
    return sum(int(count) for name, count in found if name != "Handler_read_rnd_next")


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("account INT, kind ENUM('b', 'a')", "", "sorted by number"),
        ("account INT, KEY events_kind (account)", " PARTITION BY HASH (id) PARTITIONS 2", "partitioned"),
    ],
)
def test_what_cannot_be_right_is_refused(h: Harness, columns: str, options: str, words: str) -> None:
    _events(h, columns, options)
    order = "kind" if "kind ENUM" in columns else "ts"
    with pytest.raises(Unsupported, match=words):
        h.sql(f"ALTER TABLE events SET (ttl_keep_last = '3 BY (account) ORDER BY {order}')")
    assert h.db.policies()[0].policy.keep_last is None
