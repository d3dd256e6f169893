"""The server's zone: where times are stored without one, and it is not UTC, the policy has to say which is meant."""

from __future__ import annotations

import psycopg
import pytest

from lapse.errors import LapseError, Unsupported, ZoneMissing
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness

WALL_CLOCKS = {
    "timestamp": "TTL = d + INTERVAL 1 HOUR",
    "expression": "WITH (ttl_expiration_expression = 'if(id > 0, d, NULL)')",
    "text": "WITH (ttl_expiration_expression = '(body ->> ''at'')::timestamptz')",
    "literal": "WITH (ttl_expiration_expression = 'greatest(ts, ''2024-01-01'')')",
    "day": "WITH (ttl_expiration_expression = 'ts::date + INTERVAL ''1 day''')",
}
INSTANTS = {
    "timestamptz": "TTL = ts + INTERVAL 1 HOUR",
    "managed": "WITH (ttl_expire_after = '1 hour')",
    "said": "WITH (ttl_expiration_expression = 'd AT TIME ZONE ''UTC''')",
    "number": "WITH (ttl_expiration_expression = 'to_timestamp(id)')",
    "literal": "WITH (ttl_expiration_expression = 'greatest(ts, ''2024-01-01T00:00:00Z'')')",
}
TABLE = "CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ, d TIMESTAMP, body JSONB)"


def as_the_server_is(client: psycopg.Connection) -> None:
    """The test server runs in New York; the role of the tests has a zone of its own, which would hide that."""
    database = str(client.execute("SELECT current_database()").fetchone()[0])  # type: ignore[index]
    client.execute(f"ALTER ROLE postgres IN DATABASE {database} RESET timezone")


@pytest.mark.parametrize("kind", WALL_CLOCKS)
def test_a_zone_is_not_guessed(h: Harness, client: psycopg.Connection, kind: str) -> None:
    as_the_server_is(client)
    with pytest.raises(Unsupported, match="America/New_York") as refused:
        h.sql(f"{TABLE} {WALL_CLOCKS[kind]}")
    assert "ttl_time_zone = 'America/New_York'" in (refused.value.hint or "")
    for zone in ("America/New_York", "UTC", "Etc/GMT+8"):
        given, rule = f"WITH (ttl_time_zone = '{zone}'", WALL_CLOCKS[kind]
        h.sql(f"{TABLE} " + (rule.replace("WITH (", f"{given}, ") if "WITH" in rule else f"{given}) {rule}"))
        h.sql("DROP TABLE events")


def test_the_hint_is_the_statement_to_run(h: Harness, client: psycopg.Connection) -> None:
    as_the_server_is(client)
    h.sql(TABLE)
    with pytest.raises(ZoneMissing) as refused:
        h.owner.preview("events", column="d", after="30 days")
    assert str(refused.value.hint).startswith("try it with --time-zone America/New_York, or with --time-zone UTC")
    with pytest.raises(ZoneMissing) as refused:
        h.sql("ALTER TABLE events TTL = d + INTERVAL 30 DAY")
    h.sql(str(refused.value.hint).partition(", or with 'UTC'")[0])
    (stored,) = h.owner.policies()
    assert (stored.policy.time_zone, str(stored.policy.expiry.after)) == ("America/New_York", "30 days")  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", INSTANTS)
def test_instants_need_no_zone(h: Harness, kind: str) -> None:
    h.sql(f"{TABLE} {INSTANTS[kind]}")
    h.run()


@pytest.mark.parametrize("where", ["DATABASE {database}", "ROLE {role} IN DATABASE {database}", "ROLE {role}"])
def test_the_zone_of_a_database_or_role(h: Harness, client: psycopg.Connection, where: str) -> None:
    database = str(client.execute("SELECT current_database()").fetchone()[0])  # type: ignore[index]
    role = f"{database}_app"
    client.execute(f"CREATE ROLE {role}")
    try:
        client.execute(f"ALTER DATABASE {database} SET timezone = 'UTC'")
        with h.open() as db:
            db.execute(f"{TABLE} {WALL_CLOCKS['timestamp']}")
            db.execute("ALTER TABLE events RESET (ttl)")
            client.execute(f"ALTER {where.format(database=database, role=role)} SET timezone = 'Asia/Tokyo'")
        with h.open() as db, pytest.raises(Unsupported, match="Asia/Tokyo"):
            db.execute(f"ALTER TABLE events {WALL_CLOCKS['timestamp']}")
    finally:
        client.execute(f"DROP OWNED BY {role}")
        client.execute(f"DROP ROLE {role}")


def test_a_zone_that_is_changed_later_blocks(h: Harness, client: psycopg.Connection) -> None:
    """A row of a second ago, stored by a session in New York, is four hours old in UTC."""
    as_the_server_is(client)
    database = str(client.execute("SELECT current_database()").fetchone()[0])  # type: ignore[index]
    client.execute(f"ALTER DATABASE {database} SET timezone = 'UTC'")
    with h.open() as db:
        db.execute(f"{TABLE} {WALL_CLOCKS['timestamp']}")
        db.execute("INSERT INTO events (id, d) VALUES (1, '2026-03-15 07:59:59')")
    client.execute(f"ALTER DATABASE {database} RESET timezone")
    with h.open() as db:
        (job,) = db.run("events").jobs
        assert job.status is JobStatus.FAILED
        assert "America/New_York" in (job.reason or "")
        with pytest.raises(LapseError, match="America/New_York"):
            db.preview("events")
        assert any("America/New_York" in found.text for found in db.doctor())
        assert h.ids() == [1]
        db.execute("ALTER TABLE events SET (ttl_pause = 'on')")
        db.execute("ALTER TABLE events SET (ttl_pause = 'off', ttl_time_zone = 'America/New_York')")
        (job,) = db.run("events").jobs
        assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 0)
        h.advance(hours=1)
        assert db.run("events").deleted == 1


@pytest.mark.parametrize("expired", ["'-infinity'", "'infinity'", "'294276-12-31'", "'4713-01-01 BC'", "'0001-01-01'"])
@pytest.mark.parametrize("kind", ["TIMESTAMPTZ", "TIMESTAMP", "DATE"])
@pytest.mark.parametrize(
    "rule",
    ["ts + INTERVAL ''1000 years''", "coalesce(ts, done)", "if(ts + INTERVAL ''1 day'' > now(), NULL, ts)", "ts"],
)
def test_what_says_never(h: Harness, kind: str, expired: str, rule: str) -> None:
    """Nothing fails, nothing is deleted, and the guard still sees the others."""
    h.sql(f"CREATE TABLE events (id INTEGER, ts {kind}, done TIMESTAMPTZ)")
    h.sql(f"INSERT INTO events VALUES (1, {expired}, '2024-01-01'), (2, '2024-01-01', NULL)")
    h.sql(f"ALTER TABLE events SET (ttl_expiration_expression = '{rule}', ttl_time_zone = 'Asia/Tokyo')")
    h.db.preview("events")
    h.run()
    assert h.ids() == ([1, 2] if "1000" in rule else [1])
    h.db.doctor()
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'view')")
    assert h.ids("events_live") == ([1, 2] if "1000" in rule else [1])


def test_a_first_run_with_odd_rows_is_still_looked_at(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ)")
    h.sql(f"INSERT INTO events SELECT n, {h.at(days=-9)} FROM generate_series(1, 10000) n")
    h.sql("INSERT INTO events VALUES (0, '-infinity'), (0, 'infinity'), (0, '294276-12-31'), (0, '4713-01-01 BC')")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    assert h.db.run().deleted == 0
    (status,) = h.db.status()
    assert "would delete 10,000 of 10,004 rows" in (status.reason or "")
