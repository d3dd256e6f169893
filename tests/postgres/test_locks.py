"""Locks and failures of single statements: skipped, tried again, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from lapse.engines.postgres import locks
from lapse.errors import Blocked, Retryable
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness

RAISE_ONCE = """
    CREATE SEQUENCE attempts;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('attempts') <= {times} THEN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{code}'; END IF;
        RETURN OLD; END $$;
    CREATE TRIGGER fail BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION fail();
"""


def fill(h: Harness, count: int) -> None:
    h.events()
    h.sql(f"INSERT INTO events SELECT n, {h.at(days=-2)} FROM generate_series(1, {count}) n")


def test_locked_rows_are_skipped_and_counted(h: Harness) -> None:
    fill(h, 1000)
    with psycopg.connect(h.url) as other:
        other.execute("SELECT * FROM events WHERE id IN (3, 500) FOR UPDATE")
        started = time.monotonic()
        job = h.run_one()
        assert time.monotonic() - started < 5
        assert (job.status, job.counts.deleted, job.counts.skipped) == (JobStatus.INCOMPLETE, 998, 2)
        assert h.ids() == [3, 500]
    assert h.run_one().counts.deleted == 2


def test_rows_unlocked_during_the_run_go_in_the_second_sweep(h: Harness) -> None:
    fill(h, 1000)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 50)")
    with psycopg.connect(h.url) as other:
        other.execute("SELECT * FROM events WHERE id = 3 FOR UPDATE")

        from lapse.runner.events import BatchDone, NullListener

        class Unlock(NullListener):
            def batch_done(self, event: BatchDone) -> None:
                other.rollback()

        job = h.db.run("events", listener=Unlock()).jobs[0]
    assert (job.counts.deleted, job.counts.skipped) == (1000, 0)


def test_the_index_path_passes_locked_rows_too(h: Harness) -> None:
    fill(h, 300)
    h.sql("CREATE INDEX events_ts ON events (ts); ANALYZE events")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 7)")
    with psycopg.connect(h.url) as other:
        other.execute("SELECT * FROM events WHERE id IN (1, 7, 8, 300) FOR UPDATE")
        job = h.run_one()
    assert job.path.index == "events_ts"
    assert (job.counts.deleted, job.counts.skipped) == (296, 4)
    assert h.ids() == [1, 7, 8, 300]


def test_a_row_renewed_under_lock_survives(h: Harness) -> None:
    fill(h, 10)
    other = psycopg.connect(h.url)
    other.execute("SET TIME ZONE 'UTC'")
    other.execute(f"UPDATE events SET ts = {h.at()} WHERE id = 5")
    threading.Timer(0.005, other.commit).start()
    h.run()
    assert h.ids() == [5]
    other.close()


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_errors_that_pass_are_tried_again(h: Harness, code: str) -> None:
    fill(h, 100)
    h.sql(RAISE_ONCE.format(code=code, times=3))
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.counts.errors) == (JobStatus.FINISHED, 100, 0)


@pytest.mark.parametrize("code", ["P0001", "23514"])
def test_a_row_that_a_trigger_defends_is_held_alone(h: Harness, code: str) -> None:
    fill(h, 100)
    h.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF OLD.id = 42 THEN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{code}'; END IF; RETURN OLD; END $$;"
        "CREATE TRIGGER fail BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION fail();"
    )
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 99, 1)
    assert h.ids() == [42]


def test_a_trigger_that_keeps_rows_does_not_stop_the_job(h: Harness) -> None:
    fill(h, 100)
    h.sql(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF OLD.id = 42 THEN RETURN NULL; END IF; RETURN OLD; END $$;"
        "CREATE TRIGGER keep BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION keep();"
    )
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 99)


def test_a_statement_that_takes_too_long_is_made_smaller(h: Harness) -> None:
    fill(h, 60)
    h.sql("SET GLOBAL lapse_statement_timeout = '100 milliseconds'")
    h.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.004); RETURN OLD; END $$;"
        "CREATE TRIGGER slow BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION slow();"
    )
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 60)
    assert job.counts.batches >= 3


def test_a_cascade_into_a_locked_row_skips_its_parent(h: Harness) -> None:
    fill(h, 20)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 4)")
    h.sql("CREATE TABLE child (parent BIGINT REFERENCES events (id) ON DELETE CASCADE)")
    h.sql("CREATE INDEX ON child (parent); INSERT INTO child SELECT id FROM events")
    with psycopg.connect(h.url) as other:
        other.execute("SELECT * FROM child WHERE parent = 7 FOR UPDATE")
        job = h.run_one()
    assert (job.counts.deleted, job.counts.skipped) == (19, 1)
    assert h.ids() == [7]


def test_a_locked_table_is_given_up_soon(h: Harness) -> None:
    fill(h, 10)
    with psycopg.connect(h.url) as other:
        other.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        release = threading.Timer(0.8, other.rollback)
        release.start()
        job = h.run_one()
        release.join()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 10)


def test_declaring_never_queues_in_front_of_traffic(h: Harness, client: psycopg.Connection) -> None:
    """While the ALTER TABLE waits for a long reader, other readers must get through."""
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY)")
    reader = psycopg.connect(h.url)
    reader.execute("SELECT * FROM events")
    errors: list[Exception] = []

    def declare() -> None:
        try:
            h.sql("ALTER TABLE events SET (ttl_expire_after = '1 day')")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=declare)
    thread.start()
    took = []
    for _ in range(20):
        started = time.monotonic()
        client.execute("SELECT count(*) FROM events")
        took.append(time.monotonic() - started)
        time.sleep(0.03)
    reader.close()
    thread.join()
    assert not errors
    assert max(took) < 0.6
    assert "crdb_internal_expiration" in h.db.execute("SELECT * FROM events").columns


def test_a_table_that_stays_locked_is_left_alone(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TRIES", ((0.02, 0.01),) * 3)
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY)")
    with psycopg.connect(h.url) as reader:
        reader.execute("SELECT * FROM events")
        with pytest.raises(Retryable, match="stayed locked"):
            h.sql("ALTER TABLE events SET (ttl_expire_after = '1 day')")
    assert h.db.execute("SELECT * FROM events").columns == ("id",)


def test_the_managed_column_rewrites_nothing(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER); INSERT INTO events SELECT generate_series(1, 1000)")
    node = h.rows("SELECT relfilenode FROM pg_catalog.pg_class WHERE relname = 'events'")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '3 months 1 day')")
    assert h.rows("SELECT relfilenode FROM pg_catalog.pg_class WHERE relname = 'events'") == node
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.rows("SELECT relfilenode FROM pg_catalog.pg_class WHERE relname = 'events'") == node


@contextmanager
def locked(h: Harness, table: str) -> Iterator[None]:
    """As by a migration that does not end."""
    with psycopg.connect(h.url) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
        other.rollback()


def test_one_locked_table_does_not_keep_others_waiting(each: Harness) -> None:
    fill(each, 10)
    each.sql("CREATE INDEX ON events (ts)")
    each.sql("CREATE TABLE notes (id INTEGER, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")
    each.sql(f"INSERT INTO notes VALUES (1, {each.at(days=-2)})")
    each.sql("CREATE TABLE parts (id INTEGER, ts TIMESTAMPTZ) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 DAY")
    each.sql("CREATE TABLE part PARTITION OF parts DEFAULT")
    with locked(each, "events"), locked(each, "part"):
        started = time.monotonic()
        result = each.run(None)
        assert time.monotonic() - started < 15
        assert each.ids("notes") == []
        blocked = {skip.table.name: skip.blocked for skip in result.skipped}
        assert blocked == {"events": BlockCode.LOCKED, "parts": BlockCode.LOCKED}
    each.advance(minutes=1)
    each.run()
    assert each.ids() == []


def test_looking_at_a_locked_table_ends_soon(each: Harness) -> None:
    fill(each, 10)
    each.sql("CREATE INDEX ON events (ts)")
    with locked(each, "events"):
        for look in (lambda: each.db.preview("events"), lambda: each.db.doctor(), lambda: each.db.status()):
            started = time.monotonic()
            with suppress(Blocked):
                look()
            assert time.monotonic() - started < 5
        (found,) = (finding for finding in each.db.doctor() if finding.subject == "public.events")
        assert "locked" in found.text


def test_a_worker_asks_for_the_lock_of_a_commented_table_once(h: Harness, client: psycopg.Connection) -> None:
    """Its transaction is not kept open, and the tables that come after are not kept waiting."""
    fill(h, 10)
    client.execute("CREATE TABLE notes (id INTEGER)")
    client.execute("COMMENT ON TABLE notes IS 'ttl_expire_after = ''1 day'''")
    with psycopg.connect(h.url) as reader:
        reader.execute("SELECT * FROM notes")
        started = time.monotonic()
        h.run(None)
        assert time.monotonic() - started < 5
    assert h.ids() == []
