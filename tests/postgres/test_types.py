"""Every kind of key, time and name; and what is no table."""

from __future__ import annotations

import psycopg
import pytest

from lapse.errors import LapseError, PolicyConflict, Refused
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness

KEYS = {
    "none": ("id INTEGER", "1", "2"),
    "uuid": (
        "id UUID PRIMARY KEY",
        "'00000000-0000-0000-0000-000000000001'",
        "'00000000-0000-0000-0000-000000000002'",
    ),
    "text": ('id TEXT COLLATE "C" PRIMARY KEY', "'a''b'", "'é'"),
    "numeric": ("id NUMERIC(30, 10) PRIMARY KEY", "1.5", "1e15"),
    "bytea": ("id BYTEA PRIMARY KEY", "'\\x00'", "'\\xff'"),
    "enum": ("id colour PRIMARY KEY", "'red'", "'green'"),
    "domain": ("id small PRIMARY KEY", "1", "2"),
    "composite": ("id INTEGER, other TEXT DEFAULT 'x', PRIMARY KEY (other, id)", "1", "2"),
}


@pytest.mark.parametrize("key", KEYS)
def test_keys_do_not_matter(h: Harness, key: str) -> None:
    column, old, new = KEYS[key]
    h.sql("CREATE TYPE colour AS ENUM ('red', 'green'); CREATE DOMAIN small AS integer CHECK (VALUE < 100)")
    h.sql(f"CREATE UNLOGGED TABLE events ({column}, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO events (id, ts) VALUES ({old}, {h.at(days=-2)}), ({new}, {h.at()})")
    assert h.run_one().counts.deleted == 1
    assert h.rows(f"SELECT count(*) FROM events WHERE id = {new}") == [(1,)]


@pytest.mark.parametrize(
    ("kind", "expired", "alive"),
    [
        ("TIMESTAMPTZ(3)", "'2026-03-14 12:00:00+00'", "'2026-03-14 07:00:00.001-05'"),
        ("TIMESTAMP(0)", "'2026-03-14 12:00:00'", "'2026-03-14 12:00:01'"),
        ("DATE", "'2026-03-14'", "'2026-03-15'"),
        ("moment", "'2026-03-14 12:00:00+00'", "'2026-03-14 12:00:01+00'"),
        ("BIGINT", "1773489600", "1773489601"),
    ],
)
def test_times(h: Harness, kind: str, expired: str, alive: str) -> None:
    h.sql("CREATE DOMAIN inner_moment AS timestamptz; CREATE DOMAIN moment AS inner_moment")
    h.sql(f"CREATE TABLE events (id INTEGER, ts {kind}) WITH (ttl_time_zone = 'UTC') TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO events VALUES (1, {expired}), (2, {alive}), (3, NULL)")
    h.db.preview("events")
    h.run()
    assert h.ids() == [2, 3]
    assert len(h.rows("SELECT ts FROM events")) == 2


def test_a_date_expires_with_the_day_in_its_zone(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER, ts DATE)")
    h.sql("ALTER TABLE events SET (ttl_time_zone = 'Pacific/Auckland'), TTL = ts + INTERVAL 1 DAY")
    # Noon in UTC is one o'clock the next morning in Auckland.
    h.sql("INSERT INTO events VALUES (1, '2026-03-15'), (2, '2026-03-16')")
    h.run()
    assert h.ids() == [2]


def test_generated_columns_and_json(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INTEGER, body JSONB, until TIMESTAMP GENERATED ALWAYS AS"
        " (make_timestamp(2026, 3, (body ->> 'day')::int, 0, 0, 0)) STORED)"
        " WITH (ttl_expiration_expression = 'until', ttl_time_zone = 'UTC')"
    )
    h.sql("""INSERT INTO events VALUES (1, '{"day": 15}'), (2, '{"day": 16}')""")
    h.run()
    assert h.ids() == [2]


@pytest.mark.parametrize("kind", ["JSON", "JSONB", "TEXT"])
def test_times_inside_documents(h: Harness, kind: str) -> None:
    h.sql(
        f"CREATE TABLE events (id INTEGER, body {kind}) WITH (ttl_time_zone = 'UTC', ttl_expiration_expression ="
        " '(body ->> ''until'')::timestamptz')"
    )
    for number, until in enumerate(
        ["2026-03-15T12:00:00Z", "2026-03-15 07:59:59-04:00", "2026-03-15 12:00:00", "2026-03-15", "soon", "2026-03-16"]
    ):
        h.sql(f"""INSERT INTO events VALUES ({number}, '{{"until": "{until}"}}')""")
    h.sql("INSERT INTO events VALUES (9, '{}')")
    h.run()
    assert h.ids() == [4, 5, 9]


def test_an_interval_from_the_row(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ, keep INTERVAL) WITH (ttl_expiration_expression = 'ts + keep')"
    )
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)}, '1 day'), (2, {h.at(days=-2)}, '1 month')")
    h.run()
    assert h.ids() == [2]


def test_the_sessions_zone_does_not_matter(h: Harness, client: psycopg.Connection) -> None:
    """The server's zone is New York's; rows and cutoff are instants all the same."""
    h.events(ttl="WITH (ttl_expiration_expression = 'ts + INTERVAL ''1 month'' + INTERVAL ''1 day''')")
    client.execute("SET TIME ZONE 'Asia/Tokyo'")
    client.execute("INSERT INTO events VALUES (1, '2026-02-14 12:00:00+00'), (2, '2026-02-14 12:00:01+00')")
    h.run()
    assert h.ids() == [2]


def test_odd_names_in_schema_table_and_column(h: Harness) -> None:
    for schema in ('my "app"', "MyApp"):
        q = h.q(schema)
        h.sql(f'CREATE SCHEMA {q}; CREATE TABLE {q}."Ev""ents%" ("t s" TIMESTAMPTZ) TTL = "t s" + INTERVAL 1 DAY')
        h.sql(f'INSERT INTO {q}."Ev""ents%" VALUES ({h.at(days=-2)}), (\'infinity\')')
        assert h.db.run(f'{q}."Ev""ents%"').deleted == 1
        h.sql(f"ALTER TABLE {q}.\"Ev\"\"ents%\" SET (ttl_expire_after = '1 day', ttl_hide_expired = 'view')")
        assert len(h.rows(f'SELECT * FROM {q}."Ev""ents%_live"')) == 1
    assert len(h.db.policies()) == 2


@pytest.mark.parametrize(
    ("prepare", "table"),
    [
        ("CREATE VIEW seen AS SELECT 1 AS id, now() AS ts", "seen"),
        ("CREATE MATERIALIZED VIEW seen AS SELECT 1 AS id, now() AS ts", "seen"),
        ("SELECT 1", "pg_catalog.pg_class"),
        ("CREATE TEMPORARY TABLE seen (id INTEGER, ts TIMESTAMPTZ)", "seen"),
    ],
)
def test_what_is_no_table_is_refused(h: Harness, prepare: str, table: str) -> None:
    with pytest.raises(Refused, match="TTL works on"):
        h.sql(f"{prepare}; ALTER TABLE {table} SET (ttl_expire_after = '1 day')")


def test_an_expression_that_the_server_cannot_compute_changes_nothing(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ, name TEXT)")
    for expression in ("id", "ts + name", "if(id, ts, NULL)", "coalesce(id, ts)"):
        with pytest.raises(LapseError):
            h.sql(f"ALTER TABLE events SET (ttl_expiration_expression = '{expression}')")
    with pytest.raises(PolicyConflict):
        h.sql("ALTER TABLE events SET (ttl_pause = 'on')")


def test_ids_are_never_taken_for_times(h: Harness) -> None:
    h.sql("CREATE TABLE events (id BIGINT) TTL = id + INTERVAL 1 DAY; INSERT INTO events VALUES (1), (99999999)")
    assert h.run_one().counts.deleted == 0
    h.sql("ALTER TABLE events SET (ttl_time_format = 'unix')")
    assert h.run_one().counts.deleted == 0
    h.sql("INSERT INTO events VALUES (100000000)")
    assert h.run_one().counts.deleted == 1


def test_an_expression_on_data_that_raises_fails_the_job_and_deletes_nothing(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ, n INTEGER)"
        " WITH (ttl_expiration_expression = 'if(10 / n > 1, ts, NULL)')"
    )
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)}, 1), (2, {h.at(days=-2)}, 0)")
    result = h.run()
    assert result.failed
    assert [skip.blocked for skip in result.skipped] == [BlockCode.BAD_DATA]
    assert "division by zero" in result.skipped[0].reason
    assert h.ids() == [1, 2]


def test_the_references_statements_with_other_spellings(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id UUID DEFAULT gen_random_uuid() PRIMARY KEY, ts TIMESTAMPTZ) WITH ("
        "ttl_expiration_expression = 'if(ts < current_timestamp() - ''5 minutes''::interval, ts, NULL)',"
        " ttl_job_cron = '@daily', fillfactor = 70)"
    )
    h.sql(f"INSERT INTO events (ts) VALUES ({h.at(minutes=-6)}), ({h.at(minutes=-4)})")
    assert h.run_one().status is JobStatus.FINISHED
    assert h.rows("SELECT reloptions FROM pg_catalog.pg_class WHERE oid = 'events'::regclass") == [(["fillfactor=70"],)]
    assert h.rows("SELECT count(*) FROM events") == [(1,)]
