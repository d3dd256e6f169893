"""TTL deletes can be told apart in a change stream."""

from __future__ import annotations

import json

import psycopg

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
    assert h.rows("SELECT current_setting('application_name')") == [("lapse",)]
