"""`ttl_hide_expired`: out of sight before they are gone."""

from __future__ import annotations

import psycopg
import pytest

from lapse.errors import PolicyConflict, Unsupported
from tests.conformance.harness import Harness

ROWS = "INSERT INTO events VALUES (1, now() - interval '2 days'), (2, now()), (3, NULL)"


def role(h: Harness, name: str, grants: str = "SELECT, INSERT, UPDATE, DELETE") -> str:
    h.sql(
        f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        f"GRANT {grants} ON ALL TABLES IN SCHEMA public TO {name}"
    )
    return h.url.replace("postgres@", f"{name}@")


def test_the_view_shows_live_rows_only(each: Harness) -> None:
    each.events()
    each.sql("ALTER TABLE events SET (ttl_hide_expired = 'view')")
    each.sql(ROWS)
    assert each.ids("events_live") == [2, 3]
    each.sql("ALTER TABLE events RENAME TO facts")
    assert each.ids("facts_live") == [2, 3]
    assert each.rows("SELECT to_regclass('events_live')") == [(None,)]
    each.sql("ALTER TABLE facts SET (ttl_hide_expired = 'off')")
    assert each.rows("SELECT to_regclass('facts_live')") == [(None,)]


def test_a_view_whose_name_would_be_cut_is_refused(h: Harness) -> None:
    name = "n" * 60
    h.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY, ts timestamptz)")
    with pytest.raises(Unsupported, match="longer than 63 bytes"):
        h.sql(f"ALTER TABLE {name} SET (ttl_expiration_expression = 'ts', ttl_hide_expired = 'view')")


def test_somebody_elses_view_is_left_alone(h: Harness) -> None:
    h.events()
    h.sql("CREATE VIEW events_live AS SELECT 1 AS id")
    with pytest.raises(PolicyConflict, match="already a relation"):
        h.sql("ALTER TABLE events SET (ttl_hide_expired = 'view')")
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.ids("events_live") == [1]


@pytest.mark.parametrize("managed", [False, True])
def test_the_table_itself_hides_expired_rows(each: Harness, managed: bool) -> None:
    each.events(ttl="WITH (ttl_expire_after = '1 day')" if managed else "TTL = ts + INTERVAL 1 DAY")
    each.sql("ALTER TABLE events SET (ttl_hide_expired = 'policy')")
    each.sql("INSERT INTO events (id, ts) VALUES (1, now() - interval '2 days'), (2, now()), (3, NULL)")
    if managed:
        each.sql("UPDATE events SET crdb_internal_expiration = now() - interval '1 day' WHERE id = 1")
    with psycopg.connect(role(each, "reader"), autocommit=True) as reader:
        assert reader.execute("SELECT id FROM events ORDER BY id").fetchall() == [(2,), (3,)]
        assert reader.execute("UPDATE events SET ts = now() WHERE id = 1").rowcount == 0
        reader.execute("INSERT INTO events (id, ts) VALUES (4, now())")
        reader.execute("SET lapse.see_expired = 'on'")
        assert len(reader.execute("SELECT id FROM events").fetchall()) == 4
    assert each.db.doctor()[0].level != "problem"
    each.sql("ALTER TABLE events RESET (ttl)")
    with psycopg.connect(role(each, "reader"), autocommit=True) as reader:
        assert len(reader.execute("SELECT id FROM events").fetchall()) == 4


def test_other_row_security_policies_go_on_working(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON events USING (id <> 2)")
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'policy')")
    h.sql(ROWS)
    with psycopg.connect(role(h, "reader"), autocommit=True) as reader:
        assert reader.execute("SELECT id FROM events ORDER BY id").fetchall() == [(3,)]
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'off')")
    with psycopg.connect(role(h, "reader"), autocommit=True) as reader:
        assert reader.execute("SELECT id FROM events ORDER BY id").fetchall() == [(1,), (3,)]


def test_doctor_notices_a_missing_policy(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'policy')")
    h.sql("DROP POLICY lapse_hide_expired ON events")
    assert any("lapse_hide_expired" in finding.text for finding in h.db.doctor(repair=True))
    assert not [finding for finding in h.db.doctor() if finding.level == "problem"]


def test_policies_added_later_are_not_voided(each: Harness) -> None:
    each.events(extra=", tenant text")
    each.sql("ALTER TABLE events SET (ttl_hide_expired = 'policy')")
    each.sql("INSERT INTO events VALUES (1, now() - interval '2 days', 'a'), (2, now(), 'a'), (3, now(), 'b')")
    url = role(each, "tenant_a")
    with psycopg.connect(url, autocommit=True) as tenant:
        tenant.execute("PREPARE mine AS SELECT id FROM events ORDER BY id")
        assert tenant.execute("EXECUTE mine").fetchall() == [(2,), (3,)]
        each.sql("CREATE POLICY tenants ON events USING (tenant = 'a')")
        assert tenant.execute("EXECUTE mine").fetchall() == [(2,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            tenant.execute("INSERT INTO events VALUES (4, now(), 'b')")
        assert tenant.execute("UPDATE events SET tenant = 'a' WHERE id = 3").rowcount == 0
        assert not [finding for finding in each.db.doctor() if finding.level == "problem"]
        each.sql("DROP POLICY tenants ON events; CREATE POLICY tenants ON events AS RESTRICTIVE USING (tenant = 'b')")
        assert tenant.execute("EXECUTE mine").fetchall() == [(3,)]
    each.sql("ALTER TABLE events RESET (ttl)")
    assert each.ids() == [1, 2, 3]


def test_a_policy_of_an_older_version_that_allows_everything_is_replaced(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'policy')")
    h.sql("ALTER POLICY lapse_allow_all ON events USING (true)")
    assert any("lapse_allow_all" in finding.text for finding in h.db.doctor(repair=True))
    assert not any("lapse_allow_all" in finding.text for finding in h.db.doctor())
