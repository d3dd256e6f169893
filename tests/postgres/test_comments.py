"""Policies in table comments, declared by any client."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from tests.conformance.harness import Harness


def create(client: psycopg.Connection, h: Harness) -> None:
    client.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMPTZ)")
    client.execute(f"INSERT INTO events VALUES (1, {h.at(days=-2)}), (2, {h.at()})")


@pytest.mark.parametrize(
    "comment",
    [
        "ttl_duration=86400;ttl_col=ts;",
        "What happened, and when. ttl_duration=86400;ttl_col=ts; Ask Ada.",
        "ttl_expiration_expression=ts + INTERVAL '1 day'; ttl_job_cron=@daily",
        "ttl_expiration_expression = coalesce(ts, ts) + INTERVAL '1 day'",
    ],
)
def test_a_run_finds_it_at_once(h: Harness, client: psycopg.Connection, comment: str) -> None:
    create(client, h)
    client.execute(f"COMMENT ON TABLE events IS {sql.quote(comment)}")
    assert h.db.run().deleted == 1
    (stored,) = h.db.policies()
    assert stored.source == "comment"
    assert h.ids() == [2]


def test_a_run_of_that_table_finds_it_too(h: Harness, client: psycopg.Connection) -> None:
    create(client, h)
    client.execute("COMMENT ON TABLE events IS 'ttl_duration=86400;ttl_col=ts;'")
    assert h.db.run("events").deleted == 1


def test_it_is_followed_and_removed(h: Harness, client: psycopg.Connection) -> None:
    create(client, h)
    client.execute("COMMENT ON TABLE events IS 'ttl_duration=864000;ttl_col=ts;'")
    assert h.db.run().deleted == 0
    h.db.pause("events")
    client.execute("COMMENT ON TABLE events IS 'ttl_duration=864000;ttl_col=ts;ttl_delete_rate_limit=77'")
    h.db.run()
    (stored,) = h.db.policies()
    assert (stored.policy.delete_rate_limit, stored.policy.pause) == (77, True)
    h.db.resume("events")
    client.execute("COMMENT ON TABLE events IS 'ttl_duration=86400;ttl_col=ts;'")
    assert h.db.run().deleted == 1
    client.execute("COMMENT ON TABLE events IS 'just words'")
    h.db.run()
    assert h.db.policies() == []


def test_the_managed_column_comes_and_goes_with_it(h: Harness, client: psycopg.Connection) -> None:
    create(client, h)
    client.execute("COMMENT ON TABLE events IS 'ttl_expire_after=1 day'")
    h.db.run()
    assert "crdb_internal_expiration" in h.db.execute("SELECT * FROM events").columns
    client.execute("COMMENT ON TABLE events IS NULL")
    h.db.run()
    assert h.db.execute("SELECT * FROM events").columns == ("id", "ts")


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("ttl_duration=soon;ttl_col=ts;", "whole number of seconds"),
        ("ttl_duration=60;ttl_col=nope;", "does not exist"),
        ("ttl_col=ts;", "needs ttl_duration"),
        ("ttl_duration=60;ttl_col=ts;ttl_nonsense=1", "not known"),
        ("ttl_pause=on", "has no TTL"),
    ],
)
def test_a_mistake_is_reported_and_stops_the_table(
    h: Harness, client: psycopg.Connection, comment: str, words: str
) -> None:
    create(client, h)
    client.execute(f"COMMENT ON TABLE events IS '{comment}'")
    result = h.db.run()
    assert not result.complete
    assert words in result.skipped[0].reason
    assert any(words in finding.text for finding in h.db.doctor() if finding.level == "problem")
    assert h.ids() == [1, 2]


def test_a_comment_gone_wrong_stops_what_it_declared(h: Harness, client: psycopg.Connection) -> None:
    create(client, h)
    client.execute("COMMENT ON TABLE events IS 'ttl_duration=864000;ttl_col=ts;'")
    h.db.run()
    client.execute("COMMENT ON TABLE events IS 'ttl_duration=8640000x;ttl_col=ts;'")
    h.advance(days=20)
    assert h.db.run().jobs == ()
    assert h.ids() == [1, 2]


def test_a_statement_wins(h: Harness, client: psycopg.Connection) -> None:
    create(client, h)
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''10 years''')")
    client.execute("COMMENT ON TABLE events IS 'ttl_duration=86400;ttl_col=ts;'")
    assert h.db.run().deleted == 0
    assert h.db.policies()[0].source == "statement"
