"""`ttl_partition_drop` where each row is needed when it goes: a leaf is emptied, and dropped once it has no row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import lapse.archive
from lapse.app import Lapse
from lapse.engines.base import Batch
from lapse.engines.postgres.partition_drop import PartitionDeleter
from lapse.errors import PolicyConflict
from lapse.model.job import Job, JobStatus, PathKind
from tests.conformance.harness import Harness, grant_what_doctor_prints
from tests.postgres.test_partition_drop import (
    BEGINS,
    DEATHS,
    create,
    leaving,
    run_and_die,
    running,
    tables,
    wait_for,
)

KEYED = ", PRIMARY KEY (id, ts)"
ARCHIVE, KEYS = "ttl_archive = 'table:'", "ttl_ledger_keys = 'on'"
LATE = "INSERT INTO events VALUES (9, '2026-01-20')"
"""A row for p1, whose range has expired."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    return tmp_path


@pytest.fixture(params=["owner", "worker"])
def run(request: pytest.FixtureRequest, each: Harness) -> Iterator[Callable[[], dict[str | None, Job]]]:
    """A run by the table's owner, or by a role that may execute its batch function and nothing else."""

    def by(db: Lapse) -> dict[str | None, Job]:
        each.advance(hours=2)
        return {job.table.partition: job for job in db.run("events").jobs}

    if request.param == "owner":
        yield lambda: by(each.db)
        return
    each.sql("DO $$ BEGIN CREATE ROLE dropper LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with Lapse(each.url.replace("postgres@", "dropper@"), clock=each.clock) as worker:

        def granted() -> dict[str | None, Job]:
            grant_what_doctor_prints(each.owner, worker)
            return by(worker)

        yield granted
    each.sql("DROP OWNED BY dropper; DROP ROLE dropper")


Run = Callable[[], dict[str | None, Job]]


def declare(h: Harness, what: str = ARCHIVE) -> None:
    create(h, KEYED)
    h.sql(f"ALTER TABLE events SET ({what}, ttl_guard = 'off')")


def archived(h: Harness, folder: Path | None = None) -> list[int]:
    found = list(h.ids("events_archive" if folder is None else "events_outbox"))
    if folder is not None:
        for batch in lapse.archive.open(f"file://{folder}"):
            found += batch.column("id").to_pylist()
    return sorted(found)


@contextmanager
def before(monkeypatch: pytest.MonkeyPatch, method: str, action: Callable[[], object]) -> Iterator[None]:
    """Run `action` once, before a method of the deleter that drops p1."""
    original, done = getattr(PartitionDeleter, method), threading.Event()

    def acting(self: PartitionDeleter, *given: object) -> Batch:
        if self._name.partition == "p1" and not done.is_set():
            done.set()
            action()
        result: Batch = original(self, *given)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(PartitionDeleter, method, acting)
        yield
    assert done.is_set()


@pytest.mark.parametrize("where", ["table", "file", "keys"])
def test_a_partition_is_emptied_by_one_run_and_dropped_by_the_next(
    each: Harness, run: Run, folder: Path, where: str
) -> None:
    declare(each, {"table": ARCHIVE, "file": f"ttl_archive = 'file://{folder}'", "keys": KEYS}[where])
    first = run()
    assert sum(job.counts.deleted for job in first.values()) == 4
    assert {job.path.kind for job in first.values()} <= {PathKind.PHYSICAL, PathKind.INDEX}
    assert tables(each) == ["p1", "p2", "p3"]
    each.advance(hours=2)
    looks = {look.table.partition: look for look in each.owner.preview("events")}
    assert [looks[leaf].path.kind for leaf in ("p1", "p2")] == [PathKind.PARTITION] * 2
    assert (looks["p1"].survey.expired, looks["p2"].survey.expired) == (0, 0)
    second = run()
    for leaf in ("p1", "p2"):
        job = second[leaf]
        assert (job.path.kind, job.status, job.counts.deleted) == (PathKind.PARTITION, JobStatus.FINISHED, 0)
        assert f"{leaf} is empty" in job.path.evidence
    assert tables(each) == ["p3"] and leaving(each) == []
    assert each.ids() == [5]
    if where == "keys":
        assert [len(each.owner.deleted("events", 1, "2026-01-10 00:00:00+00").found)] == [1]
    else:
        assert archived(each, folder if where == "file" else None) == [1, 2, 3, 4]
    assert not run().keys() & {"p1", "p2"}


@pytest.mark.parametrize("what", [ARCHIVE, KEYS])
def test_a_row_that_comes_after_planning_is_not_lost(
    each: Harness, run: Run, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    declare(each, what)
    run()
    with before(monkeypatch, "step", lambda: each.sql(LATE)):
        jobs = run()
    assert "p1" in tables(each) and each.ids() == [5, 9] and leaving(each) == []
    assert (jobs["p1"].counts.deleted, jobs["p1"].counts.held) == (0, 1)
    assert (jobs["p1"].is_drop, jobs["p2"].is_drop) == (False, True)
    assert run()["p1"].counts.deleted == 1
    if what == ARCHIVE:
        assert archived(each) == [1, 2, 3, 4, 9]
    run()
    assert tables(each) == ["p3"]


@pytest.mark.parametrize("into", ["events", "p1"])
def test_nor_is_one_that_comes_while_the_partition_is_detached(
    each: Harness, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    """Into the table after the look whether it is empty, or behind its back into what is detached already."""
    declare(each)
    each.run()
    each.advance(hours=2)
    method = "_run_for" if into == "events" else "_drop"
    with before(monkeypatch, method, lambda: each.sql(LATE.replace("events", into))):
        each.run()
    assert tables(each) == ["p1", "p3"] and each.ids() == [5, 9] and leaving(each) == []
    each.advance(hours=2)
    each.run()
    assert archived(each) == [1, 2, 3, 4, 9] and each.ids() == [5]


def test_a_row_that_is_committed_while_the_worker_waits_for_its_lock(each: Harness) -> None:
    """The first look has not seen it; the one under the lock does."""
    declare(each)
    each.run()
    each.sql("DO $$ BEGIN CREATE ROLE dropper LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with Lapse(each.url.replace("postgres@", "dropper@"), clock=each.clock) as worker:
        grant_what_doctor_prints(each.owner, worker)
        each.advance(hours=2)
        with psycopg.connect(each.url) as writer:
            writer.execute(LATE)
            with running(lambda: worker.run("events")) as errors:
                wait_for(each, "EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)")
                writer.commit()
        assert not errors
        assert each.ids() == [5, 9] and "p1" in tables(each)
        (job,) = (job for job in each.db.history() if job.path.kind is PathKind.PARTITION and job.counts.held)
        assert (job.table.partition, job.counts.deleted) == ("p1", 0)
        each.advance(hours=2)
        worker.run("events")
    assert each.ids() == [5] and archived(each) == [1, 2, 3, 4, 9]
    each.sql("DROP OWNED BY dropper; DROP ROLE dropper")


def test_a_hold_keeps_its_rows_and_their_partition(each: Harness, run: Run) -> None:
    declare(each)
    hold = each.owner.hold("events", "id = 2", reason="case 12")
    run()
    assert each.ids() == [2, 5]
    run()
    assert each.ids() == [2, 5] and "p2" in tables(each)
    each.owner.release(hold.id)
    run()
    assert each.ids() == [5] and archived(each) == [1, 2, 3, 4]
    run()
    assert tables(each) == ["p3"]


def test_a_hold_that_is_placed_once_a_partition_is_planned_to_be_dropped(
    each: Harness, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(each)
    run()

    def late() -> None:
        each.sql(LATE)
        each.owner.hold("events", "id = 9")

    with before(monkeypatch, "step", late):
        run()
    run()
    assert each.ids() == [5, 9] and archived(each) == [1, 2, 3, 4]
    assert leaving(each) == []


def test_a_worker_that_dies_between_any_two_statements(h: Harness) -> None:
    declare(h)
    moved = [1, 2, 3, 4]
    for number, survived in enumerate(DEATHS, start=10):
        h.advance(hours=2)
        h.run()
        h.advance(hours=2)
        assert archived(h) == moved
        assert run_and_die(h, BEGINS, survived)
        h.advance(minutes=5)
        assert h.run().complete
        assert tables(h) == ["p3"] and leaving(h) == []
        h.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01')")
        h.sql(f"INSERT INTO events VALUES ({number}, '2026-01-10')")
        moved.append(number)


def test_a_row_that_was_put_into_what_a_dead_worker_has_detached(h: Harness) -> None:
    declare(h)
    h.run()
    h.advance(hours=2)
    assert run_and_die(h, "DROP TABLE")
    h.sql(LATE.replace("events", "p1"))
    h.advance(minutes=5)
    h.run()
    assert h.ids() == [5, 9] and leaving(h) == []
    h.advance(hours=2)
    h.run()
    assert h.ids() == [5] and archived(h) == [1, 2, 3, 4, 9]


def call(connection: psycopg.Connection, operation: str, part: str) -> object:
    """As a role that has the right to execute a batch function may call it by hand."""
    found = connection.execute(
        "SELECT p.oid::regproc::text FROM pg_proc p WHERE p.proname = 'lapse_ttl_' || 'events'::regclass::oid"
    ).fetchone()
    assert found is not None
    result = connection.execute(
        f"SELECT {found[0]}('{operation}', '{part}'::regclass::oid, ARRAY['2026-03-15'::timestamptz],"
        " ARRAY['2026-03-01 00:00:00+00'], ARRAY[]::bigint[], ARRAY[]::text[], ARRAY[]::oid[])"
    ).fetchone()
    assert result is not None
    return result[0]


def test_a_partition_with_rows_is_not_dropped_by_a_call_of_the_function(each: Harness) -> None:
    declare(each)
    with psycopg.connect(each.url, autocommit=True) as client:
        for operation in ("may drop", "drop"):
            with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="has rows"):
                call(client, operation, "p1")
        assert call(client, "drop", "p3") is False
    assert each.ids() == [1, 2, 3, 4, 5]


def test_nor_by_one_with_a_snapshot_from_before_its_rows(each: Harness) -> None:
    declare(each)
    each.run()
    with psycopg.connect(each.url) as client:
        client.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert client.execute("SELECT count(*) FROM events").fetchone() == (1,)
        each.sql(LATE)
        with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="READ COMMITTED"):
            call(client, "drop", "p1")
    assert each.ids() == [5, 9]


def test_a_table_in_between_is_not_dropped_with_the_rows_of_its_partitions(each: Harness) -> None:
    """It has no row of its own, and its range has expired."""
    declare(each)
    each.sql("ALTER TABLE events DETACH PARTITION p1; DROP TABLE p1")
    each.sql(
        "CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01') PARTITION BY RANGE (id);"
        " CREATE TABLE p4 PARTITION OF p1 FOR VALUES FROM (0) TO (100); CREATE TABLE p5 PARTITION OF p1 DEFAULT"
    )
    each.sql("INSERT INTO events VALUES (7, '2026-01-10'), (700, '2026-01-10')")
    refused = pytest.raises(psycopg.errors.DependentObjectsStillExist, match="no table that holds rows")
    with psycopg.connect(each.url, autocommit=True) as client, refused:
        call(client, "drop", "p1")
    for _ in range(2):
        each.run()
        each.advance(hours=2)
    assert archived(each) == [2, 3, 4, 7, 700]
    # What is above the leaves is the owner's.
    assert tables(each) == ["p1", "p3"]


def test_a_default_partition_stays(each: Harness, run: Run) -> None:
    declare(each)
    each.sql("ALTER TABLE events DETACH PARTITION p3; ALTER TABLE events ATTACH PARTITION p3 DEFAULT")
    run()
    run()
    assert tables(each) == ["p3"] and each.ids() == [5] and archived(each) == [1, 2, 3, 4]


@pytest.mark.parametrize("hide", ["off", "policy"])
def test_rows_that_row_security_may_hide_from_the_owner_keep_a_partition(each: Harness, hide: str) -> None:
    each.sql("DO $$ BEGIN CREATE ROLE keeper LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    each.sql("DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO keeper', current_database()); END $$")
    each.sql("GRANT ALL ON SCHEMA public TO keeper")
    with Lapse(each.url.replace("postgres@", "keeper@"), clock=each.clock) as keeper:
        keeper.execute("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ NOT NULL) PARTITION BY RANGE (ts)")
        keeper.execute("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-02-01')")
        keeper.execute("CREATE TABLE p2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')")
        keeper.execute(
            "ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''14 days''', ttl_partition_drop ="
            f" 'on', {ARCHIVE}, ttl_hide_expired = '{hide}', ttl_guard = 'off')"
        )
        keeper.execute("ALTER TABLE p1 ENABLE ROW LEVEL SECURITY; ALTER TABLE p1 FORCE ROW LEVEL SECURITY")
        each.sql("INSERT INTO p1 VALUES (1, '2026-01-10')")
        each.sql("INSERT INTO p2 VALUES (2, '2026-02-10')")
        for _ in range(3):
            keeper.run("events")
            each.advance(hours=2)
        assert each.rows("SELECT id FROM p1") == [(1,)]
        assert tables(each) == ["p1"] and leaving(each) == []
        refused = pytest.raises(psycopg.errors.DependentObjectsStillExist, match="may hide rows")
        with psycopg.connect(each.url.replace("postgres@", "keeper@"), autocommit=True) as client, refused:
            call(client, "drop", "p1")
        keeper.execute("ALTER TABLE p1 NO FORCE ROW LEVEL SECURITY")
        for _ in range(2):
            keeper.run("events")
            each.advance(hours=2)
        assert tables(each) == [] and archived(each) == [1, 2]
    each.sql("DROP OWNED BY keeper CASCADE; DROP ROLE keeper")


def test_the_function_of_other_tables_stays_as_it_was(each: Harness) -> None:
    """So that nothing but tables with both settings is blocked until its function is renewed."""
    create(each, KEYED)
    source = "SELECT prosrc FROM pg_proc WHERE proname = 'lapse_ttl_' || 'events'::regclass::oid"
    assert "go one by one" not in each.rows(source)[0][0]
    each.sql(f"ALTER TABLE events SET ({ARCHIVE}, ttl_partition_drop = 'off')")
    assert "go one by one" not in each.rows(source)[0][0]
    each.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    assert each.rows(source)[0][0].count("go one by one") == 3


def test_rows_whose_partition_is_gone_come_back_when_there_is_one_again(each: Harness, folder: Path) -> None:
    declare(each)
    each.run()
    each.advance(hours=2)
    each.run()
    assert tables(each) == ["p3"]
    with pytest.raises(PolicyConflict, match=r"no partition for some of the rows.* ts from 2026-01-10.* to 2026-03-01"):
        each.owner.restore("events")
    # Nothing is half done, not even the row of p3 or the hold.
    assert each.ids() == [5] and archived(each) == [1, 2, 3, 4]
    assert [hold for hold in each.owner.holds() if hold.released_at is None] == []
    assert each.owner.restore("events", where="ts >= '2026-03-01'").restored == 1
    each.sql("CREATE TABLE other (id INTEGER, ts TIMESTAMPTZ NOT NULL)")
    assert each.owner.restore("events", where="id = 3", into="other").restored == 1
    each.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-03-01')")
    assert each.owner.restore("events").restored == 2
    assert each.ids() == [1, 2, 4, 5] and each.ids("other") == [3] and archived(each) == []


def test_and_so_do_rows_in_files(h: Harness, folder: Path) -> None:
    declare(h, f"ttl_archive = 'file://{folder}'")
    h.run()
    h.advance(hours=2)
    h.run()
    with pytest.raises(PolicyConflict, match="no partition for some of the rows"):
        h.owner.restore("events")
    assert h.ids() == [5] and archived(h, folder) == [1, 2, 3, 4]
    h.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-03-01')")
    assert h.owner.restore("events").restored == 4
    assert h.ids() == [1, 2, 3, 4, 5]


def test_a_constraint_that_refuses_a_row_is_not_taken_for_a_partition_that_is_gone(h: Harness) -> None:
    declare(h)
    h.run()
    h.sql("ALTER TABLE events ADD CONSTRAINT big CHECK (id > 2)")
    done = h.owner.restore("events")
    assert (done.restored, done.refused) == (2, 2)
