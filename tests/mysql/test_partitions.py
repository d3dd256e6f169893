"""Partitions are dropped only while their whole range has expired, and never at the cost of others' waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest
from sqlalchemy import Connection, make_url

import lapse.archive
from lapse.app import Lapse
from lapse.engines.base import Batch, Checkpoint
from lapse.engines.mysql import server as server_facts
from lapse.engines.mysql.partitions import PartitionDropper
from lapse.errors import PolicyConflict, TooSlow
from lapse.model.job import Job, JobStatus, PathKind
from lapse.runner import task
from lapse.runner.promise import Health
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness
from tests.conformance.test_idle import counted


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
    """Run `action` once, after the job was planned and before the first step of any of its tasks."""
    step, done, acts = PartitionDropper.step, threading.Event(), threading.Lock()

    def acting(self: PartitionDropper, limit: int, checkpoint: Checkpoint) -> Batch:
        with acts:
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


WAYS = {
    "columns": ("DATETIME", "RANGE COLUMNS (ts)", "'{}'"),
    "to_seconds": ("DATETIME(3)", "RANGE (to_seconds(ts))", "to_seconds('{}')"),
    "unix_timestamp": ("TIMESTAMP", "RANGE (unix_timestamp(ts))", "unix_timestamp('{}')"),
    "subpartitions": ("DATETIME", "RANGE COLUMNS (ts) SUBPARTITION BY HASH (id) SUBPARTITIONS 2", "'{}'"),
}
"""How a table is partitioned by time: the type of the column, the ranges, and how a bound is written."""


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _expiring_after_an_hour(h: Harness, table: str, zone: str = "UTC") -> None:
    h.sql(
        f"ALTER TABLE {table} SET (ttl_expiration_expression = 'ts + INTERVAL 1 HOUR', ttl_grace = '0 seconds',"
        f" ttl_time_zone = '{zone}', ttl_guard = off)"
    )


def _hourly(h: Harness, count: int, way: str = "columns", *, zone: str = "UTC", first: int = 0) -> None:
    """A table with a leaf per hour, the first of which ends so many hours from now."""
    kind, ranges, written = WAYS[way]
    bounds = [written.format(_text(h.now + timedelta(hours=first + number))) for number in range(count)]
    parts = ", ".join(f"PARTITION p{number} VALUES LESS THAN ({bound})" for number, bound in enumerate(bounds))
    with h.client() as client:
        client.exec_driver_sql("SET time_zone = '+00:00'")
        client.exec_driver_sql(
            f"CREATE TABLE hours (id BIGINT, ts {kind} NOT NULL, PRIMARY KEY (id, ts)) PARTITION BY {ranges} ({parts})"
        )
    _expiring_after_an_hour(h, "hours", zone)


def _insert(h: Harness, table: str, moments: list[datetime]) -> None:
    rows = ", ".join(f"({number}, '{_text(moment)}')" for number, moment in enumerate(moments))
    with h.client() as client:
        client.exec_driver_sql("SET time_zone = '+00:00'")
        client.exec_driver_sql(f"INSERT INTO {table} VALUES {rows}")


@pytest.mark.parametrize("way", list(WAYS))
def test_leaves_that_cannot_hold_expired_rows_get_no_job(h: Harness, way: str) -> None:
    """Rows lie at, just before and just after every bound."""
    count, halves = 12, 2 if way == "subpartitions" else 1
    _hourly(h, count, way, first=-3)
    moments = [h.now + timedelta(hours=-5 + number // 3, seconds=number % 3 - 1) for number in range(36)]
    _insert(h, "hours", moments)
    expired = [number for number, moment in enumerate(moments) if moment + timedelta(hours=1) <= h.now]
    result = h.db.run()
    assert h.ids("hours") == [number for number in range(36) if number not in expired]
    assert result.deleted == len(expired)
    # Three that have ended an hour ago, and the one that begins there.
    assert len({job.table.partition for job in result.jobs}) == 4 * halves
    (health,) = h.db.health()
    assert (health.health, len(health.parts)) == (Health.ON_TIME, count * halves)
    # Those that were passed over are late when no worker looks at them again, and due at the next time.
    h.advance(days=2)
    (health,) = h.db.health()
    assert health.health is Health.LATE
    h.db.run()
    assert h.ids("hours") == []


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_bounds_are_read_in_the_zone_of_the_policy(h: Harness, zone: str) -> None:
    """As the rows of a table without partitions are."""
    h.backend.load_zones([zone])
    _hourly(h, 40, zone=zone, first=-20)
    h.sql("CREATE TABLE twin (id BIGINT PRIMARY KEY, ts DATETIME NOT NULL)")
    _expiring_after_an_hour(h, "twin", zone)
    for table in ("hours", "twin"):
        _insert(h, table, [h.now + timedelta(minutes=30 * number - 630) for number in range(58)])
    result = h.db.run()
    assert 0 < len(h.ids("twin")) < 58
    assert h.ids("hours") == h.ids("twin")
    assert 2 < len([job for job in result.jobs if job.table.name == "hours"]) < 36


def test_a_leaf_that_was_passed_over_and_got_older_rows_is_looked_at_when_it_is_due(h: Harness) -> None:
    _hourly(h, 12, first=-1)
    assert {job.table.partition for job in h.db.run().jobs} == {"p0", "p1"}
    others = ", ".join(f"p{number}" for number in range(1, 12))
    early, late = h.now - timedelta(hours=4), h.now + timedelta(hours=11)
    with h.client() as client:
        client.exec_driver_sql("ALTER TABLE hours DROP PARTITION p0")
        client.exec_driver_sql(
            f"ALTER TABLE hours REORGANIZE PARTITION {others} INTO (PARTITION p3 VALUES LESS THAN"
            f" ('{_text(early)}'), PARTITION p4 VALUES LESS THAN ('{_text(late)}'))"
        )
        client.exec_driver_sql("CREATE TABLE spare (id BIGINT, ts DATETIME NOT NULL, PRIMARY KEY (id, ts))")
        client.exec_driver_sql(f"INSERT INTO spare VALUES (7, '{_text(early - timedelta(hours=1))}')")
        client.exec_driver_sql("ALTER TABLE hours EXCHANGE PARTITION p3 WITH TABLE spare")
    _insert(h, "hours", [h.now, h.now - timedelta(hours=3)])
    h.advance(minutes=61)
    h.owner.resume("hours")
    h.db.run("hours")
    assert h.ids("hours") == []
    assert {job.table.partition for job in h.owner.history("hours") if job.counts.deleted} == {"p3", "p4"}


def test_a_year_of_two_digits_is_no_bound(h: Harness) -> None:
    """The server would take 30 for 2030."""
    years = ", ".join(f"PARTITION p{number} VALUES LESS THAN ({2026 + number})" for number in range(1, 12))
    h.sql(
        "CREATE TABLE hours (id INT, ts DATETIME NOT NULL, PRIMARY KEY (id, ts)) PARTITION BY RANGE (year(ts))"
        f" (PARTITION p0 VALUES LESS THAN (30), {years})"
    )
    _expiring_after_an_hour(h, "hours")
    _insert(h, "hours", [h.now - timedelta(days=1), h.now + timedelta(days=900)])
    assert {job.table.partition for job in h.db.run().jobs} == {"p0", "p1"}
    assert h.ids("hours") == [1]


def test_a_round_over_many_leaves_is_a_fixed_number_of_statements(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    # One of the two may be older than that when it is looked at, and is asked less then.
    monkeypatch.setattr(server_facts, "YOUNG", timedelta(0))
    taken = []
    for count in (12, 60):
        _hourly(h, count)
        scheduler = h.db.worker()._scheduler
        h.db.run()
        for _ in range(2):
            h.owner.request_run("hours")
            with counted(h.db) as statements:
                scheduler.run_once(patient=True)
        taken.append(len(statements))
        h.sql("DROP TABLE hours")
    assert abs(taken[0] - taken[1]) <= 4


def _leaves(h: Harness) -> list[str]:
    return [
        str(row[0])
        for row in h.rows(
            "SELECT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE()"
            " AND TABLE_NAME = 'events' ORDER BY PARTITION_ORDINAL_POSITION"
        )
    ]


def _run_later(h: Harness) -> dict[str | None, Job]:
    h.advance(hours=2)
    return {job.table.partition: job for job in h.run().jobs}


def _before_the_lock(monkeypatch: pytest.MonkeyPatch, leaf: str, action: Callable[[], object]) -> None:
    """Run `action` once, after the rows of `leaf` were counted and before the table is locked."""
    locked, done = PartitionDropper._locked, threading.Event()

    def acting(self: PartitionDropper, connection: Connection, table: str) -> AbstractContextManager[None]:
        if self._name.partition == leaf and not done.is_set():
            done.set()
            action()
        return locked(self, connection, table)

    monkeypatch.setattr(PartitionDropper, "_locked", acting)


ONE_BY_ONE = ["ttl_archive = 'table:'", "ttl_ledger_keys = 'on'"]


@pytest.mark.parametrize("what", [*ONE_BY_ONE, "file"])
def test_a_partition_whose_rows_go_one_by_one_is_dropped_once_it_is_empty(
    h: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    _partitioned(h)
    what = f"ttl_archive = 'file://{tmp_path}'" if what == "file" else what
    h.sql(f"ALTER TABLE events SET ({what}, ttl_guard = 'off')")
    # The range of p0 has expired as well, and there is nothing in it.
    first = _run_later(h)
    assert (first["p1"].path.kind is PathKind.PARTITION, first["p1"].counts.deleted) == (False, 2)
    assert (first["p0"].path.kind, first["p0"].counts.deleted) == (PathKind.PARTITION, 0)
    second = _run_later(h)
    assert (second["p1"].path.kind, second["p1"].status, second["p1"].counts.deleted) == (
        PathKind.PARTITION,
        JobStatus.FINISHED,
        0,
    )
    assert "it is empty" in second["p1"].path.evidence
    assert _leaves(h) == ["p9"] and h.ids() == [3]
    if "file" in what:
        found = [number for batch in lapse.archive.open(f"file://{tmp_path}") for number in batch["id"].to_pylist()]
        assert sorted([*found, *h.ids("events_outbox")]) == [1, 2]
    elif "archive" in what:
        assert h.ids("events_archive") == [1, 2]
    else:
        assert len(h.owner.deleted("events", 1, "2026-01-10 00:00:00").found) == 1


@pytest.mark.parametrize("what", ONE_BY_ONE)
@pytest.mark.parametrize("moment", ["planned", "counted"])
def test_a_row_that_comes_before_the_drop_goes_like_the_others(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch, moment: str, what: str
) -> None:
    _partitioned(h)
    h.sql(f"ALTER TABLE events SET ({what}, ttl_guard = 'off')")
    _run_later(h)

    def late() -> None:
        server.execute("INSERT INTO events VALUES (4, '2026-01-12')", database=_name(h))

    if moment == "planned":
        _before_the_drop(monkeypatch, late)
    else:
        _before_the_lock(monkeypatch, "p1", late)
    job = _run_later(h)["p1"]
    assert (job.path.kind, job.counts.deleted, job.is_drop) == (PathKind.PARTITION, 1, False)
    assert "p1" in _leaves(h) and h.ids() == [3]
    if "archive" in what:
        assert h.ids("events_archive") == [1, 2, 4]
    else:
        assert len(h.owner.deleted("events", 4, "2026-01-12 00:00:00").found) == 1
    assert _run_later(h)["p1"].counts.deleted == 0
    assert _leaves(h) == ["p9"]


def test_a_worker_that_may_not_drop_archives_all_the_same(h: Harness, server: MariadbServer) -> None:
    """The empty partition waits for the privilege; a row that comes to it does not."""
    _partitioned(h)
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:', ttl_guard = 'off')")
    name = _name(h)
    server.execute(
        "DROP USER IF EXISTS mover@'%'",
        "CREATE USER mover@'%'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, LOCK TABLES ON {name}.* TO mover@'%'",
    )
    try:
        with Lapse(h.url.replace("root@", "mover@"), clock=h.clock) as db:
            db.run("events")
            assert h.ids() == [3] and h.ids("events_archive") == [1, 2]
            h.advance(hours=2)
            db.run("events")
            assert _leaves(h) == ["p0", "p1", "p9"]
            h.sql("INSERT INTO events VALUES (4, '2026-01-12')")
            h.advance(hours=2)
            db.run("events")
            assert h.ids() == [3] and h.ids("events_archive") == [1, 2, 4]
    finally:
        server.execute("DROP USER mover@'%'")


def test_a_hold_keeps_its_rows_and_their_partition(h: Harness) -> None:
    _partitioned(h)
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:', ttl_guard = 'off')")
    hold = h.owner.hold("events", "id = 2")
    for _ in range(2):
        _run_later(h)
    assert h.ids() == [2, 3] and "p1" in _leaves(h)
    h.owner.release(hold.id)
    for _ in range(2):
        _run_later(h)
    assert _leaves(h) == ["p9"] and h.ids("events_archive") == [1, 2]


def test_rows_in_subpartitions_are_archived_and_their_partition_stays(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INT, ts DATETIME NOT NULL, PRIMARY KEY (id, ts)) TTL = ts + INTERVAL 1 DAY "
        "PARTITION BY RANGE COLUMNS (ts) SUBPARTITION BY HASH (id) SUBPARTITIONS 2"
        " (PARTITION p1 VALUES LESS THAN ('2026-02-01'), PARTITION p9 VALUES LESS THAN MAXVALUE)"
    )
    h.sql("ALTER TABLE events SET (ttl_partition_drop = 'on', ttl_archive = 'table:', ttl_guard = 'off')")
    h.sql("INSERT INTO events VALUES (1, '2026-01-10'), (2, '2026-01-11'), (3, '2030-01-01')")
    for _ in range(2):
        _run_later(h)
    assert h.ids() == [3] and h.ids("events_archive") == [1, 2]
    assert "p1" in _leaves(h)


def test_rows_of_a_dropped_partition_come_back_into_the_next_one(h: Harness) -> None:
    _partitioned(h)
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:', ttl_guard = 'off')")
    for _ in range(2):
        _run_later(h)
    assert _leaves(h) == ["p9"]
    assert h.owner.restore("events").restored == 2
    assert h.ids() == [1, 2, 3] and h.ids("events_archive") == []


def test_rows_that_no_partition_takes_stop_a_restore(h: Harness) -> None:
    _partitioned(h)
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:', ttl_guard = 'off')")
    _run_later(h)
    h.sql(
        "ALTER TABLE events REORGANIZE PARTITION p1 INTO (PARTITION p0 VALUES LESS THAN ('2026-01-11'),"
        " PARTITION p1 VALUES LESS THAN ('2026-02-01'))"
    )
    h.sql("ALTER TABLE events DROP PARTITION p1, p9")
    with pytest.raises(PolicyConflict, match=r"no partition for some of the rows.* ts from 2026-01-10.* to 2026-01-11"):
        h.owner.restore("events")
    assert h.ids() == [] and h.ids("events_archive") == [1, 2]
    assert [hold for hold in h.owner.holds() if hold.released_at is None] == []
    h.sql("ALTER TABLE events ADD PARTITION (PARTITION p9 VALUES LESS THAN MAXVALUE)")
    assert h.owner.restore("events").restored == 2
