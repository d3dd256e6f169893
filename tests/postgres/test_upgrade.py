"""A catalog that an older Lapse left in a PostgreSQL database goes on where it stopped."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from lapse.errors import PolicyConflict
from lapse.model.job import JobStatus, PathKind
from tests.conformance.harness import Harness

VERSION_2 = Path(__file__).with_name("version-2.sql")
"""A dump, with a job of each that is not paused, and rows that have expired since:

a managed column (sessions), a column with an interval (events), a paused expression (mails), partitions that are
dropped whole (readings, one leaf in another schema), rules of partitions in a comment (visits), a live view (tokens),
row security (invites), a policy in a comment (notes).
"""
RAN = {"events", "invites", "notes", "readings", "sessions", "tokens", "visits"}

FUNCTION = "dc5f80dc22dd7146b010785f9e61d0a7eb6eba63339d13d86d2b559e9ca576e1"
"""The batch function of a plain policy, as released, without the number of its table."""


@pytest.fixture
def old(h: Harness) -> Harness:
    with psycopg.connect(h.url, autocommit=True) as client:
        if client.info.server_version < 150000:
            pytest.skip("the dump is of a newer server, whose views run with the rights of their readers")
        client.execute(VERSION_2.read_bytes())
    return h


def test_policies_and_history_are_kept(old: Harness) -> None:
    known = {stored.table.name: stored for stored in old.db.policies()}
    assert set(known) == RAN | {"mails"}
    assert {name for name, stored in known.items() if stored.source == "comment"} == {"notes", "visits"}
    assert {name for name, stored in known.items() if stored.policy.pause} == {"mails"}
    assert known["mails"].policy.delete_batch_size == 50
    # What an older version did not remember is learned at the first look.
    assert all(stored.armed is None for stored in known.values())
    jobs = old.db.history()
    assert {job.table.name for job in jobs} == RAN
    assert all(job.status is JobStatus.FINISHED for job in jobs)
    assert sum(job.counts.deleted for job in jobs) == 8
    assert old.db.settings()["lapse_mode"] == "fast"


def test_a_run_deletes_what_has_expired_since(old: Harness) -> None:
    old.advance(hours=2)
    result = old.run(None)
    assert all(job.status is JobStatus.FINISHED for job in result.jobs)
    assert [(skip.table.name, skip.reason) for skip in result.skipped] == [("mails", "ttl_pause is on")]
    kinds = {(job.table.name, job.table.partition): job.path.kind for job in result.jobs}
    assert kinds["readings", "readings_2021"] is PathKind.PARTITION
    assert result.deleted == 8
    assert old.ids("sessions") == [2, 3]
    assert old.ids("events") == [2]
    assert old.ids("mails") == [1, 2, 3]
    assert old.ids("readings") == [3]
    assert old.ids("visits") == [2, 3]
    assert old.ids("tokens") == old.ids("tokens_live") == [2]
    assert old.ids("invites") == old.ids("notes") == [2]
    assert all(old.db.policy(name).armed is not None for name in RAN)
    old.db.resume("mails")
    assert old.run("mails").deleted == 1
    assert old.ids("mails") == [1, 3]
    assert [finding.text for finding in old.db.doctor() if finding.level == "problem"] == []


def test_the_managed_column_still_works(old: Harness) -> None:
    old.db.policies()
    old.sql("INSERT INTO sessions (id, who) VALUES (5, 'new')")
    old.sql("UPDATE sessions SET crdb_internal_expiration = now() WHERE id = 5")
    old.sql("UPDATE sessions SET who = 'renewed' WHERE id IN (2, 3, 5)")
    late = "crdb_internal_expiration BETWEEN now() + INTERVAL '59 minutes' AND now() + INTERVAL '1 hour'"
    assert old.rows(f"SELECT id FROM sessions WHERE {late}") == [(5,)]
    assert old.rows("SELECT id FROM sessions WHERE crdb_internal_expiration IS NULL") == [(2,)]
    old.sql("ALTER TABLE sessions SET (ttl_expire_after = '3 hours')")
    old.sql("UPDATE sessions SET who = 'again' WHERE id = 5")
    assert old.rows("SELECT id FROM sessions WHERE crdb_internal_expiration > now() + INTERVAL '2 hours'") == [
        (3,),
        (5,),
    ]


@pytest.mark.parametrize("table", sorted(RAN))
def test_policies_can_be_removed(old: Harness, table: str) -> None:
    old.sql(f"ALTER TABLE {table} RESET (ttl)")
    assert table not in {stored.table.name for stored in old.db.policies()}
    old.advance(hours=2)
    old.run(None)
    assert table not in {stored.table.name for stored in old.db.policies()}
    left = {"sessions": "lapse_ttl_update", "tokens": "tokens_live", "invites": "lapse_hide_expired"}.get(table, "?")
    found = (
        "SELECT tgname FROM pg_trigger UNION SELECT relname FROM pg_class UNION SELECT polname FROM pg_policy"
        " UNION SELECT attname FROM pg_attribute WHERE attname = 'crdb_internal_expiration' AND NOT attisdropped"
    )
    assert left not in {row[0] for row in old.rows(found)}


def test_what_the_policy_reads_is_protected_from_the_first_statement_on(old: Harness) -> None:
    with pytest.raises(PolicyConflict):
        old.sql("BEGIN; ALTER TABLE events DROP COLUMN at")
    old.sql("ALTER TABLE events ADD COLUMN more INTEGER")


def test_an_older_catalog_on_a_changed_table_arms_nothing(old: Harness) -> None:
    with psycopg.connect(old.url, autocommit=True) as client:
        client.execute("ALTER TABLE events ALTER COLUMN at TYPE date")
        client.execute("DROP TRIGGER lapse_ttl_update ON sessions")
    for table, rows in {"events": [2, 3], "sessions": [2, 3, 4]}.items():
        assert old.run(table).failed
        assert old.ids(table) == rows
        assert old.db.policy(table).armed is None


def test_the_batch_function_of_a_plain_policy_is_the_released_one(h: Harness) -> None:
    """By its text a function is known to be Lapse's: with another one, every table of an upgraded database is blocked
    until its owner repairs it. A change needs a way to renew them all."""
    h.sql("CREATE TABLE public.events (id bigint PRIMARY KEY, ts timestamptz)")
    h.sql("ALTER TABLE public.events TTL = ts + INTERVAL 1 DAY")
    ((oid, text),) = h.rows(
        "SELECT c.oid, p.prosrc FROM pg_class c JOIN pg_proc p ON p.proname = 'lapse_ttl_' || c.oid"
        " WHERE c.relname = 'events'"
    )
    assert sha256(str(text).replace(str(oid), "N").encode()).hexdigest() == FUNCTION
