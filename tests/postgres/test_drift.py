"""What happens behind Lapse's back: changed tables, restored databases."""

from __future__ import annotations

import json

import psycopg
import pytest

from lapse.catalog import meta
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, NullListener
from lapse.runner.place import PlaceGuard
from tests.conformance.harness import Harness


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE events DROP COLUMN ts",
        "ALTER TABLE events RENAME ts TO other",
        "ALTER TABLE events ALTER ts TYPE text",
        "DROP TABLE events",
    ],
)
def test_a_change_during_the_run_stops_the_job(h: Harness, change: str) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10)")
    h.sql(f"INSERT INTO events SELECT n, {h.at(days=-2)} FROM generate_series(1, 100) n")

    class Change(NullListener):
        done = False

        def batch_done(self, event: BatchDone) -> None:
            if not self.done:
                self.done = True
                with psycopg.connect(h.url, autocommit=True) as other:
                    other.execute(change)

    (job,) = h.db.run("events", listener=Change()).jobs
    assert job.status is JobStatus.FAILED
    assert job.reason
    assert job.counts.deleted == 10


def test_a_table_made_again_is_blocked_until_it_is_resumed(h: Harness, client: psycopg.Connection) -> None:
    h.events()
    client.execute("DROP TABLE events; CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ)")
    client.execute(f"INSERT INTO events VALUES (1, {h.at(days=-2)}), (2, {h.at()})")
    assert any("replaced" in finding.text for finding in h.db.doctor())
    result = h.db.run("events")
    assert result.failed
    assert result.skipped[0].blocked is BlockCode.TABLE_REPLACED
    assert h.ids() == [1, 2]
    h.db.resume("events")
    h.run()
    assert h.ids() == [2]


ELSEWHERE = json.dumps({"incarnation": "another server", "endpoints": ["another/way/to/it"]})


def _copied(h: Harness) -> None:
    """The catalog says that it was last seen elsewhere."""
    with h.db.catalog.writing() as connection:
        here = meta.read_fact(connection, meta.PLACE)
        assert here is not None
        assert meta.replace_fact(connection, meta.PLACE, here, ELSEWHERE)


def test_workers_that_find_a_copy_at_the_same_moment_disarm_it_once(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    h.events()
    h.run()
    _copied(h)
    first, second = PlaceGuard(h.db.catalog), PlaceGuard(h.db.catalog)
    assert first.run_once()
    monkeypatch.setattr(meta, "read_fact", lambda *_: ELSEWHERE)
    assert not second.run_once()


def test_workers_that_write_the_place_at_the_same_moment(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.events()
    h.run()
    read = meta.read_fact
    looks = iter([None])
    monkeypatch.setattr(meta, "read_fact", lambda *wanted: next(looks, read(*wanted)))
    assert not PlaceGuard(h.db.catalog).run_once()
    assert next(looks, "none left") == "none left"
    (status,) = h.db.status()
    assert status.state != "blocked"


def test_a_copy_of_the_database_is_disarmed_until_it_is_resumed(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    assert h.run_one().counts.deleted == 1
    _copied(h)
    h.insert((2, h.at(days=-2)))
    result = h.db.run("events")
    assert result.deleted == 0
    assert result.skipped[0].blocked is BlockCode.DATABASE_COPIED
    (status,) = h.db.status()
    assert status.state == "blocked"
    assert "lapse resume" in (status.reason or "")
    assert any("copy" in finding.text for finding in h.db.doctor())
    h.db.resume("events")
    assert h.db.run("events").deleted == 1
    assert not [finding for finding in h.db.doctor() if finding.level == "problem"]


def test_repairing_does_not_arm_a_copy(h: Harness) -> None:
    h.events()
    h.run()
    _copied(h)
    h.run()
    assert any("lapse resume" in (finding.fix or "") for finding in h.db.doctor(repair=True))
    h.insert((2, h.at(days=-2)))
    assert h.db.run("events").deleted == 0


def test_a_database_made_from_a_template_is_a_copy(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    h.db.engine.close()
    name = h.url.rpartition("/")[2]
    with psycopg.connect(h.url.replace(name, "postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE copied TEMPLATE {name}")
    try:
        from lapse.app import Lapse

        with Lapse(h.url.replace(name, "copied"), clock=h.clock) as copied:
            assert copied.run("events").skipped[0].blocked is BlockCode.DATABASE_COPIED
            assert copied.execute("SELECT id FROM events").rows == ((1,),)
    finally:
        with psycopg.connect(h.url.replace(name, "postgres"), autocommit=True) as admin:
            admin.execute("DROP DATABASE copied WITH (FORCE)")


def test_doctor_repairs_a_dropped_trigger(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER) WITH (ttl_expire_after = '1 day')")
    h.sql("DROP TRIGGER lapse_ttl_update ON events; ALTER TABLE events ALTER crdb_internal_expiration DROP DEFAULT")
    (finding,) = [finding for finding in h.db.doctor(repair=True) if finding.level == "problem"]
    assert "trigger lapse_ttl_update" in finding.text
    assert "default" in finding.text
    assert not [finding for finding in h.db.doctor() if finding.level == "problem"]
    h.sql("ALTER TABLE events DISABLE TRIGGER lapse_ttl_update")
    assert any("trigger" in finding.text for finding in h.db.doctor())


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE events ALTER COLUMN crdb_internal_expiration SET DEFAULT '2020-01-01'",
        "ALTER TABLE events DISABLE TRIGGER lapse_ttl_update",
        "DROP TRIGGER lapse_ttl_update ON events; CREATE TRIGGER lapse_ttl_update BEFORE UPDATE ON events FOR EACH ROW"
        " WHEN (false) EXECUTE FUNCTION lapse_ttl.stamp_expiration('86400 seconds')",
    ],
)
def test_a_managed_column_that_is_stamped_in_another_way_blocks(
    h: Harness, client: psycopg.Connection, change: str
) -> None:
    """Rows would be born expired, or not be renewed; between jobs and in the middle of one."""
    h.sql("CREATE TABLE events (id INTEGER) WITH (ttl_expire_after = '1 day', ttl_delete_batch_size = 10)")
    old = "INSERT INTO events SELECT n, '2026-01-01' FROM generate_series(1, 30) n"
    client.execute(old)

    class Change(NullListener):
        done = False

        def batch_done(self, event: BatchDone) -> None:
            if not self.done:
                self.done = True
                client.execute(change)

    (job,) = h.db.run("events", listener=Change()).jobs
    assert (job.status, job.counts.deleted) == (JobStatus.FAILED, 10)
    h.advance(hours=2)
    result = h.db.run("events")
    assert [skip.blocked for skip in result.skipped] == [BlockCode.PARTS_MISSING]
    assert h.rows("SELECT count(*) FROM events") == [(20,)]
    h.db.doctor(repair=True)
    h.advance(hours=2)
    assert h.db.run("events").deleted == 20
    assert "crdb_internal_expiration < (now() + '24:00:00'" in str(
        h.rows("SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'lapse_ttl_update'")
    )


@pytest.mark.parametrize(
    "duration",
    ["100 years 1 second", "1 year 2 days 03:04:05.678", "3 months', ttl_renew_every = '1 hour"],
)
def test_doctor_knows_its_own_triggers_and_no_other(each: Harness, client: psycopg.Connection, duration: str) -> None:
    """By what they are called for, too, in whatever way the session's settings have the server write it."""
    each.sql(
        f"CREATE TABLE events (id INTEGER, at DATE) PARTITION BY RANGE (at) WITH (ttl_expire_after = '{duration}')"
    )
    each.sql("CREATE TABLE one PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')")

    def said() -> list[str]:
        return [finding.text for finding in each.db.doctor() if finding.level == "problem"]

    assert said() == []
    definition = str(
        each.rows(
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'lapse_ttl_update'"
            " AND tgrelid = 'events'::regclass"
        )[0][0]
    )
    with psycopg.connect(each.url, autocommit=True) as owner:
        for changed in ("<= ", "> "):
            owner.execute("DROP TRIGGER lapse_ttl_update ON events")
            owner.execute(definition.replace("< ", changed).encode())
            assert "trigger lapse_ttl_update" in "".join(said())
        owner.execute("DROP TRIGGER lapse_ttl_update ON events")
        owner.execute(definition.encode())
        assert said() == [] or "batch function" in said()[0]


def test_a_column_made_again_under_its_name_waits_for_a_person_whatever_is_repaired(each: Harness) -> None:
    each.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")
    each.insert((1, each.at(days=2)))
    with each.client() as connection:
        connection.exec_driver_sql("ALTER TABLE events DROP COLUMN ts")
        connection.exec_driver_sql("ALTER TABLE events ADD COLUMN ts TIMESTAMPTZ DEFAULT '2019-01-01'")
    assert "(column 2) became ts timestamp with time zone (column 3)" in str(each.run_one().reason)
    each.owner.doctor(repair=True)
    assert each.run_one().status is JobStatus.FAILED
    assert each.ids() == [1]
    each.owner.resume("events")
    each.run_one()
    assert each.ids() == []


def test_a_managed_column_that_was_repaired_needs_no_person(each: Harness) -> None:
    each.sql("CREATE TABLE events (id BIGINT PRIMARY KEY) WITH (ttl_expire_after = '1 day')")
    each.sql("INSERT INTO events VALUES (1)")
    with each.client() as connection:
        connection.exec_driver_sql("ALTER TABLE events DROP COLUMN crdb_internal_expiration CASCADE")
    assert each.run_one().status is JobStatus.FAILED
    each.owner.doctor(repair=True)
    assert each.run_one().status is JobStatus.FINISHED
    assert each.ids() == [1]
