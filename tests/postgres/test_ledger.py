"""The ledger on PostgreSQL: a worker's role adds to it and cannot rewrite it, whatever it was granted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from lapse.app import Lapse
from lapse.catalog import ledger, migrations
from lapse.model.ledger import EntryKind
from tests.conformance.harness import Harness
from tests.conftest import Servers

REWRITES = (
    "UPDATE lapse_ttl.lapse_ledger SET after_json = '{}' WHERE sequence = 1",
    "UPDATE lapse_ttl.lapse_ledger SET hash = repeat('0', 64)",
    "UPDATE lapse_ttl.lapse_ledger SET sequence = sequence + 100",
    "DELETE FROM lapse_ttl.lapse_ledger WHERE sequence = 1",
    "TRUNCATE lapse_ttl.lapse_ledger",
    "ALTER TABLE lapse_ttl.lapse_ledger DISABLE TRIGGER ALL",
    "SET session_replication_role = replica",
    "DROP TABLE lapse_ttl.lapse_ledger CASCADE",
    "CREATE OR REPLACE FUNCTION lapse_ttl.keep_ledger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
)


@pytest.fixture
def roles(servers: Servers) -> Iterator[Harness]:
    """Declared by an owner, run by a worker; neither is a superuser."""
    with Harness.fresh(servers.get("postgres15-role")) as harness:
        yield harness


def _do(db: Lapse, statement: str) -> None:
    with db.engine.connection() as connection:
        connection.execute(text(statement))


@pytest.mark.parametrize("statement", REWRITES)
def test_a_worker_cannot_rewrite_it(roles: Harness, statement: str) -> None:
    roles.events()
    worker = roles.db
    worker.run("events")
    before = roles.owner.ledger()
    # Even where all was granted that can be granted.
    with roles.owner.engine.connection() as connection:
        role = worker.engine.database.url.username
        connection.execute(text(f'GRANT ALL ON ALL TABLES IN SCHEMA lapse_ttl TO "{role}"'))
    with pytest.raises(DBAPIError):
        try:
            _do(worker, statement)
        except Exception as error:
            raise (error.__cause__ or error) from None
    assert roles.owner.ledger() == before
    assert roles.owner.verify_ledger().holds


def test_a_logical_replica_has_the_entries_as_they_are(h: Harness) -> None:
    """What the applying session writes is not another entry, and its role is not the one that did it."""
    h.events()
    before = h.owner.ledger()
    with h.owner.engine.connection() as connection:
        for each in (
            "CREATE TEMPORARY TABLE sent AS SELECT * FROM lapse_ttl.lapse_ledger",
            "SET session_replication_role = replica",
            "DELETE FROM lapse_ttl.lapse_ledger",
            "INSERT INTO lapse_ttl.lapse_ledger SELECT * FROM sent",
            "RESET session_replication_role",
        ):
            connection.execute(text(each))
    assert h.owner.ledger() == before
    assert h.owner.verify_ledger().holds


def test_who_it_was_is_the_servers_word(roles: Harness) -> None:
    """An entry that is added in another role's name, or with a place in the chain, gets neither."""
    roles.events()
    worker = roles.db
    worker.run("events")
    _do(
        worker,
        "INSERT INTO lapse_ttl.lapse_ledger (sequence, hash, recorded_at, kind, role_name, user_name, host, program)"
        " VALUES (1000, 'x', '2020-01-01T00:00:00.000000Z', 'released', 'postgres', 'root', 'there', 'that')",
    )
    added = roles.owner.ledger(limit=1)[0]
    assert added.kind == EntryKind.RELEASED and added.role == worker.engine.database.url.username
    assert added.sequence == len(roles.owner.ledger(limit=1_000))
    assert roles.owner.verify_ledger().holds


def test_what_is_asked_from_psql_is_on_record_with_the_role_that_asked(h: Harness) -> None:
    h.events()
    _do(h.owner, "SELECT lapse_ttl.pause('public.events')")
    h.db.run()
    paused = next(each for each in h.owner.ledger() if each.kind == EntryKind.PAUSED)
    with h.owner.engine.connection() as connection:
        assert paused.user == h.owner.engine.role(connection)
    assert paused.program == "pause in the database"


def test_a_workers_role_is_given_what_it_needs_by_the_upgrade(roles: Harness) -> None:
    """The new table and its numbers, whatever version the catalog was made with."""
    roles.events()
    roles.db.run("events")
    role = roles.db.engine.database.url.username
    with roles.owner.catalog.writing() as connection:
        connection.execute(text("DROP TABLE lapse_ttl.lapse_ledger CASCADE"))
        connection.execute(text(f'REVOKE ALL ON SEQUENCE lapse_ttl.lapse_hold_hold_id_seq FROM "{role}"'))
        migrations.STEPS[migrations.WITH_LEDGER - 1](connection)
        ledger.begin(connection, roles.now)
        roles.owner.engine.install_client(connection)
    assert [each.kind for each in roles.owner.ledger()] == [EntryKind.FOUND, EntryKind.BEGAN]
    with roles.open() as worker:
        worker.run("events")
        assert worker.ledger(limit=1)[0].kind == EntryKind.RUN
        assert worker.verify_ledger().holds
        may_number = "SELECT has_sequence_privilege('lapse_ttl.lapse_hold_hold_id_seq', 'USAGE')"
        with worker.engine.connection() as connection:
            assert connection.execute(text(may_number)).scalar()
