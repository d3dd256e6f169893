"""The managed column on SQLite: its default, its triggers, and what a table rebuild does to them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lapse.errors import PolicyConflict
from tests.conformance.harness import Harness

EXPLICIT = "2030-01-01 00:00:00.000Z"


@pytest.fixture(autouse=True)
def _today(h: Harness) -> None:
    """Stamps are made by SQLite's own clock."""
    h.clock.set(datetime.now(UTC))


def _managed(h: Harness, definition: str = "id INTEGER PRIMARY KEY, body TEXT") -> None:
    h.sql(f"CREATE TABLE events ({definition}) WITH (ttl_expire_after = '1 hour')")


def test_an_explicit_expiry_in_the_form_of_the_default_is_kept(h: Harness) -> None:
    _managed(h)
    h.sql(f"INSERT INTO events (id, crdb_internal_expiration) VALUES (1, '{EXPLICIT}')")
    h.advance(hours=2)
    h.run()
    assert h.rows("SELECT id, crdb_internal_expiration FROM events") == [(1, EXPLICIT)]


def test_rows_from_before_the_declaration_get_the_full_time(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT)")
    h.sql("INSERT INTO events (id) VALUES (1), (2)")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    # By their default: adding the column does not rewrite the table.
    assert all(row[0].endswith("Z") for row in h.rows("SELECT crdb_internal_expiration FROM events"))
    assert h.run_one().counts.deleted == 0
    h.sql("UPDATE events SET crdb_internal_expiration = NULL WHERE id = 2")
    h.advance(hours=2)
    assert h.run_one().counts.deleted == 1
    assert h.ids() == [2]


def test_rows_that_came_while_a_trigger_was_missing_get_the_full_time(h: Harness) -> None:
    _managed(h)
    with h.db.engine.connection() as connection:
        connection.exec_driver_sql("DROP TRIGGER lapse_events_insert")
        connection.exec_driver_sql("INSERT INTO events (id) VALUES (1)")
        connection.exec_driver_sql(
            "INSERT INTO events (id, crdb_internal_expiration) VALUES (2, NULL), (3, '2020-01-01')"
        )
    (before,) = h.rows("SELECT crdb_internal_expiration FROM events WHERE id = 1")
    h.db.doctor(repair=True)
    (after,) = h.rows("SELECT crdb_internal_expiration FROM events WHERE id = 1")
    assert before[0].endswith("Z")
    assert not after[0].endswith("Z")
    assert h.rows("SELECT crdb_internal_expiration FROM events WHERE id > 1") == [(None,), ("2020-01-01",)]
    assert not [finding for finding in h.db.doctor() if finding.level == "problem"]


@pytest.mark.parametrize("rebuilt", [False, True])
def test_rows_that_were_updated_while_a_trigger_was_missing_get_the_full_time(h: Harness, rebuilt: bool) -> None:
    _managed(h)
    h.sql("INSERT INTO events (id) VALUES (1), (2)")
    h.sql("UPDATE events SET crdb_internal_expiration = '2020-01-01 00:00:00.000' WHERE id = 1")
    h.sql("UPDATE events SET crdb_internal_expiration = NULL WHERE id = 2")
    h.sql("INSERT INTO events (id, crdb_internal_expiration) VALUES (3, '2099-01-01')")
    with h.db.engine.connection() as connection:
        connection.exec_driver_sql("DROP TRIGGER lapse_events_update")
        if rebuilt:
            connection.exec_driver_sql("DROP TRIGGER lapse_events_insert")
        connection.exec_driver_sql("UPDATE events SET body = 'renewed'")
    h.db.doctor(repair=True)
    h.db.resume("events")
    h.run()
    assert h.ids() == [1, 2, 3]
    assert h.rows("SELECT crdb_internal_expiration FROM events WHERE id > 1") == [(None,), ("2099-01-01",)]


def test_changing_the_interval_or_the_name_stamps_nothing(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT)")
    h.sql("INSERT INTO events (id) VALUES (1)")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    before = h.rows("SELECT crdb_internal_expiration FROM events")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '2 hours')")
    h.sql("ALTER TABLE events RENAME TO facts")
    assert h.rows("SELECT crdb_internal_expiration FROM facts") == before
    assert not [finding for finding in h.db.doctor() if finding.level == "problem"]
    h.sql("ALTER TABLE facts RESET (ttl)")
    assert h.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger'") == []


def test_a_column_without_its_default_is_not_taken_for_whole(h: Harness) -> None:
    """New rows would never expire, and a repair that put the default back could not tell rows set to never."""
    _managed(h)
    with h.db.engine.connection() as connection:
        connection.exec_driver_sql("DROP TABLE events")
        connection.exec_driver_sql("CREATE TABLE events (id INTEGER PRIMARY KEY, crdb_internal_expiration TEXT)")
        connection.exec_driver_sql("INSERT INTO events VALUES (1, NULL)")
    finding = next(finding for finding in h.db.doctor(repair=True) if finding.level == "problem")
    assert not finding.fixed
    assert "default" in finding.text
    assert h.ids() == [1]


def test_a_users_own_trigger_of_a_similar_name_stays(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT)")
    h.sql("CREATE TABLE log (id INTEGER)")
    h.sql("CREATE TRIGGER lapse_mine_insert AFTER INSERT ON events BEGIN INSERT INTO log VALUES (NEW.id); END")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '2 hours')")
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger'") == [("lapse_mine_insert",)]


def test_the_names_of_the_triggers_are_free_again_after_a_rename_behind_our_back(h: Harness) -> None:
    _managed(h)
    with h.db.engine.connection() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME TO events_old")
    h.db.doctor(repair=True)
    _managed(h)
    h.sql("INSERT INTO events (id) VALUES (1)")
    assert h.run_one().counts.deleted == 0


@pytest.mark.parametrize(("event", "told"), [("UPDATE ON", True), ("UPDATE OF body ON", False), ("DELETE ON", False)])
def test_a_trigger_that_stamps_fire_is_told(h: Harness, event: str, told: bool) -> None:
    """SQLite's BEFORE triggers cannot assign to the row, so a stamp is a second UPDATE."""
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT)")
    h.sql("CREATE TABLE log (id INTEGER)")
    h.sql(f"CREATE TRIGGER mine AFTER {event} events BEGIN INSERT INTO log VALUES (1); END")
    notices = h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')").notices
    h.sql("INSERT INTO events (id) VALUES (1)")
    assert h.rows("SELECT count(*) FROM log") == [(1 if told else 0,)]
    assert any("trigger mine" in notice for notice in notices) is told


def test_a_column_of_the_users_is_refused(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, crdb_internal_expiration TEXT)")
    with pytest.raises(PolicyConflict):
        h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
