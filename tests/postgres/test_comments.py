"""Policies in table comments, declared by any client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import event

from lapse.app import Lapse
from lapse.engines.postgres.names import CATALOG_SCHEMA
from lapse.errors import NotFound, NotPermitted
from lapse.model.blocked import BlockCode
from lapse.runner.comments import CommentReader
from tests.conformance.harness import Harness


def create(client: psycopg.Connection, h: Harness) -> None:
    client.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMPTZ)")
    client.execute(f"INSERT INTO events VALUES (1, {h.at(days=-2)}), (2, {h.at()})")


@pytest.mark.parametrize(
    "comment",
    [
        "ttl_duration=86400;ttl_col=ts;",
        "ttl_expiration_expression=ts + INTERVAL '1 day'; ttl_job_cron=@daily",
        "ttl_expiration_expression = coalesce(ts, ts) + INTERVAL '1 day'",
    ],
)
def test_a_run_finds_that_of_an_own_table_at_once(h: Harness, client: psycopg.Connection, comment: str) -> None:
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
    result = h.db.run()
    assert (result.deleted, result.failed) == (0, True)
    assert "whole number of seconds" in str(h.db.status()[0].reason)
    assert h.ids() == [1, 2]
    assert h.db.run("events").failed
    assert h.ids() == [1, 2]


@pytest.fixture
def stranger(h: Harness, client: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A role without rights, but for tables of its own: one that has an expired row."""
    client.execute("DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    client.execute("GRANT CREATE, USAGE ON SCHEMA public TO stranger")
    with psycopg.connect(h.url.replace("postgres@", "stranger@"), autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        create(connection, h)
        yield connection
    client.execute("DROP OWNED BY stranger")


def accepting(h: Harness) -> Lapse:
    return Lapse(h.url.replace("postgres@", "stranger@"), clock=h.clock)


def let_write_the_catalog(client: psycopg.Connection) -> None:
    client.execute(f"GRANT USAGE ON SCHEMA {CATALOG_SCHEMA} TO stranger")
    for what in ("TABLES", "SEQUENCES"):
        client.execute(f"GRANT ALL ON ALL {what} IN SCHEMA {CATALOG_SCHEMA} TO stranger")


PROPOSAL = "ttl_duration=86400;ttl_col=ts;"


def test_nothing_of_a_strangers_is_executed(
    h: Harness, client: psycopg.Connection, stranger: psycopg.Connection
) -> None:
    """The worker is a superuser here, and so would be the function of the trigger."""
    stranger.execute(
        "CREATE FUNCTION rise() RETURNS trigger LANGUAGE plpgsql SECURITY INVOKER AS"
        " $$ BEGIN EXECUTE 'ALTER ROLE stranger SUPERUSER'; RETURN OLD; END $$"
    )
    stranger.execute("CREATE TRIGGER rise BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION rise()")
    for comment in (PROPOSAL, "ttl_expiration_expression=ts;", "ttl_expire_after=1 second;ttl_hide_expired=view;"):
        stranger.execute(f"COMMENT ON TABLE events IS '{comment}'")
        result = h.db.run()
        assert (result.deleted, result.jobs, result.complete) == (0, (), True)
        assert [str(each.table) for each in result.proposals] == ["public.events"]
        assert h.db.policies() == []
        assert h.rows("SELECT to_regclass('events_live')") == [(None,)]
    assert h.rows("SELECT rolsuper FROM pg_roles WHERE rolname = 'stranger'") == [(False,)]
    assert h.ids() == [1, 2]


def test_a_proposal_is_shown_and_found_by_its_table(h: Harness, stranger: psycopg.Connection) -> None:
    stranger.execute(f"COMMENT ON TABLE events IS '{PROPOSAL}'")
    (found,) = h.db.comments()
    assert (found.proposal, found.fix) == (True, "lapse accept URL public.events")
    for look in (h.db.run, h.db.preview, h.db.policy, h.db.pause):
        with pytest.raises(NotFound, match="of stranger are not obeyed") as raised:
            look("events")
        assert raised.value.hint == "lapse accept URL public.events"
    (finding,) = [each for each in h.db.doctor() if each.subject == "public.events"]
    assert (finding.level, finding.fix) == ("advice", "lapse accept URL public.events")


def test_a_mistake_of_a_strangers_does_not_fail_the_run(h: Harness, stranger: psycopg.Connection) -> None:
    stranger.execute("COMMENT ON TABLE events IS 'ttl_duration=soon;'")
    assert h.db.run().complete
    assert [each.level for each in h.db.doctor() if each.subject == "public.events"] == ["advice"]


def test_the_owner_accepts_and_a_later_change_is_a_new_proposal(
    h: Harness, client: psycopg.Connection, stranger: psycopg.Connection
) -> None:
    h.sql("CREATE TABLE other (id INTEGER) WITH (ttl_expire_after = '1 day')")
    let_write_the_catalog(client)
    stranger.execute(f"COMMENT ON TABLE events IS '{PROPOSAL}'")
    with accepting(h) as owner:
        owner.accept("events")
    stored = h.db.policy("events")
    assert (stored.source, stored.source_text, stored.declared_by) == ("comment", PROPOSAL, "stranger")
    with accepting(h) as owner:
        assert owner.run("events").deleted == 1
    stranger.execute("COMMENT ON TABLE events IS 'ttl_duration=1;ttl_col=ts;'")
    h.advance(hours=2)
    assert h.db.run().failed
    (status,) = [each for each in h.db.status() if each.table.name == "events"]
    assert (status.state, status.blocked) == ("blocked", "comment")
    assert "lapse accept URL public.events" in str(status.reason)
    assert h.ids() == [2]
    with accepting(h) as owner:
        owner.accept("events")
        assert owner.run("events").deleted == 1


def test_only_one_who_acts_for_the_owner_accepts(
    h: Harness, client: psycopg.Connection, stranger: psycopg.Connection
) -> None:
    create_other = "CREATE TABLE theirs (id INTEGER PRIMARY KEY, ts TIMESTAMPTZ)"
    client.execute(f"{create_other}; COMMENT ON TABLE theirs IS '{PROPOSAL}'")
    h.sql("CREATE TABLE other (id INTEGER) WITH (ttl_expire_after = '1 day')")
    let_write_the_catalog(client)
    client.execute("GRANT ALL ON theirs TO stranger")
    with accepting(h) as other, pytest.raises(NotPermitted, match="belongs to postgres"):
        other.accept("theirs")


def test_owners_that_a_setting_names_are_obeyed(h: Harness, stranger: psycopg.Connection) -> None:
    stranger.execute(f"COMMENT ON TABLE events IS '{PROPOSAL}'")
    h.db.set_setting("lapse_trusted_owners", "ada, strange, strangers")
    assert not h.db.run().skipped
    assert h.db.policies() == []
    h.db.set_setting("lapse_trusted_owners", "ada,stranger")
    result = h.db.run()
    assert [stored.source for stored in h.db.policies()] == ["comment"]
    # Obeyed, and still no superuser works on another role's table.
    assert [skip.blocked for skip in result.skipped] == [BlockCode.PRIVILEGE]
    assert h.ids() == [1, 2]


def test_a_locked_table_delays_no_other(h: Harness, client: psycopg.Connection) -> None:
    """What its comment asks for takes a lock that an idle transaction keeps."""
    create(client, h)
    client.execute("CREATE TABLE ready (id INTEGER PRIMARY KEY, ts TIMESTAMPTZ)")
    client.execute(f"INSERT INTO ready VALUES (1, {h.at(days=-2)}), (2, {h.at()})")
    client.execute("COMMENT ON TABLE ready IS 'ttl_duration=86400;ttl_col=ts;'")
    client.execute("COMMENT ON TABLE events IS 'ttl_expire_after=1 day;'")
    with psycopg.connect(h.url) as idle:
        idle.execute("SELECT * FROM events")
        scheduler = h.db.worker()
        began = monotonic()
        result = scheduler.run()
        assert monotonic() - began < 5
        assert result.deleted == 1
        assert "stayed locked" in result.skipped[0].reason
        reader = CommentReader(h.db.catalog)
        assert len(reader.run_once()) == 1
        took = []
        for _ in range(3):
            began = monotonic()
            assert len(reader.run_once()) == 1
            took.append(monotonic() - began)
        # It would wait each time; a machine that has other things to do is slow now and then.
        assert min(took) < 0.5
    assert h.db.run().complete
    assert [each.table.name for each in h.db.policies()] == ["events", "ready"]


def test_reading_takes_a_fixed_number_of_statements(h: Harness, client: psycopg.Connection) -> None:
    def statements() -> int:
        seen: list[str] = []
        listen = partial(_note, seen)
        event.listen(h.db.engine.database, "before_cursor_execute", listen)
        h.db.comments()
        event.remove(h.db.engine.database, "before_cursor_execute", listen)
        return len(seen)

    h.events()
    client.execute("CREATE TABLE t (id INTEGER, ts TIMESTAMPTZ)")
    client.execute(f"COMMENT ON TABLE t IS '{PROPOSAL}'")
    h.db.comments()
    few = statements()
    for number in range(20):
        client.execute(f"CREATE TABLE t{number} (id INTEGER, ts TIMESTAMPTZ)")
        client.execute(f"COMMENT ON TABLE t{number} IS '{PROPOSAL}'")
    assert statements() == few


def _note(seen: list[str], *arguments: Any, **_: Any) -> None:
    seen.append(arguments[2])


def test_reset_by_one_who_may_not_comment_is_remembered(
    h: Harness, client: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL only an owner may remove a policy, so the refusal of the comment has to be made."""
    create(client, h)
    client.execute(f"COMMENT ON TABLE events IS '{PROPOSAL}'")
    assert h.db.run().deleted == 1

    def refuse(*_: object) -> None:
        raise NotPermitted("must be owner of table events")

    monkeypatch.setattr(h.owner.engine, "set_comment", refuse)
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.db.run().complete
    assert h.db.policies() == []
    h.owner.accept("events")
    assert h.db.policy("events").source_text == PROPOSAL
