"""Settings of the database that could get in Lapse's way, and settings of Lapse's that could get in the user's."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import psycopg
import pytest

import lapse
from lapse.app import Lapse
from lapse.errors import CatalogMissing
from tests.conformance.harness import Harness


def test_defaults_of_the_database_do_not_matter(h: Harness, client: psycopg.Connection) -> None:
    name = h.url.rpartition("/")[2]
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = 'on'",
        "DateStyle = 'German'",
        "IntervalStyle = 'sql_standard'",
        "standard_conforming_strings = 'off'",
        "enable_tidscan = 'off'",
        "statement_timeout = '1h'",
    ):
        client.execute(f"ALTER DATABASE {name} SET {setting}")
    with h.open() as fresh:
        assert fresh.run("events").deleted == 1
        assert fresh.preview("events")[0].survey.rows == 1


UNUSUAL = (
    "timezone = 'America/Los_Angeles'",
    "DateStyle = 'German'",
    "IntervalStyle = 'iso_8601'",
    "default_transaction_isolation = 'serializable'",
    "statement_timeout = '59s'",
    "lock_timeout = '58s'",
    "idle_in_transaction_session_timeout = '57s'",
    "search_path = 'elsewhere', 'public'",
    "standard_conforming_strings = 'off'",
    "quote_all_identifiers = 'on'",
)
SETTINGS = "SELECT name, setting FROM pg_catalog.pg_settings WHERE left(name, 8) <> 'plpgsql.' ORDER BY name"


@pytest.fixture
def unusual(h: Harness, client: psycopg.Connection) -> str:
    """A database whose settings are what Lapse would never choose."""
    name = h.url.rpartition("/")[2]
    client.execute("CREATE SCHEMA elsewhere")
    client.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} RESET ALL")
    for setting in UNUSUAL:
        client.execute(f"ALTER DATABASE {name} SET {setting}")
    return h.url


def test_a_users_connection_is_as_the_server_makes_it(unusual: str) -> None:
    with psycopg.connect(unusual) as plain:
        expected = plain.execute(SETTINGS).fetchall()
    with closing(lapse.connect(unusual)) as connection:
        assert connection.execute(SETTINGS).fetchall() == expected
    with Lapse(unusual) as db:
        found = dict(db.execute(SETTINGS).rows)
        assert found == dict(expected)
        assert (found["TimeZone"], found["application_name"]) == ("America/Los_Angeles", "")


@pytest.mark.parametrize("begun", [False, True])
def test_declaring_puts_every_setting_back(unusual: str, begun: bool) -> None:
    """Inside the user's transaction and outside, and when it is refused."""
    with closing(lapse.connect(unusual, autocommit=not begun)) as connection:
        connection.execute("SET TIME ZONE 'Asia/Kolkata'")
        if begun:
            connection.execute("SET LOCAL lapse.see_expired = 'off'")
            connection.execute("SET LOCAL lock_timeout = '7s'")
        before = connection.execute(SETTINGS).fetchall()
        for statement in (
            "CREATE TABLE t (id int PRIMARY KEY, at timestamptz) TTL = at + INTERVAL '1 day'",
            "ALTER TABLE t SET (ttl_pause = 'on', ttl_hide_expired = 'view')",
            "CREATE TABLE m (id int PRIMARY KEY) WITH (ttl_expire_after = '1 hour')",
            "ALTER TABLE m RENAME TO n",
            "SHOW CREATE TABLE n",
            "SHOW SCHEDULES",
            "SET GLOBAL lapse_mode = 'fast'",
            "ALTER TABLE n RESET (ttl)",
            "DROP TABLE n",
        ):
            connection.execute(statement)
            assert connection.execute(SETTINGS).fetchall() == before, statement
        for refused in ("ALTER TABLE t DROP COLUMN at", "ALTER TABLE t TTL = nope + INTERVAL '1 day'"):
            with pytest.raises(lapse.ProgrammingError):
                connection.execute(refused)
            assert connection.execute(SETTINGS).fetchall() == before
        connection.commit()
    with Lapse(unusual) as db:
        (stored,) = db.policies()
        assert (stored.table.schema, stored.table.name) == ("elsewhere", "t")
        assert abs((datetime.now(UTC) - stored.created_at).total_seconds()) < 60
        db.execute("INSERT INTO elsewhere.t VALUES (1, now() - interval '25 hours'), (2, now() - interval '23 hours')")
        db.execute("ALTER TABLE t SET (ttl_pause = 'off')")
        assert db.run().deleted == 1


def test_times_in_any_date_style_can_be_read(unusual: str) -> None:
    """psycopg refuses to read an instant in some of them; the server's text is better than that."""
    with closing(lapse.connect(unusual)) as connection:
        row = connection.execute("SELECT TIMESTAMPTZ '2026-01-02 03:04:05-08', 'infinity'::timestamptz").fetchone()
        assert row == ("02.01.2026 03:04:05 PST", "infinity")


def test_a_session_that_may_only_read_may_only_read(h: Harness, client: psycopg.Connection) -> None:
    h.sql("CREATE TABLE t (id int PRIMARY KEY, at timestamptz)")
    client.execute(f"ALTER DATABASE {h.url.rpartition('/')[2]} SET default_transaction_read_only = on")
    with closing(lapse.connect(h.url, autocommit=True)) as connection:
        with pytest.raises(lapse.DatabaseError, match="read-only"):
            connection.execute("CREATE TABLE u (id int)")
        with pytest.raises(lapse.DatabaseError, match="read-only"):
            connection.execute("ALTER TABLE t TTL = at + INTERVAL '1 day'")


def test_a_script_may_drop_the_catalog_and_begin_anew(h: Harness) -> None:
    h.events()
    with Lapse(h.url, clock=h.clock) as fresh:
        fresh.execute("CREATE TABLE plain (id INT); DROP TABLE plain; DROP SCHEMA lapse_ttl CASCADE;"
                      " CREATE TABLE other (id INT PRIMARY KEY, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")  # fmt: skip
        assert [str(each.table) for each in fresh.policies()] == ["public.other"]


def test_a_catalog_that_is_rolled_back_is_installed_again(h: Harness) -> None:
    columns = "(id INT PRIMARY KEY, ts TIMESTAMPTZ)"
    with Lapse(h.url, clock=h.clock) as fresh:
        fresh.execute(f"BEGIN; CREATE TABLE a {columns} TTL = ts + INTERVAL 1 DAY; DROP TABLE a; ROLLBACK")
        with pytest.raises(CatalogMissing):
            fresh.policies()
        fresh.execute(f"CREATE TABLE a {columns} TTL = ts + INTERVAL 1 DAY")
        assert len(fresh.policies()) == 1
