"""TTL deletes can be told apart in a change stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from lapse.app import Lapse
from lapse.errors import Unsupported
from tests.conformance.harness import Harness


def test_each_batch_carries_a_message(each: Harness) -> None:
    each.events()
    each.sql("ALTER TABLE events SET (ttl_delete_batch_size = 2)")
    with psycopg.connect(each.url, autocommit=True) as client:
        slot = "lapse_" + each.url.rpartition("/")[2]
        client.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (slot,))
        each.insert((1, each.at(days=-2)), (2, each.at(days=-2)), (3, each.at(days=-2)), (4, each.at()))
        client.execute("DELETE FROM events WHERE id = 4")
        each.run()
        changes = [
            str(row[0])
            for row in client.execute("SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL)", (slot,))
        ]
        client.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    marked: dict[bool, list[str]] = {True: [], False: []}
    ours = False
    for change in changes:
        if change.startswith("BEGIN"):
            ours = False
        elif change.startswith("message: transactional: 1 prefix: lapse,"):
            ours = True
            assert json.loads(change.split("content:", 1)[1])["ttl"] == "public.events"
        elif "public.events: DELETE" in change:
            marked[ours].append(change)
    assert len(marked[True]) == 3
    assert len(marked[False]) == 1
    assert "id[bigint]:4" in marked[False][0]


def test_the_sessions_name_themselves(h: Harness) -> None:
    with h.db.engine.connection() as connection:
        assert connection.exec_driver_sql("SELECT current_setting('application_name')").scalar_one() == "lapse"


@pytest.fixture
def origin(each: Harness) -> Iterator[str]:
    """Of the cluster, like the slot; both go before the database does."""
    name = "lapse_" + each.url.rpartition("/")[2]
    each.sql(f"SELECT pg_replication_origin_create('{name}')")
    yield name
    each.sql(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'")
    each.sql(f"SELECT pg_replication_origin_drop('{name}')")


def fill(h: Harness, origin: str) -> None:
    h.events()
    h.sql(f"ALTER TABLE events SET (ttl_replication_origin = '{origin}', ttl_delete_batch_size = 2)")
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)), (3, h.at(days=-2)), (4, h.at()), (5, h.at()))


def test_subscribers_can_leave_out_what_has_an_origin(each: Harness, origin: str) -> None:
    fill(each, origin)
    each.sql(f"SELECT pg_create_logical_replication_slot('{origin}', 'test_decoding')")
    each.sql("DELETE FROM events WHERE id = 4")
    assert each.run_one().counts.deleted == 3
    each.sql("DELETE FROM events WHERE id = 5")
    peek = f"SELECT data FROM pg_logical_slot_peek_changes('{origin}', NULL, NULL, 'skip-empty-xacts', '1'"
    everything = [row[0] for row in each.rows(f"{peek})")]
    local = [row[0] for row in each.rows(f"{peek}, 'only-local', '1')")]
    assert [text[-1] for text in everything if "public.events: DELETE" in text] == list("41235")
    assert [text[-1] for text in local if "public.events: DELETE" in text] == list("45")
    assert not [text for text in local if "prefix: lapse" in text]


def test_a_subscription_with_origin_none_leaves_them_out(each: Harness, origin: str) -> None:
    if each.rows("SELECT current_setting('server_version_num')::int < 160000")[0][0]:
        pytest.skip("pgoutput has no option origin before PostgreSQL 16")
    fill(each, origin)
    each.sql("CREATE PUBLICATION everything FOR TABLE events")
    each.sql(f"SELECT pg_create_logical_replication_slot('{origin}', 'pgoutput')")
    each.sql("DELETE FROM events WHERE id = 4")
    each.run()
    peek = (
        f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{origin}', NULL, NULL, 'proto_version', '4',"
        " 'publication_names', 'everything', 'origin', '{}') WHERE get_byte(data, 0) = ascii('D')"
    )
    assert each.rows(peek.format("any")) == [(4,)]
    assert each.rows(peek.format("none")) == [(1,)]


def test_no_session_keeps_the_origin(each: Harness, origin: str) -> None:
    """Neither after a commit nor after a row that cannot go, nor after a commit that fails."""
    fill(each, origin)
    each.sql("CREATE TABLE child (parent BIGINT REFERENCES events DEFERRABLE INITIALLY DEFERRED)")
    each.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF OLD.id = 2 THEN RAISE EXCEPTION 'made to fail'; END IF; RETURN OLD; END $$;"
        "CREATE CONSTRAINT TRIGGER fail AFTER DELETE ON events DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    job = each.run_one()
    assert (job.counts.deleted, job.counts.held) == (2, 1)
    with ExitStack() as stack:
        held = [stack.enter_context(each.db.engine.connection()) for _ in range(4)]
        sql = "SELECT pg_replication_origin_session_is_setup()"
        assert not any(connection.exec_driver_sql(sql).scalar_one() for connection in held)


def test_an_origin_must_exist_and_be_permitted(each: Harness, origin: str) -> None:
    each.events()
    with pytest.raises(Unsupported, match="no replication origin nobody") as caught:
        each.sql("ALTER TABLE events SET (ttl_replication_origin = 'nobody')")
    assert "pg_replication_origin_create('nobody')" in (caught.value.hint or "")
    fill_grants = (
        "GRANT USAGE ON SCHEMA lapse_ttl TO streamer;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lapse_ttl TO streamer;"
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA lapse_ttl TO streamer"
    )
    each.sql("DO $$ BEGIN CREATE ROLE streamer LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    each.sql(f"ALTER TABLE events SET (ttl_replication_origin = '{origin}'); {fill_grants}")
    each.insert((1, each.at(days=-2)))
    with Lapse(each.url.replace("postgres@", "streamer@"), clock=each.clock) as worker:
        execute, fix = [finding.fix or "" for finding in worker.doctor() if finding.level == "problem"]
        assert fix.startswith("GRANT EXECUTE ON FUNCTION pg_replication_origin_session_setup(text), ")
        each.sql(f"{execute} {fix}")
        assert worker.run().deleted == 1
    each.sql("DROP OWNED BY streamer; DROP ROLE streamer")
