"""RENAME TABLE does several steps at once; CREATE OR REPLACE TABLE drops in passing."""

from __future__ import annotations

import pytest

from lapse.errors import PolicyConflict
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness


def policies(h: Harness) -> dict[str, str]:
    return {str(stored.table): str(stored.policy.interval) for stored in h.db.policies()}


def test_a_swap_in_one_statement(h: Harness) -> None:
    h.sql("CREATE TABLE a (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
    h.sql("CREATE TABLE b (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 10 YEAR")
    for name in ("a", "b"):
        h.sql(f"INSERT INTO {name} VALUES (1, {h.at(days=-2)})")
    h.sql("RENAME TABLE a TO tmp, b TO a, tmp TO b")
    assert policies(h) == {"a": "10 years", "b": "1 hour"}
    h.run(None)
    assert (h.ids("a"), h.ids("b")) == ([1], [])


def test_triggers_and_views_are_swapped_along(h: Harness) -> None:
    for name, hours in (("a", 1), ("b", 5)):
        options = f"ttl_expire_after = '{hours} hours', ttl_hide_expired = 'view'"
        h.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT) WITH ({options})")
    h.sql("RENAME TABLE a TO tmp, b TO a, tmp TO b")
    assert {stored.table.name: str(stored.policy.expire_after) for stored in h.db.policies()} == {
        "a": "5 hours",
        "b": "1 hour",
    }
    found = h.rows(
        "SELECT event_object_table, trigger_name FROM information_schema.triggers"
        " WHERE trigger_schema = DATABASE() AND event_manipulation = 'UPDATE' ORDER BY 1"
    )
    assert found == [("a", "lapse_a_update"), ("b", "lapse_b_update")]
    stamping = h.rows(
        "SELECT event_object_table, trigger_name FROM information_schema.triggers"
        " WHERE trigger_schema = DATABASE() AND event_manipulation = 'INSERT' ORDER BY 1"
    )
    assert stamping in ([], [("a", "lapse_a_insert"), ("b", "lapse_b_insert")])
    assert [finding for finding in h.db.doctor() if finding.level == "problem"] == []


def test_a_ring_of_three_and_a_table_without_a_policy(h: Harness) -> None:
    h.sql("CREATE TABLE a (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
    h.sql("CREATE TABLE b (id INT PRIMARY KEY)")
    h.sql("CREATE TABLE c (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 3 HOUR")
    h.sql("RENAME TABLES a TO x, c TO a, b TO c, x TO b")
    assert policies(h) == {"a": "3 hours", "b": "1 hour"}


def test_missing_tables_are_passed_over_where_the_statement_does(h: Harness) -> None:
    if not h.features.replaces_tables:
        pytest.skip("RENAME TABLE knows no IF EXISTS")
    h.sql("CREATE TABLE a (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
    h.sql("RENAME TABLE IF EXISTS nothing TO a2, a TO b")
    assert policies(h) == {"b": "1 hour"}


def test_tables_of_another_database(h: Harness, server: MariadbServer) -> None:
    own = h.url.rpartition("/")[2]
    server.execute(f"CREATE DATABASE {own}_x")
    try:
        h.sql("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
        h.sql(f"CREATE TABLE {own}_x.t (id INT PRIMARY KEY, at TIMESTAMP NULL)")
        h.sql(f"RENAME TABLE {own}_x.t TO t2")
        assert policies(h) == {"t": "1 hour"}
        h.sql(f"RENAME TABLE {own}.t TO t3")
        assert policies(h) == {"t3": "1 hour"}
    finally:
        server.execute(f"DROP DATABASE {own}_x")


def test_case_tells_tables_apart(h: Harness) -> None:
    h.sql("CREATE TABLE Events (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
    h.sql("CREATE TABLE events (id INT PRIMARY KEY)")
    h.sql("RENAME TABLE events TO archive")
    assert policies(h) == {"Events": "1 hour"}


def test_a_temporary_table_of_the_same_name_is_not_the_table(h: Harness) -> None:
    h.sql("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
    h.sql("CREATE TEMPORARY TABLE t (id INT PRIMARY KEY); ALTER TABLE t RENAME TO u; DROP TABLE u")
    assert policies(h) == {"t": "1 hour"}


def test_create_or_replace_drops_the_old_policy(h: Harness) -> None:
    if not h.features.replaces_tables:
        pytest.skip("no statement replaces a table")
    h.sql("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
    h.sql("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL)")
    assert policies(h) == {}
    h.sql("CREATE TABLE u (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour', ttl_job_cron = '@daily')")
    h.sql("CREATE OR REPLACE TABLE u (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 2 HOUR")
    stored = h.db.policy("u")
    assert (str(stored.policy.interval), stored.policy.job_cron, stored.version) == ("2 hours", None, 1)


@pytest.mark.parametrize(
    "how",
    ["TABLE t NOWAIT", "TABLE t WAIT 5", "IGNORE TABLE t", "ONLINE TABLE t", "ONLINE IGNORE TABLE IF EXISTS t NOWAIT"],
)
def test_no_word_before_the_action_hides_it(h: Harness, how: str) -> None:
    h.sql("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 HOUR")
    with pytest.raises(PolicyConflict):
        h.sql(f"ALTER {how} DROP COLUMN at")
    h.sql(f"ALTER {how} SET (ttl_pause = 'on')")
    assert h.db.policy("t").policy.pause
