"""Archives on PostgreSQL: whose they are, what others can do to them, partitions, and every type value for value."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from lapse.app import Lapse
from lapse.errors import NotPermitted, PolicyConflict, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import PathKind
from tests.conformance.harness import Harness

ARCHIVE = "ALTER TABLE events SET (ttl_archive = 'table:')"

TYPES = {
    "a": ("smallint", "-32768"),
    "b": ("numeric(30,10)", "12345678901234567890.0123456789"),
    "c": ("numeric", "'NaN'"),
    "d": ("real", "1.5e-30"),
    "e": ("double precision", "'-Infinity'"),
    "f": ("money", "'1234.56'"),
    "g": ('varchar(10) COLLATE "C"', "'äöü'"),
    "h": ("char(5)", "'ab'"),
    "i": ("bytea", "'\\x00ff'"),
    "j": ("timestamp(3)", "'infinity'"),
    "k": ("date", "'0044-03-15 BC'"),
    "l": ("timetz", "'12:34:56.789+05:30'"),
    "m": ("interval", "'1 year 2 mons 3 days 04:05:06.789'"),
    "n": ("boolean", "NULL"),
    "o": ("mood", "'it''s %s'"),
    "p": ("point", "'(1,2)'"),
    "q": ("inet", "'10.1.2.3/8'"),
    "r": ("bit(5)", "B'10101'"),
    "s": ("bit varying", "B'1'"),
    "t": ("tsvector", "'a:1 b:2'"),
    "u": ("uuid", "'6f0a2f0e-26a3-4f34-8e3e-6c1a0d6c7e11'"),
    "v": ("json", "'{\"a\":  1}'"),
    "w": ("jsonb", "'{\"b\": [1, null]}'"),
    "x": ("integer[]", "'{{1,2},{3,NULL}}'"),
    "y": ("pair", "ROW(1, 'x')"),
    "z": ("int4range", "'[1,10)'"),
    "positive": ("positive", "5"),
    'odd "%s" {name}': ("text", "'100%% of {it}'"),
}


def _all_types(client: psycopg.Connection) -> list[tuple[object, ...]]:
    client.execute("CREATE TYPE mood AS ENUM ('it''s %s', 'other')")
    client.execute("CREATE TYPE pair AS (number integer, word text)")
    client.execute("CREATE DOMAIN positive AS integer NOT NULL CHECK (VALUE > 0)")
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, (kind, _) in TYPES.items()
    )
    client.execute(
        sql.SQL(
            "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ts timestamptz, {},"
            " twice bigint GENERATED ALWAYS AS (a * 2) STORED NOT NULL)"
        ).format(columns)
    )
    named = sql.SQL(", ").join(sql.Identifier(name) for name in TYPES)
    values = sql.SQL(", ").join(sql.SQL(value.replace("%%", "%")) for _, value in TYPES.values())
    client.execute(
        sql.SQL("INSERT INTO events (ts, {}) VALUES (now() - interval '400 days', {})").format(named, values)
    )
    client.execute("INSERT INTO events (ts, a, positive) VALUES (now() - interval '401 days', 1, 1)")
    return _texts(client, "events")


def _texts(client: psycopg.Connection, table: str) -> list[tuple[object, ...]]:
    named = sql.SQL(", ").join(
        sql.SQL("{}::text").format(sql.Identifier(name)) for name in ("id", "ts", *TYPES, "twice")
    )
    return client.execute(sql.SQL("SELECT {} FROM {} ORDER BY id").format(named, sql.Identifier(table))).fetchall()


def test_every_type_goes_and_comes_back_value_for_value(h: Harness, client: psycopg.Connection) -> None:
    before = _all_types(client)
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 day''', ttl_guard = 'off')")
    h.sql(ARCHIVE)
    # Everything that a session could write differently.
    client.execute("ALTER ROLE CURRENT_USER SET DateStyle = 'German'")
    assert h.db.run("events").deleted == 2
    assert _texts(client, "events_archive") == before
    done = h.owner.restore("events")
    assert (done.restored, done.refused, done.reason) == (2, 0, None)
    client.execute("ALTER ROLE CURRENT_USER RESET DateStyle")
    assert _texts(client, "events") == before


def _expired(h: Harness, client: psycopg.Connection) -> None:
    client.execute("CREATE TABLE events (id bigint PRIMARY KEY, ts timestamptz, note text)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off')")
    client.execute("INSERT INTO events SELECT i, now() - interval '400 days', i FROM generate_series(1, 20) i")


@pytest.mark.parametrize(
    "attack",
    [
        "CREATE TRIGGER t BEFORE INSERT ON events_archive FOR EACH ROW EXECUTE FUNCTION nothing()",
        "CREATE RULE r AS ON INSERT TO events_archive DO INSTEAD NOTHING",
        "ALTER TABLE events_archive SET UNLOGGED",
        "ALTER TABLE events_archive ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        "ALTER TABLE events_archive ADD CHECK (id > 5)",
        "ALTER TABLE events_archive ALTER COLUMN note SET NOT NULL",
        "ALTER TABLE events_archive ALTER COLUMN note TYPE varchar(1)",
        "CREATE TABLE child (event bigint REFERENCES events ON DELETE CASCADE)",
        "CREATE TABLE heir () INHERITS (events_archive)",
        "DROP TABLE events_archive; CREATE VIEW events_archive AS SELECT * FROM events",
        "ALTER TABLE events_archive RENAME TO old; CREATE TABLE events_archive (LIKE old INCLUDING ALL)",
    ],
)
def test_an_archive_that_could_refuse_or_divert_a_row_takes_none(
    h: Harness, client: psycopg.Connection, attack: str
) -> None:
    """When a job is planned, and in the batch itself, whatever was seen before."""
    _expired(h, client)
    h.sql(ARCHIVE)
    client.execute("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    (oid,) = client.execute("SELECT 'events'::regclass::oid").fetchone() or (0,)
    (name,) = client.execute(f"SELECT oid::regproc FROM pg_proc WHERE proname = 'lapse_ttl_{oid}'").fetchone() or ("",)
    client.execute(attack)
    # The function itself, as a worker calls it.
    with pytest.raises(psycopg.Error) as refused:
        client.execute(
            f"SELECT {name}('sweep', {oid}::oid, ARRAY[now()], ARRAY[(now() - interval '1 day')::text],"
            " ARRAY[100, 0, 1]::bigint[], ARRAY['(0,0)', '(9,0)'], ARRAY[]::oid[])"
        )
    assert refused.value.sqlstate in ("LT004", "42P01", "42809"), refused.value
    (skip,) = h.db.run("events").skipped
    assert skip.blocked is BlockCode.PARTS_MISSING
    assert len(h.ids()) == 20
    # A hold can be placed all the same, and arming the table again opens no way.
    h.owner.hold("events", "id = 1")
    assert h.db.run("events").deleted == 0


def test_the_function_moves_what_it_deletes(h: Harness, client: psycopg.Connection) -> None:
    _expired(h, client)
    h.sql(ARCHIVE)
    (oid,) = client.execute("SELECT 'events'::regclass::oid").fetchone() or (0,)
    (name,) = client.execute(f"SELECT oid::regproc FROM pg_proc WHERE proname = 'lapse_ttl_{oid}'").fetchone() or ("",)
    client.execute("INSERT INTO events VALUES (99, now(), 'live')")
    client.execute(
        f"SELECT {name}('sweep', {oid}::oid, ARRAY['infinity'::timestamptz], ARRAY['infinity'],"
        " ARRAY[100, 0, 7]::bigint[], ARRAY['(0,0)', '(9,0)'], ARRAY[]::oid[])"
    )
    assert h.ids() == [99]
    assert client.execute("SELECT count(*), min(lapse_job), max(lapse_job) FROM events_archive").fetchone() == (
        20,
        7,
        7,
    )


def test_rows_that_others_may_not_see_stay_unseen(h: Harness, client: psycopg.Connection) -> None:
    """What default privileges would give is taken back."""
    client.execute("DROP ROLE IF EXISTS archive_reader")
    client.execute("CREATE ROLE archive_reader")
    try:
        client.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO archive_reader, PUBLIC")
        _expired(h, client)
        client.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
        h.sql(ARCHIVE)
        for role in ("archive_reader", "public"):
            asked = f"SELECT has_table_privilege('{role}', 'events_archive', 'SELECT')"
            assert client.execute(asked).fetchone() == (False,)
    finally:
        client.execute("ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM archive_reader, PUBLIC")
        client.execute("DROP OWNED BY archive_reader")
        client.execute("DROP ROLE archive_reader")


def test_rows_of_another_owners_table_are_restored_by_that_owner(h: Harness, client: psycopg.Connection) -> None:
    """A trigger of the table would run with the rights of the role that restores."""
    _expired(h, client)
    h.sql(ARCHIVE)
    h.db.run("events")
    client.execute("DROP ROLE IF EXISTS archive_owner")
    client.execute("CREATE ROLE archive_owner")
    try:
        client.execute("ALTER TABLE events OWNER TO archive_owner")
        with pytest.raises(NotPermitted, match="archive_owner"):
            h.owner.restore("events", keep="0 seconds")
        assert h.ids() == []
    finally:
        client.execute("ALTER TABLE events OWNER TO CURRENT_USER")
        client.execute("DROP OWNED BY archive_owner")
        client.execute("DROP ROLE archive_owner")


def test_partitions_have_one_archive_and_are_emptied(h: Harness, client: psycopg.Connection) -> None:
    client.execute("CREATE TABLE events (id bigint, ts timestamptz, note text) PARTITION BY RANGE (ts)")
    client.execute("CREATE TABLE old PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')")
    client.execute("CREATE TABLE other (note text, gone int, ts timestamptz, id bigint)")
    client.execute("ALTER TABLE other DROP COLUMN gone")
    client.execute("ALTER TABLE events ATTACH PARTITION other FOR VALUES FROM ('2021-01-01') TO ('2090-01-01')")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    notices = h.sql(
        "ALTER TABLE events SET (ttl_archive = 'table:', ttl_partition_drop = 'on', ttl_guard = 'off')"
    ).notices
    assert any("emptied first, and dropped by a later run" in notice for notice in notices)
    client.execute("INSERT INTO events SELECT i, '2020-06-01', i FROM generate_series(1, 10) i")
    client.execute("INSERT INTO events SELECT i, '2021-06-01', i FROM generate_series(11, 20) i")
    jobs = h.db.run("events").jobs
    assert all(job.path.kind is not PathKind.PARTITION for job in jobs)
    assert client.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert client.execute("SELECT array_agg(id::text = note) FROM events_archive").fetchone() == ([True] * 20,)
    assert client.execute("SELECT to_regclass('old') IS NOT NULL").fetchone() == (True,)
    assert h.owner.restore("events").restored == 20
    assert client.execute("SELECT count(*) FROM ONLY other").fetchone() == (10,)


def test_a_schema_of_its_own(h: Harness, client: psycopg.Connection) -> None:
    _expired(h, client)
    with pytest.raises(Unsupported, match="no schema vault"):
        h.sql("ALTER TABLE events SET (ttl_archive = 'table:vault.events')")
    client.execute("CREATE SCHEMA vault")
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:vault.events')")
    assert h.db.run("events").deleted == 20
    assert client.execute("SELECT count(*) FROM vault.events").fetchone() == (20,)
    with pytest.raises(Unsupported, match="63 bytes"):
        h.sql(f"ALTER TABLE events SET (ttl_archive = 'table:{'x' * 70}')")


def test_triggers_of_the_table_see_the_path_that_they_know(h: Harness, client: psycopg.Connection) -> None:
    _expired(h, client)
    h.sql(ARCHIVE)
    client.execute("CREATE TABLE seen (id bigint)")
    client.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END'"
    )
    h.db.run("events")
    client.execute("CREATE TRIGGER note AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION note()")
    assert h.owner.restore("events").restored == 20
    assert client.execute("SELECT count(*) FROM seen").fetchone() == (20,)


def test_a_trigger_that_swallows_restored_rows_loses_none(h: Harness, client: psycopg.Connection) -> None:
    _expired(h, client)
    h.sql(ARCHIVE)
    h.db.run("events")
    client.execute(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF NEW.id = 7 THEN RETURN NULL; END IF; RETURN NEW; END'"
    )
    client.execute("CREATE TRIGGER swallow BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION swallow()")
    done = h.owner.restore("events")
    assert (done.restored, done.refused) == (19, 1)
    assert h.ids("events_archive") == [7]


def test_a_table_that_looks_like_an_archive_of_another_role_is_refused(h: Harness, client: psycopg.Connection) -> None:
    client.execute("DROP ROLE IF EXISTS archive_maker")
    client.execute("CREATE ROLE archive_maker")
    try:
        _expired(h, client)
        client.execute(
            "CREATE TABLE events_archive (lapse_seq bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,"
            " lapse_job bigint, archived_at timestamptz, id bigint, ts timestamptz, note text)"
        )
        client.execute("ALTER TABLE events_archive OWNER TO archive_maker")
        with pytest.raises(PolicyConflict, match="archive_maker"):
            h.sql(ARCHIVE)
    finally:
        client.execute("DROP OWNED BY archive_maker")
        client.execute("DROP ROLE archive_maker")


def test_workers_need_no_right_on_the_archive(h: Harness) -> None:
    """The conformance suite runs with roles that are given what doctor prints; no GRANT names a table."""
    with Lapse(h.url, clock=h.clock) as db:
        db.execute("CREATE TABLE events (id bigint PRIMARY KEY, ts timestamptz) TTL = ts + INTERVAL 1 DAY")
        db.execute(ARCHIVE)
        assert not [found for found in db.doctor() if found.fix and "GRANT" in found.fix and "archive" in found.fix]
