"""The managed column: every way to insert stamps it, and adding it works on any table."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from lapse.engines.mysql import managed
from lapse.model.blocked import BlockCode
from lapse.model.interval import Interval
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness

INSTANT_CHANGES = 64
"""As many a table of InnoDB's takes on MySQL before it has to be rebuilt."""


def _name(h: Harness) -> str:
    return str(make_url(h.url).database)


def _stamped(h: Harness) -> dict[int, bool]:
    """Which rows have a time, and that in an hour."""
    rows = h.rows(
        "SELECT id, abs(timestampdiff(SECOND, utc_timestamp(), crdb_internal_expiration) - 3600) < 120 FROM events"
    )
    return {int(number): bool(stamped) for number, stamped in rows}


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO events VALUES (1, 5)",
        "REPLACE INTO events VALUES (1, 5)",
        "INSERT INTO events SET id = 1",
        "INSERT INTO events (id) VALUES (1)",
        "INSERT INTO events (id, crdb_internal_expiration) VALUES (1, DEFAULT)",
        "INSERT INTO events SELECT 1, 5",
        "INSERT INTO events VALUES (1, 5) ON DUPLICATE KEY UPDATE n = 6",
        "INSERT INTO events VALUES ROW(1, 5)",
    ],
)
def test_every_insert_is_stamped(h: Harness, server: MariadbServer, statement: str) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, n INT) WITH (ttl_expire_after = '1 hour')")
    if "ROW(" in statement and h.features.replaces_tables:
        statement = statement.replace("ROW", "")
    server.execute(statement, database=_name(h))
    assert _stamped(h) == {1: True}


def test_what_a_statement_sets_stays(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour')")
    server.execute(
        "INSERT INTO events (id, crdb_internal_expiration) VALUES (1, NULL), (2, '9999-12-31'), (3, '2050-01-01')",
        database=_name(h),
    )
    found = h.rows("SELECT id, left(crdb_internal_expiration, 10) FROM events ORDER BY id")
    assert found == [(1, None), (2, "9999-12-31"), (3, "2050-01-01")]


def test_rows_of_before_get_the_full_interval_and_new_ones_their_own(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY)")
    h.sql("INSERT INTO events VALUES (1)")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    server.execute("INSERT INTO events VALUES (2)", database=_name(h))
    first = h.rows("SELECT crdb_internal_expiration FROM events WHERE id = 1")
    assert str(first[0][0]).startswith("2026-03-15 13:00:00")
    assert _stamped(h)[2]


@pytest.mark.parametrize("event", ["insert", "update"])
def test_a_trigger_that_is_gone_blocks_and_is_made_again(h: Harness, server: MariadbServer, event: str) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour', ttl_guard = 'off')")
    triggers = server.execute("SHOW TRIGGERS", database=_name(h))
    if not any(row[0] == f"lapse_events_{event}" for row in triggers):
        pytest.skip("the default of the column does it")
    h.sql(f"INSERT INTO events (id, crdb_internal_expiration) VALUES (1, {h.at(days=-1)})")
    server.execute(f"DROP TRIGGER lapse_events_{event}", database=_name(h))
    h.run()
    assert h.ids() == [1]
    (status,) = h.db.status()
    assert status.blocked is BlockCode.PARTS_MISSING
    assert f"lapse_events_{event}" in str(status.reason)
    h.db.doctor(repair=True)
    h.db.resume("events")
    h.run()
    assert h.ids() == []
    server.execute("INSERT INTO events VALUES (2)", database=_name(h))
    assert _stamped(h) == {2: True}


def test_the_triggers_go_with_the_policy_and_with_the_name(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour')")
    h.sql("ALTER TABLE events RENAME TO visits")
    names = {str(row[0]) for row in server.execute("SHOW TRIGGERS", database=_name(h))}
    assert names and all(name.startswith("lapse_visits_") for name in names)
    h.sql("ALTER TABLE visits RESET (ttl)")
    assert server.execute("SHOW TRIGGERS", database=_name(h)) == []


def test_a_table_that_was_changed_instantly_too_often_is_rebuilt(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY)")
    h.sql("INSERT INTO events VALUES (1)")
    changes = [f"ALTER TABLE events ADD COLUMN c{number} INT, ALGORITHM=INSTANT" for number in range(INSTANT_CHANGES)]
    server.execute(*changes, database=_name(h))
    h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    server.execute("INSERT INTO events (id) VALUES (2)", database=_name(h))
    assert _stamped(h)[2]


def test_a_column_of_another_type_is_repaired_or_named_with_the_statement(h: Harness, server: MariadbServer) -> None:
    """MySQL's default needs a type that goes beyond 2038; on MariaDB the default is the stamp, which any type holds."""
    h.sql("CREATE TABLE events (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour')")
    change = "ALTER TABLE events MODIFY crdb_internal_expiration TIMESTAMP NULL DEFAULT NULL INVISIBLE"
    server.execute(change, database=_name(h))
    for finding in h.db.doctor(repair=True):
        if "repair failed" in finding.text:
            statement, _, command = str(finding.fix).partition(";")
            assert "2038" in finding.text and command == " then: lapse doctor URL --repair"
            server.execute(statement, database=_name(h))
            h.db.doctor(repair=True)
    h.db.resume("events")
    server.execute("INSERT INTO events VALUES (1)", database=_name(h))
    assert _stamped(h) == {1: True}
    assert h.run_one().counts.deleted == 0


def test_a_trigger_of_an_earlier_version_is_as_good_as_one_of_this(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, n INT) WITH (ttl_expire_after = '1 hour', ttl_guard = 'off')")
    server.execute(
        "DROP TRIGGER lapse_events_update",
        "CREATE TRIGGER lapse_events_update BEFORE UPDATE ON events FOR EACH ROW "
        + managed._former_update_body(Interval(micros=3_600_000_000), None),
        database=_name(h),
    )
    assert [finding.text for finding in h.db.doctor() if "trigger" in finding.text] == []


@pytest.mark.parametrize("zone", ["+00:00", "-07:00"])
def test_an_update_renews_and_keeps_what_must_stay(h: Harness, server: MariadbServer, zone: str) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, n INT) WITH (ttl_expire_after = '1 hour')")
    late, early = "'9000-01-01 00:00:00.123456'", "'2000-01-01 00:00:00.654321'"
    server.execute(
        f"SET time_zone = '{zone}'",
        "INSERT INTO events (id, crdb_internal_expiration) VALUES"
        f" (1, {early}), (2, NULL), (3, {late}), (4, {late}), (5, {early}), (6, NULL), (7, {late}), (8, {early})",
        "UPDATE events SET n = 1 WHERE id <= 4",
        f"UPDATE events SET crdb_internal_expiration = {early} WHERE id IN (4, 6)",
        "UPDATE events SET crdb_internal_expiration = NULL WHERE id = 7",
        f"UPDATE events SET crdb_internal_expiration = {late} WHERE id = 8",
        database=_name(h),
    )
    assert _stamped(h)[1]
    rows = h.rows("SELECT id, cast(crdb_internal_expiration AS char) FROM events WHERE id > 1 ORDER BY id")
    kept = {int(number): None if text is None else f"'{text}'" for number, text in rows}
    assert kept == {2: None, 3: late, 4: early, 5: early, 6: early, 7: None, 8: late}
