"""Keys of deleted rows on PostgreSQL: a worker records hashes, and learns neither keys nor the secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from lapse.app import Lapse
from lapse.errors import InvalidValue, NotPermitted, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness
from tests.conftest import Servers

KEYS = "ttl_ledger_keys = 'on', ttl_guard = 'off'"

REWRITES = (
    "UPDATE lapse_ttl.lapse_ledger_key SET hashes = ''",
    "DELETE FROM lapse_ttl.lapse_ledger_key",
    "TRUNCATE lapse_ttl.lapse_ledger_key",
    "ALTER TABLE lapse_ttl.lapse_ledger_key DISABLE TRIGGER ALL",
    "ALTER TABLE lapse_ttl.lapse_secret DISABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON lapse_ttl.lapse_secret USING (true)",
    "INSERT INTO lapse_ttl.lapse_secret (role_name, schema_name, table_name, value)"
    " SELECT relowner::regrole, 'public', 'other', '' FROM pg_class WHERE oid = 'events'::regclass",
)


@pytest.fixture
def roles(servers: Servers) -> Iterator[Harness]:
    """Declared by an owner, run by a worker; neither is a superuser."""
    with Harness.fresh(servers.get("postgres15-role")) as harness:
        harness.events()
        harness.sql(f"ALTER TABLE events SET ({KEYS})")
        harness.insert((1, harness.at(days=-2)), (2, harness.at(days=-2)), (3, harness.at()))
        yield harness


def do(db: Lapse, statement: str) -> list[Any]:
    with db.engine.connection() as connection:
        found = connection.execute(text(statement))
        return list(found) if found.returns_rows else []


def granted_everything(roles: Harness) -> Lapse:
    """A worker that was given all that can be given in the catalog."""
    worker = roles.db
    role = worker.engine.database.url.username
    do(roles.owner, f'GRANT ALL ON ALL TABLES IN SCHEMA lapse_ttl TO "{role}"')
    return worker


def test_a_worker_sees_no_secret_and_cannot_ask(roles: Harness) -> None:
    worker = granted_everything(roles)
    assert worker.run("events").jobs[0].counts.deleted == 2
    assert do(worker, "SELECT * FROM lapse_ttl.lapse_secret") == []
    assert len(do(roles.owner, "SELECT * FROM lapse_ttl.lapse_secret")) == 1
    with pytest.raises(NotPermitted, match="secret"):
        worker.deleted("events", 1)
    assert len(roles.owner.deleted("events", 1).found) == 1
    assert do(worker, "DELETE FROM lapse_ttl.lapse_secret RETURNING 1") == []
    assert do(worker, "UPDATE lapse_ttl.lapse_secret SET value = '' RETURNING 1") == []
    assert len(roles.owner.deleted("events", 2).found) == 1


def test_what_the_function_tells_is_hashes(roles: Harness) -> None:
    """Not the keys, not the secret: neither in its text nor in what an error repeats."""
    worker = granted_everything(roles)
    (secret,) = do(roles.owner, "SELECT encode(value, 'hex') FROM lapse_ttl.lapse_secret")[0]
    (source,) = do(worker, "SELECT prosrc FROM pg_proc WHERE prosrc LIKE '-- lapse:%'")[0]
    assert secret not in source
    with roles.client() as client:
        client.exec_driver_sql(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no %', OLD.id; END$$;"
            "CREATE TRIGGER no BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION no()"
        )
    (name,) = do(worker, "SELECT oid::regproc::text FROM pg_proc WHERE prosrc LIKE '-- lapse:%'")[0]
    call = (
        f"SELECT {name}('blocks', 'public.events'::regclass::oid, ARRAY[now()]::timestamptz[],"
        " ARRAY[(now() - interval '1 day')::timestamp::text], ARRAY[10, 0, 0]::int8[], ARRAY['(0,0)', '(9,0)'], '{}')"
    )
    with pytest.raises(DBAPIError) as raised:
        try:
            do(worker, call)
        except Exception as error:
            raise (error.__cause__ or error) from None
    told = str(raised.value) + str(getattr(getattr(raised.value.orig, "diag", None), "context", ""))
    assert "no 1" in told and "lapse_secret" in told and secret not in told


@pytest.mark.parametrize("statement", REWRITES)
def test_a_worker_cannot_rewrite_keys(roles: Harness, statement: str) -> None:
    worker = granted_everything(roles)
    worker.run("events")
    before = do(roles.owner, "SELECT * FROM lapse_ttl.lapse_ledger_key")
    with pytest.raises(DBAPIError):
        try:
            do(worker, statement)
        except Exception as error:
            raise (error.__cause__ or error) from None
    assert do(roles.owner, "SELECT * FROM lapse_ttl.lapse_ledger_key") == before
    assert roles.owner.verify_ledger().holds


def test_without_its_secret_a_table_is_blocked(roles: Harness) -> None:
    """A role that is gone keeps no other from its own."""
    do(roles.owner, "UPDATE lapse_ttl.lapse_secret SET table_name = 'other'")
    do(roles.owner, "INSERT INTO lapse_ttl.lapse_secret (role_name, schema_name, table_name, value)"
       " SELECT role_name, 'public', 'third', value FROM lapse_ttl.lapse_secret")  # fmt: skip
    job = roles.run_one()
    assert job.counts.deleted == 0 and "secret" in str(job.reason)
    assert roles.ids() == [1, 2, 3]
    roles.owner.resume("events")
    assert roles.run_one().counts.deleted == 2
    assert len(roles.owner.deleted("events", 1).found) == 1


def test_a_key_that_was_changed_blocks_until_it_is_repaired(roles: Harness) -> None:
    with roles.client() as client:
        client.exec_driver_sql("ALTER TABLE events ALTER id TYPE int")
    (skip,) = roles.run("events").skipped
    assert skip.blocked is BlockCode.PARTS_MISSING and roles.ids() == [1, 2, 3]
    roles.owner.doctor(repair=True)
    assert roles.run_one().counts.deleted == 2
    assert len(roles.owner.deleted("events", "+01").found) == 1


@pytest.mark.parametrize("kind", ["double precision", "int[]", "citext", "mood"])
def test_keys_that_have_no_one_text_are_refused(h: Harness, kind: str) -> None:
    if kind == "citext":
        pytest.importorskip("psycopg")
        h.sql("CREATE EXTENSION IF NOT EXISTS citext")
    if kind == "mood":
        h.sql("CREATE TYPE mood AS ENUM ('sad')")
    h.events(key=f"id {kind} PRIMARY KEY")
    with pytest.raises(Unsupported, match="column id of the primary key"):
        h.sql(f"ALTER TABLE events SET ({KEYS})")


@pytest.mark.parametrize("name", ["which", "number", "value", "salt", "hashed", "gone", 'a %s"b'])
@pytest.mark.parametrize("more", ["", ", ttl_archive = 'table:'"])
def test_columns_that_are_called_as_parts_of_the_batch_are(h: Harness, name: str, more: str) -> None:
    column, table = (f'"{each}"' for each in (name.replace('"', '""'), "neighbours"))
    h.sql(f"CREATE TABLE {table} ({column} smallint PRIMARY KEY, ts timestamptz, hidden int) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE {table} SET ({KEYS}{more})")
    for keys in ("generate_series(-40, 40)", "unnest(ARRAY[1000, 2000])"):
        h.sql(f"INSERT INTO {table} SELECT n, {h.at(days=-2)} FROM {keys} n")
        assert h.run("neighbours").jobs[0].status is JobStatus.FINISHED
    found = [key for key in (-41, -40, 0, 40, 41, 1000, 1001) if h.owner.deleted("neighbours", key).found]
    assert found == [-40, 0, 40, 1000]


def test_keys_with_zones_whatever_the_sessions_settings_are(h: Harness) -> None:
    h.events(key="id timestamptz PRIMARY KEY")
    h.sql(f"ALTER TABLE events SET ({KEYS})")
    h.sql(f"INSERT INTO events (id, ts) VALUES ('2020-02-03 04:05:06.7+02', {h.at(days=-2)})")
    assert h.run_one().counts.deleted == 1
    for same in ("2020-02-03 04:05:06.700+02", "2020-02-03T02:05:06.7Z"):
        assert len(h.owner.deleted("events", same).found) == 1
    with pytest.raises(InvalidValue, match="id"):
        h.owner.deleted("events", "yesterday or so")


def test_an_owner_who_may_not_read_the_secret_is_told_the_grant(h: Harness) -> None:
    """Declared by a superuser for a role that has no rights in the catalog."""
    h.events()
    with h.client() as client:
        client.exec_driver_sql("CREATE ROLE hermit; GRANT CREATE ON SCHEMA public TO hermit")
        client.exec_driver_sql("ALTER TABLE events OWNER TO hermit")
    try:
        with pytest.raises(Unsupported, match="hermit") as refused:
            h.sql(f"ALTER TABLE events SET ({KEYS})")
        assert "GRANT SELECT ON lapse_ttl.lapse_secret" in str(refused.value.hint)
    finally:
        with h.client() as client:
            client.exec_driver_sql("DROP TABLE events; DROP OWNED BY hermit CASCADE")
            client.exec_driver_sql("DROP ROLE hermit")
