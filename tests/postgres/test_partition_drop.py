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
from lapse.engines.postgres import partition_drop
from lapse.engines.postgres.names import CATALOG_SCHEMA
from lapse.errors import LapseError
from lapse.model.job import JobStatus, PathKind
from lapse.model.statement import JobAction
from lapse.runner import atonce
from tests.conformance.harness import Harness, grant_what_doctor_prints
from tests.safety.crash import Died

TTL = "WITH (ttl_expiration_expression = 'ts + INTERVAL ''14 days''', ttl_partition_drop = 'on')"
LEAVING = f"{CATALOG_SCHEMA}.lapse_leaving"
BEGINS = f"INSERT INTO {LEAVING}"
"""The statement with which a partition begins to leave."""
DEATHS = (*range(12), *range(12, 30, 2))
"""How many more statements a worker survives; there are about as many from there to the end of the drop."""
OLD_MARK = "Lapse detaches this partition to drop it: "
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


def leaving(h: Harness) -> list[tuple[object, ...]]:
    return h.rows(f"SELECT schema_name, relation_name, relation_id, bound FROM {LEAVING} ORDER BY 2")


def comment(h: Harness, table: str) -> str | None:
    found: str | None = h.rows(f"SELECT obj_description('{table}'::regclass)")[0][0]
    return found


@pytest.fixture(autouse=True)
def _ordinarily(monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition is done with its job's first batch, before others are dropped."""
    for most in ("SMALL_ROWS", "TABLE_ROWS"):
        monkeypatch.setattr(atonce, most, 0)


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
        if statement.lstrip().startswith(first):
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
    monkeypatch.setattr(partition_drop, "DETACH_SECONDS", 0.2)
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
    for number, survived in enumerate(DEATHS):
        assert run_and_die(h, BEGINS, survived)
        assert h.rows("SELECT id FROM events WHERE id > 4") == [(5,)]
        h.advance(minutes=5)
        assert h.run().complete
        assert tables(h) == ["p3"]
        h.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01')")
        h.sql("INSERT INTO events VALUES (1, '2026-01-10')")
        deleted = sum(job.counts.deleted for job in h.db.history(limit=1000))
        assert deleted == 4 + number
        assert leaving(h) == []


def test_what_a_dead_worker_has_detached_is_dropped_by_whoever_takes_over(each: Harness) -> None:
    create(each)
    die_detached(each)
    assert [row[:2] for row in leaving(each)] == [("public", "p1")]
    assert comment(each, "p1") == "January"
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


def test_marks_in_comments_are_not_obeyed_but_shown(h: Harness, client: psycopg.Connection) -> None:
    """Every owner of a table can write them; the landed version did."""
    create(h)
    client.execute(
        "CREATE TABLE precious (id INTEGER, ts TIMESTAMPTZ NOT NULL); INSERT INTO precious VALUES (1, now())"
    )
    forged = '{"parent": "events", "bound": "DEFAULT; CREATE TABLE owned (); --"}'
    client.execute(f"COMMENT ON TABLE precious IS '{OLD_MARK}{forged}'")
    client.execute(f"COMMENT ON TABLE p3 IS '{OLD_MARK}{forged}'")
    h.run()
    assert tables(h) == ["p3"]
    assert h.rows("SELECT to_regclass('owned')::text, to_regclass('precious')::text") == [(None, "precious")]
    found = {finding.subject: finding for finding in h.db.doctor(repair=True)}
    assert "detached it to drop it" in found["public.precious"].text
    assert not found["public.precious"].fixed
    assert "it is a partition" in found["public.p3"].text
    assert h.rows("SELECT count(*) FROM precious") == [(1,)]
    assert h.ids() == [5]


def test_a_policy_that_is_removed_in_between_brings_the_partition_back(each: Harness) -> None:
    create(each)
    die_detached(each)
    each.sql("ALTER TABLE events RESET (ttl)")
    assert each.ids() == [1, 2, 3, 4, 5]
    assert leaving(each) == []
    assert comment(each, "p1") == "January"


def test_what_cannot_come_back_is_found_by_the_doctor(h: Harness, client: psycopg.Connection) -> None:
    create(h)
    die_detached(h)
    client.execute("CREATE TABLE p0 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01')")
    h.sql("ALTER TABLE events RESET (ttl)")
    assert [row[1] for row in leaving(h)] == ["p1"]
    (found,) = (finding for finding in h.db.doctor(repair=True) if finding.subject == "public.p1")
    assert "would overlap" in found.text
    assert not found.fixed
    client.execute("DROP TABLE p0")
    (found,) = (finding for finding in h.db.doctor(repair=True) if finding.subject == "public.p1")
    assert found.fixed
    assert h.ids() == [1, 2, 3, 4, 5]
    assert leaving(h) == []


def test_another_policy_does_not_drop_what_an_earlier_one_has_detached(h: Harness, client: psycopg.Connection) -> None:
    create(h)
    die_detached(h)
    client.execute("CREATE TABLE p0 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01')")
    h.sql("ALTER TABLE events RESET (ttl)")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''14 days''', ttl_partition_drop = 'on')")
    h.run()
    assert tables(h) == ["p1", "p3"]
    assert [finding.subject for finding in h.db.doctor() if "policy was removed" in finding.text] == ["public.p1"]


@pytest.mark.parametrize(
    "by",
    [
        "ALTER TABLE p1 RENAME TO keep_me",
        "ALTER TABLE p1 RENAME TO keep_me; CREATE TABLE p1 (id INTEGER, ts TIMESTAMPTZ NOT NULL)",
        "CREATE TABLE others (id INTEGER, ts TIMESTAMPTZ NOT NULL) PARTITION BY RANGE (ts);"
        " ALTER TABLE others ATTACH PARTITION p1 DEFAULT; ALTER TABLE p1 RENAME TO keep_me",
    ],
)
def test_a_person_who_takes_a_detached_partition_has_it(h: Harness, client: psycopg.Connection, by: str) -> None:
    create(h)
    die_detached(h)
    client.execute(by)
    h.advance(minutes=5)
    h.run()
    assert h.rows("SELECT id FROM keep_me") == [(1,)]
    assert [finding.subject for finding in h.db.doctor(repair=True) if finding.fixed] == ["public.p1"]
    assert leaving(h) == []


def test_a_live_row_in_a_detached_partition_keeps_it(h: Harness, client: psycopg.Connection) -> None:
    """Its range says nothing about a row that was put into it behind its parent's back."""
    create(h)
    die_detached(h)
    client.execute("ALTER TABLE p1 DROP CONSTRAINT IF EXISTS p1_ts_check")
    client.execute("INSERT INTO p1 VALUES (9, '2026-03-14')")
    h.advance(minutes=5)
    h.run()
    assert h.rows("SELECT id FROM p1 ORDER BY id") == [(1,), (9,)]


def test_a_stored_bound_that_was_tampered_with_is_not_executed(h: Harness, client: psycopg.Connection) -> None:
    create(h)
    die_detached(h)
    client.execute(f"UPDATE {LEAVING} SET bound = 'DEFAULT; CREATE TABLE owned (); --'")
    h.sql("ALTER TABLE events RESET (ttl)")
    (found,) = (finding for finding in h.db.doctor(repair=True) if finding.subject == "public.p1")
    assert "no partition bound" in found.text
    assert h.rows("SELECT to_regclass('owned')::text, to_regclass('p1')::text") == [(None, "p1")]


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


def test_beside_a_default_partition_the_detachment_is_one_short_transaction(each: Harness) -> None:
    create(each)
    each.sql("ALTER TABLE events DETACH PARTITION p3; ALTER TABLE events ATTACH PARTITION p3 DEFAULT")
    seen: list[str] = []
    database = each.db.engine.database
    event.listen(database, "before_cursor_execute", lambda c, cursor, statement, *_: seen.append(statement))
    each.run()
    assert not [statement for statement in seen if "CONCURRENTLY" in statement]
    assert tables(each) == ["p3"]
    assert each.ids() == [5]
    assert sum(job.counts.deleted for job in each.db.history()) == 4


def test_counting_a_partition_keeps_no_writer_waiting(each: Harness) -> None:
    """With a default partition, too: rows are counted where no writer reaches them any more."""
    create(each)
    each.sql("ALTER TABLE events DETACH PARTITION p3; ALTER TABLE events ATTACH PARTITION p3 DEFAULT")
    counted: list[bool] = []

    def look(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "count(*) FILTER" in statement and 'ONLY "public"."p1"' in statement:
            counted.extend(row[0] for row in each.rows("SELECT relispartition FROM pg_class WHERE relname = 'p1'"))

    event.listen(each.db.engine.database, "before_cursor_execute", look)
    each.run()
    assert counted == [False]
    assert tables(each) == ["p3"]


@pytest.mark.parametrize("kind", ["INTEGER", "BIGINT"])
def test_a_key_that_is_a_number(h: Harness, kind: str) -> None:
    h.sql(f"CREATE TABLE events (id INTEGER, ts {kind} NOT NULL) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    edge = int(h.now.timestamp()) - 86_400
    h.sql(f"CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (100000001) TO ({edge - 1000})")
    h.sql(f"CREATE TABLE p2 PARTITION OF events FOR VALUES FROM ({edge - 1000}) TO ({edge + 1000})")
    h.sql(f"INSERT INTO events VALUES (1, {edge - 2000}), (2, {edge - 10}), (3, {edge + 10})")
    jobs = {job.table.partition: job.path.kind for job in h.run().jobs}
    assert jobs == {"p1": PathKind.PARTITION, "p2": PathKind.PHYSICAL}
    assert tables(h) == ["p2"]
    assert h.ids() == [3]


def test_a_partition_that_is_detached_in_the_middle_of_a_run_is_its_owners(h: Harness) -> None:
    create(h)
    worker = h.db.worker()
    worker._scheduler.run_once()
    h.sql("ALTER TABLE events DETACH PARTITION p1")
    worker.run()
    assert tables(h) == ["p1", "p3"]
    assert h.rows("SELECT id FROM p1") == [(1,)]


def test_a_worker_drops_what_the_owners_function_lets_it(each: Harness) -> None:
    """With nothing but EXECUTE; a reader of the table above is not made to wait for long, and neither is the drop."""
    create(each)
    each.sql("DO $$ BEGIN CREATE ROLE dropper LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with Lapse(each.url.replace("postgres@", "dropper@"), clock=each.clock) as worker:
        grant_what_doctor_prints(each.owner, worker)
        with psycopg.connect(each.url) as reader:
            reader.execute("SELECT count(*) FROM events")
            with running(lambda: worker.run()) as errors:
                wait_for(each, "EXISTS (SELECT 1 FROM lapse_ttl.lapse_task WHERE status = 'running')")
                with psycopg.connect(each.url, autocommit=True) as client:
                    slowest = slowest_s(lambda number: client.execute("SELECT count(*) FROM events"), range(10))
                reader.rollback()
        assert not errors
        assert slowest < SLOW_SECONDS
    assert tables(each) == ["p3"]
    assert each.ids() == [5]
    assert sum(job.counts.deleted for job in each.db.history()) == 4
    each.sql("DROP OWNED BY dropper; DROP ROLE dropper")


def test_a_policy_that_does_not_drop_cannot_be_made_to(h: Harness) -> None:
    """A role that writes to the catalog does not change what the owner's function knows."""
    create(h)
    h.sql("ALTER TABLE events SET (ttl_partition_drop = 'off')")
    h.sql('UPDATE lapse_ttl.lapse_policy SET options = (options::jsonb || \'{"partition_drop": "on"}\')::text')
    assert h.db.policies()[0].policy.partition_drop
    h.run()
    assert "p1" in tables(h)


def _cancelled(h: Harness) -> None:
    h.advance(minutes=5)
    for job in h.db.jobs():
        h.db.control(job.id, JobAction.CANCEL)


@pytest.mark.parametrize("declared", ["ttl_archive = 'table:'", "ttl_ledger_keys = 'on'"])
def test_a_partition_with_rows_comes_back_where_rows_go_one_by_one_since(each: Harness, declared: str) -> None:
    """From when the declaration returns, no job deletes a row without moving it, or recording its key."""
    create(each, ", PRIMARY KEY (id, ts)")
    die_detached(each)
    _cancelled(each)
    each.sql(f"ALTER TABLE events SET ({declared}, ttl_guard = 'off')")
    (job,) = (job for job in each.run().jobs if job.table.partition == "p1")
    assert (job.path.kind, job.counts.deleted) == (PathKind.PARTITION, 0)
    assert leaving(each) == [] and 1 in each.ids()
    each.advance(hours=2)
    (job,) = (job for job in each.run().jobs if job.table.partition == "p1")
    assert job.path.kind is not PathKind.PARTITION and job.counts.deleted == 1
    assert each.ids() == [5] and "p1" in tables(each)
    if "archive" in declared:
        assert each.ids("events_archive") == [1, 2, 3, 4]
