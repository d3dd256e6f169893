"""Partitions are dropped only while their whole range has expired, and never at the cost of others' waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

import pytest
from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.engines.base import Batch, Checkpoint
from lapse.engines.mysql.partitions import PartitionDropper
from lapse.errors import TooSlow
from lapse.model.job import JobStatus, PathKind
from lapse.runner import task
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness


def _name(h: Harness) -> str:
    return str(make_url(h.url).database)


def _partitioned(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INT, ts DATETIME NOT NULL, PRIMARY KEY (id, ts)) TTL = ts + INTERVAL 1 DAY "
        "PARTITION BY RANGE COLUMNS (ts) (PARTITION p0 VALUES LESS THAN ('2026-01-01'),"
        " PARTITION p1 VALUES LESS THAN ('2026-02-01'), PARTITION p9 VALUES LESS THAN MAXVALUE)"
    )
    h.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    h.sql("INSERT INTO events VALUES (1, '2026-01-10'), (2, '2026-01-11'), (3, '2030-01-01')")


def _before_the_drop(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run `action` once, after the job was planned and before its first step."""
    step, done = PartitionDropper.step, threading.Event()

    def acting(self: PartitionDropper, limit: int, checkpoint: Checkpoint) -> Batch:
        if not done.is_set():
            done.set()
            action()
        return step(self, limit, checkpoint)

    monkeypatch.setattr(PartitionDropper, "step", acting)


def test_a_partition_that_got_other_bounds_after_planning_keeps_its_rows(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _partitioned(h)
    _before_the_drop(
        monkeypatch,
        lambda: server.execute(
            "ALTER TABLE events DROP PARTITION p0, p1",
            "ALTER TABLE events REORGANIZE PARTITION p9 INTO (PARTITION p1 VALUES LESS THAN ('2030-02-01'),"
            " PARTITION p9 VALUES LESS THAN MAXVALUE)",
            "INSERT INTO events VALUES (4, '2026-03-01')",
            database=_name(h),
        ),
    )
    jobs = {job.table.partition: job for job in h.run().jobs}
    # Live rows stay, the one that has expired goes: in this run, or, where the table was in use just now, in the next.
    assert 3 in h.ids()
    assert jobs["p1"].counts.deleted <= 1
    if h.ids() != [3]:
        h.advance(minutes=10)
        h.run()
    assert h.ids() == [3]


def test_a_partition_that_is_gone_is_no_catastrophe(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _partitioned(h)
    _before_the_drop(monkeypatch, lambda: server.execute("ALTER TABLE events DROP PARTITION p0, p1", database=_name(h)))
    h.run()
    assert h.ids() == [3]


def test_delete_triggers_run_instead_of_a_drop(h: Harness, server: MariadbServer) -> None:
    _partitioned(h)
    h.sql("CREATE TABLE gone (id INT)")
    server.execute(
        "CREATE TRIGGER seen AFTER DELETE ON events FOR EACH ROW INSERT INTO gone VALUES (OLD.id)", database=_name(h)
    )
    notices = h.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')").notices
    assert any("DELETE triggers" in notice for notice in notices)
    jobs = {job.table.partition: (job.path.kind, job.counts.deleted) for job in h.run().jobs}
    assert jobs["p1"] == (PathKind.PHYSICAL, 2)
    assert h.rows("SELECT id FROM gone ORDER BY id") == [(1,), (2,)]


def test_a_slash_in_the_name_keeps_the_table(h: Harness) -> None:
    """MariaDB 10.11 loses the whole table when it drops a partition of one with a slash in its name."""
    made = h.sql(
        "CREATE TABLE `in/out` (id INT, ts DATETIME NOT NULL, PRIMARY KEY (id, ts)) TTL = ts + INTERVAL 1 DAY "
        "PARTITION BY RANGE COLUMNS (ts) (PARTITION p0 VALUES LESS THAN ('2026-01-01'),"
        " PARTITION p9 VALUES LESS THAN MAXVALUE)"
    )
    assert made.notices == ()
    notices = h.sql("ALTER TABLE `in/out` SET (ttl_partition_drop = 'on')").notices
    assert any("slash" in notice for notice in notices)
    h.sql("INSERT INTO `in/out` VALUES (1, '2025-01-10'), (2, '2030-01-01')")
    assert h.run("in/out").deleted == 1
    assert h.ids("`in/out`") == [2]


def test_a_trigger_made_after_planning_runs(h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    _partitioned(h)
    h.sql("CREATE TABLE gone (id INT)")
    _before_the_drop(
        monkeypatch,
        lambda: server.execute(
            "CREATE TRIGGER seen AFTER DELETE ON events FOR EACH ROW INSERT INTO gone VALUES (OLD.id)",
            database=_name(h),
        ),
    )
    assert h.run().deleted == 2
    assert h.rows("SELECT count(*) FROM gone") == [(2,)]


def test_a_zero_date_that_arrives_after_planning_stays(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _partitioned(h)
    server.execute("ALTER TABLE events DROP PARTITION p0", database=_name(h))
    _before_the_drop(
        monkeypatch,
        lambda: server.execute("SET sql_mode = ''", "INSERT INTO events VALUES (5, '0000-00-00')", database=_name(h)),
    )
    h.run()
    assert h.ids() == [3, 5]


def test_an_open_reader_is_waited_for_without_holding_up_others(h: Harness, server: MariadbServer) -> None:
    _partitioned(h)
    slowest = 0.0
    with server.connect(_name(h)) as reader, reader.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT * FROM events")
        done = threading.Thread(target=h.run)
        done.start()
        until = monotonic() + 2
        with server.connect(_name(h)) as other, other.cursor() as quick:
            while monotonic() < until:
                started = monotonic()
                quick.execute("SELECT count(*) FROM events")
                slowest = max(slowest, monotonic() - started)
                sleep(0.005)
        cursor.execute("ROLLBACK")
        done.join()
    # What cannot refuse to wait waits for a second, the shortest that MySQL knows.
    assert slowest < (0.6 if h.features.refuses_to_wait else 1.6)
    assert h.ids() == [3]
    jobs = {job.table.partition: job for job in h.db.history("events")}
    assert (jobs["p1"].status, jobs["p1"].counts.deleted) == (JobStatus.FINISHED, 2)


def test_dropping_without_the_privilege_to_lock_says_so(h: Harness, server: MariadbServer) -> None:
    _partitioned(h)
    name = _name(h)
    server.execute(
        "DROP USER IF EXISTS dropper@'%'",
        "CREATE USER dropper@'%'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, ALTER, DROP, CREATE ON {name}.* TO dropper@'%'",
    )
    try:
        with Lapse(h.url.replace("root@", "dropper@"), clock=h.clock) as db:
            fixes = [finding.fix or "" for finding in db.doctor() if finding.level == "problem"]
            assert any("LOCK TABLES" in fix for fix in fixes)
            for fix in fixes:
                if fix.startswith("GRANT"):
                    server.execute(fix.rstrip(";"))
        with Lapse(h.url.replace("root@", "dropper@"), clock=h.clock) as db:
            assert db.run("events").deleted == 2
    finally:
        server.execute("DROP USER dropper@'%'")


def test_a_partition_is_not_finished_while_someone_keeps_the_table_open(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the task was given up meanwhile."""
    monkeypatch.setattr(task, "MAX_RETRIES", 1)
    _partitioned(h)
    with server.connect(_name(h)) as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT count(*) FROM events")
        done = threading.Thread(target=h.run)
        done.start()
        sleep(4)
        assert done.is_alive()
        assert cursor.execute("SELECT * FROM events") == 3
        cursor.execute("ROLLBACK")
        done.join()
    assert h.ids() == [3]
    jobs = {job.table.partition: job for job in h.db.history("events")}
    assert (jobs["p1"].status, jobs["p1"].counts.deleted) == (JobStatus.FINISHED, 2)


def test_a_partition_that_cannot_be_dropped_in_time_loses_its_rows_one_by_one(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_slow(self: PartitionDropper, checkpoint: Checkpoint) -> Batch:
        raise TooSlow("it takes too long")

    monkeypatch.setattr(PartitionDropper, "_drop", too_slow)
    _partitioned(h)
    h.run()
    assert h.ids() == [3]
    assert h.rows(
        "SELECT count(*) FROM information_schema.PARTITIONS WHERE TABLE_NAME = 'events' AND TABLE_SCHEMA = DATABASE()"
    ) == [(3,)]
