"""`ttl_partition_drop`: a leaf is detached and dropped without anybody having to wait, whatever happens in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import event

from lapse.app import Lapse
from lapse.engines.postgres import dropping
from lapse.engines.postgres.names import LEAVING_MARK
from lapse.errors import LapseError
from lapse.model.job import JobStatus, PathKind
from lapse.model.statement import JobAction
from tests.conformance.harness import Harness
from tests.safety.crash import Died

TTL = "WITH (ttl_expiration_expression = 'ts + INTERVAL ''14 days''', ttl_partition_drop = 'on')"
DEATHS = 13
"""There are fewer statements from the mark to the end of the drop."""
PENDING = "EXISTS (SELECT 1 FROM pg_inherits WHERE inhdetachpending)"
SLOW_SECONDS = 1.0
"""Longer than any statement of a client takes that has not to wait for somebody."""


def create(h: Harness, columns: str = "") -> None:
    """The whole of p1 and p2 has expired; in p3 one row has, and one has not."""
    h.sql(f"CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ NOT NULL{columns}) PARTITION BY RANGE (ts) {TTL}")
    h.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01')")
    h.sql("CREATE TABLE p2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')")
    h.sql("CREATE TABLE p3 PARTITION OF events FOR VALUES FROM ('2026-03-01') TO (MAXVALUE)")
    h.sql("COMMENT ON TABLE p1 IS 'January'")
    h.sql(
        "INSERT INTO events VALUES (1, '2026-01-10'), (2, '2026-02-10'), (3, '2026-02-28'), (4, '2026-03-01'),"
        " (5, '2026-03-10')"
    )


def tables(h: Harness) -> list[str]:
    return [row[0] for row in h.rows("SELECT relname::text FROM pg_class WHERE relname ~ '^p[0-9]$' ORDER BY 1")]


def comment(h: Harness, table: str) -> str | None:
    found: str | None = h.rows(f"SELECT obj_description('{table}'::regclass)")[0][0]
    return found


@contextmanager
def running(action: Callable[[], object]) -> Iterator[list[LapseError]]:
    """Something at work in another thread, and the errors it ended with."""
    errors: list[LapseError] = []

    def run() -> None:
        try:
            action()
        except LapseError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    finally:
        thread.join()


def wait_for(h: Harness, condition: str) -> None:
    deadline = time.monotonic() + 20
    while not h.rows(f"SELECT {condition}")[0][0]:
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def slowest_s(action: Callable[[int], object], numbers: range) -> float:
    """How long a client had to wait for the slowest of its actions."""
    slowest = 0.0
    for number in numbers:
        started = time.monotonic()
        action(number)
        slowest = max(slowest, time.monotonic() - started)
    return slowest


def run_and_die(h: Harness, first: str, survives: int = 0) -> bool:
    """Run as a process that dies so many statements after one that begins like `first`; False if it got to the end."""
    doomed = h.open()
    left = [survives]
    reached = threading.Event()

    def count(connection: object, cursor: object, statement: str, *_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if statement.startswith(first):
            reached.set()
        if reached.is_set():
            left[0] -= 1
        if left[0] < 0:
            raise Died

    event.listen(doomed.engine.database, "before_cursor_execute", count)
    h.sql("SET GLOBAL tidb_ttl_scan_worker_count = 1")
    try:
        doomed.run("events")
    except Died:
        return True
    finally:
        doomed.engine.database.dispose()
    return False


def die_detached(h: Harness) -> None:
    """Leave p1 detached and not dropped."""
    assert run_and_die(h, "DROP TABLE")
    assert h.rows("SELECT relispartition FROM pg_class WHERE relname = 'p1'") == [(False,)]


def test_nobody_waits_while_a_reader_holds_the_table_open(each: Harness) -> None:
    create(each)
    each.sql("SET GLOBAL tidb_ttl_scan_worker_count = 4")
    reader = psycopg.connect(each.url)
    client = psycopg.connect(each.url, autocommit=True)
    assert reader.execute("SELECT count(*) FROM events").fetchone() == (5,)

    def work(number: int) -> None:
        client.execute("INSERT INTO events VALUES (%s, '2026-03-14')", (number,))
        client.execute("SELECT count(*) FROM events")
        client.execute("UPDATE events SET id = id WHERE id = 5")

    with running(lambda: each.run()) as errors:
        wait_for(each, PENDING)
        slowest = slowest_s(work, range(10, 20))
        assert each.rows(f"SELECT {PENDING}") == [(True,)]
        # The reader's own query goes on as if nothing had happened.
        assert reader.execute("SELECT id FROM events WHERE id = 5").fetchone() == (5,)
        reader.close()
    client.close()
    assert not errors
    assert slowest < SLOW_SECONDS
    assert tables(each) == ["p3"]
    assert each.ids() == [5, *range(10, 20)]
    assert sum(job.counts.deleted for job in each.db.history()) == 4


def test_a_reader_that_stays_for_long(each: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is given up; the partition is gone for new queries all the same, and finalized as soon as possible."""
    monkeypatch.setattr(dropping, "DETACH_SECONDS", 0.2)
    create(each)
    with psycopg.connect(each.url) as reader:
        reader.execute("SELECT * FROM events")
        timer = threading.Timer(1.5, reader.close)
        timer.start()
        assert each.run().complete
        timer.join()
    assert tables(each) == ["p3"]
    assert each.ids() == [5]


def test_a_worker_that_dies_between_any_two_statements(h: Harness) -> None:
    create(h)
    for survived in range(DEATHS):
        assert run_and_die(h, "COMMENT ON TABLE", survived)
        assert h.rows("SELECT id FROM events WHERE id > 4") == [(5,)]
        h.advance(minutes=5)
        assert h.run().complete
        assert tables(h) == ["p3"]
        h.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01')")
        h.sql("INSERT INTO events VALUES (1, '2026-01-10')")
        deleted = sum(job.counts.deleted for job in h.db.history(limit=1000))
        assert deleted == 4 + survived


def test_what_a_dead_worker_has_detached_is_dropped_by_whoever_takes_over(each: Harness) -> None:
    create(each)
    die_detached(each)
    assert (comment(each, "p1") or "").startswith(f"January\n{LEAVING_MARK}")
    each.advance(minutes=5)
    assert each.run().complete
    assert tables(each) == ["p3"]
    assert sum(job.counts.deleted for job in each.db.history()) == 4


def test_or_by_the_next_job_if_that_one_was_cancelled(h: Harness) -> None:
    create(h)
    die_detached(h)
    h.advance(minutes=5)
    for job in h.db.jobs():
        h.db.control(job.id, JobAction.CANCEL)
    job = next(job for job in h.run().jobs if job.table.partition == "p1")
    assert "detached by an earlier job" in (job.path.evidence or "")
    assert (job.path.kind, job.status, job.counts.deleted) == (PathKind.PARTITION, JobStatus.FINISHED, 1)
    assert tables(h) == ["p3"]


def test_a_longer_ttl_brings_a_detached_partition_back(each: Harness) -> None:
    create(each)
    die_detached(each)
    each.advance(minutes=5)
    for job in each.db.jobs():
        each.db.control(job.id, JobAction.CANCEL)
    each.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 year''')")
    jobs = {job.table.partition: job for job in each.run().jobs}
    assert (jobs["p1"].counts.deleted, jobs["p1"].counts.held) == (0, 1)
    assert each.ids() == [1, 2, 3, 4, 5]
    assert comment(each, "p1") == "January"


def test_a_mark_that_is_not_true_any_more_is_wiped_off(h: Harness) -> None:
    create(h)
    mark = LEAVING_MARK + '{"parent": "events", "bound": "FOR VALUES FROM (MINVALUE) TO (0)"}'
    h.sql(f"COMMENT ON TABLE p1 IS 'January\n{mark}'")
    h.sql("ALTER TABLE events SET (ttl_partition_drop = 'off')")
    h.run()
    assert comment(h, "p1") == "January"
    assert tables(h) == ["p1", "p2", "p3"]


def test_a_partition_that_somebody_else_detached_is_theirs(h: Harness) -> None:
    create(h)
    h.sql("ALTER TABLE events DETACH PARTITION p1")
    h.run()
    assert tables(h) == ["p1", "p3"]


def test_nor_is_one_dropped_that_somebody_else_is_detaching(each: Harness) -> None:
    create(each)
    reader = psycopg.connect(each.url)
    reader.execute("SELECT * FROM events")
    with psycopg.connect(each.url, autocommit=True) as other:
        other.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            other.execute("ALTER TABLE events DETACH PARTITION p1 CONCURRENTLY")
    finalize = threading.Timer(1.0, lambda: each.sql("ALTER TABLE events DETACH PARTITION p1 FINALIZE"))
    finalize.start()
    reader.close()
    jobs = {job.table.partition: job for job in each.run().jobs}
    finalize.join()
    assert jobs["p2"].status is JobStatus.FINISHED
    assert tables(each) == ["p1", "p3"]
    assert comment(each, "p1") == "January"


def test_a_partition_that_a_view_needs_stays(each: Harness) -> None:
    create(each)
    each.sql("CREATE VIEW january AS SELECT * FROM p1")
    jobs = {job.table.partition: job for job in each.run().jobs}
    assert (jobs["p1"].status, jobs["p1"].counts.held) == (JobStatus.FINISHED, 1)
    assert each.ids() == [1, 5]
    assert comment(each, "p1") == "January"


def test_a_table_that_partitions_refer_to_is_not_locked_for_long(each: Harness) -> None:
    each.sql("CREATE TABLE kinds (kind INTEGER PRIMARY KEY); INSERT INTO kinds VALUES (1)")
    create(each, ", kind INTEGER DEFAULT 1 REFERENCES kinds")
    client = psycopg.connect(each.url, autocommit=True)

    def work(number: int) -> None:
        client.execute("INSERT INTO kinds VALUES (%s)", (number,))
        client.execute("SELECT pg_sleep(0.02)")

    with psycopg.connect(each.url) as writer:
        writer.execute("INSERT INTO kinds VALUES (2)")
        with running(lambda: each.run()) as errors:
            wait_for(each, PENDING)
            slowest = slowest_s(work, range(3, 30))
            writer.commit()
    client.close()
    assert not errors
    assert slowest < SLOW_SECONDS
    assert tables(each) == ["p3"]


def test_beside_a_default_partition_it_is_one_transaction(each: Harness) -> None:
    create(each)
    each.sql("ALTER TABLE events DETACH PARTITION p3; ALTER TABLE events ATTACH PARTITION p3 DEFAULT")
    seen: list[str] = []
    database = each.db.engine.database
    event.listen(database, "before_cursor_execute", lambda c, cursor, statement, *_: seen.append(statement))
    each.run()
    assert not [statement for statement in seen if "DETACH" in statement]
    assert tables(each) == ["p3"]
    assert each.ids() == [5]


def test_a_worker_needs_to_act_for_the_owner(h: Harness) -> None:
    create(h)
    h.sql("DO $$ BEGIN CREATE ROLE dropper LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    h.sql(
        "GRANT USAGE ON SCHEMA lapse TO dropper; GRANT SELECT, UPDATE, DELETE ON p1, p2, p3 TO dropper;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lapse TO dropper"
    )
    with Lapse(h.url.replace("postgres@", "dropper@"), clock=h.clock) as worker:
        fixes = [finding.fix for finding in worker.doctor() if finding.level == "problem"]
    assert 'GRANT "postgres" TO "dropper";' in fixes
    h.sql("DROP OWNED BY dropper; DROP ROLE dropper")
