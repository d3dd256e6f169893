"""MyRocks's own TTL: installed, read back, driven and watched."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

import pytest

from lapse.app import Lapse
from lapse.app.records import job_record
from lapse.errors import LapseError, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus, PathKind
from tests.mysql.conftest import MovableServer

Open = Callable[[], Lapse]
EXPLICIT = (
    "CREATE TABLE t1 (a bigint(20) NOT NULL, b int NOT NULL, ts bigint(20) UNSIGNED NOT NULL, PRIMARY KEY (a), "
    "KEY kb (b)) ENGINE=rocksdb COMMENT='ttl_duration=3600;ttl_col=ts;'"
)
OLD = 1_577_836_800
"""2020-01-01. A number as small as 1 is not taken for a time, and never expires."""


def _durations(server: MovableServer, db: Lapse) -> dict[str, int]:
    rows = server.execute(
        "SELECT coalesce(PARTITION_NAME, ''), max(TTL_DURATION) FROM information_schema.ROCKSDB_DDL "
        f"WHERE TABLE_SCHEMA = '{db.engine.database.url.database}' AND INDEX_NAME = 'PRIMARY' GROUP BY 1"
    )
    return {str(name): int(str(seconds)) for name, seconds in rows if int(str(seconds))}


def _entries(server: MovableServer, db: Lapse) -> dict[str, int]:
    """Rows in the files, seen or not."""
    rows = server.execute(
        "SELECT d.PARTITION_NAME, sum(m.NUM_ROWS) FROM information_schema.ROCKSDB_DDL d "
        "JOIN information_schema.ROCKSDB_INDEX_FILE_MAP m ON m.COLUMN_FAMILY = d.COLUMN_FAMILY "
        f"AND m.INDEX_NUMBER = d.INDEX_NUMBER WHERE d.TABLE_SCHEMA = '{db.engine.database.url.database}' GROUP BY 1"
    )
    return {str(name): int(str(count)) for name, count in rows}


def test_expired_rows_leave_the_files(rocks: Open, rocks_server: MovableServer) -> None:
    db = rocks()
    db.execute(EXPLICIT)
    db.execute("INSERT INTO t1 SELECT seq, seq, unix_timestamp() - if(seq % 2, 0, 4000) FROM seq_1_to_1000")
    assert db.execute("SELECT count(*) FROM t1").rows == ((500,),)
    (first,) = db.run("t1").jobs
    assert (first.status, first.path.kind, first.counts.deleted) == (JobStatus.FINISHED, PathKind.NATIVE, 500)
    rocks_server.move("+2h")
    assert db.execute("SELECT count(*) FROM t1").rows == ((0,),)
    held = db.run("t1")
    assert held.jobs == () and "ahead" in held.skipped[0].reason
    assert db.confirm_clock()
    (second,) = db.run("t1").jobs
    assert (second.counts.deleted, second.counts.skipped) == (500, 0)
    (status,) = db.status()
    assert status.native["Rocksdb_rows_expired"] >= 2000
    # MyRocks counts entries of its files, so nobody is told that so many rows went.
    assert second.estimated and job_record(second)["estimated"] is True


def test_a_row_lives_until_its_last_second(rocks: Open, rocks_server: MovableServer) -> None:
    db = rocks()
    db.execute(EXPLICIT)
    rocks_server.move("@2030-01-01 00:00:00")
    db.execute("INSERT INTO t1 VALUES (1, 1, unix_timestamp() - 3500), (2, 2, unix_timestamp() - 3700)")
    assert [row[0] for row in db.execute("SELECT a FROM t1").rows] == [1]


def test_the_implicit_time_needs_no_column(rocks: Open, rocks_server: MovableServer) -> None:
    db = rocks()
    db.execute("CREATE TABLE t1 (a bigint(20) NOT NULL, PRIMARY KEY (a)) ENGINE=rocksdb COMMENT='ttl_duration=60;'")
    db.execute("INSERT INTO t1 VALUES (1), (2)")
    assert db.run("t1").deleted == 0
    rocks_server.move("+61s")
    (job,) = db.run("t1").jobs
    assert (job.path.kind, job.counts.deleted) == (PathKind.NATIVE, 2)
    assert "crdb_internal_expiration" not in str(db.execute("SHOW COLUMNS FROM t1").rows)
    assert all(finding.level != "problem" for finding in db.doctor())


def test_durations_by_partition(rocks: Open, rocks_server: MovableServer) -> None:
    db = rocks()
    db.execute(
        "CREATE TABLE t1 (c1 BIGINT, c2 BIGINT UNSIGNED NOT NULL, name VARCHAR(25) NOT NULL, event DATE, "
        "PRIMARY KEY (`c1`) COMMENT 'custom_p0_cfname=foo;custom_p1_cfname=bar;custom_p2_cfname=baz;') ENGINE=ROCKSDB "
        'COMMENT="ttl_duration=1;custom_p1_ttl_duration=100;custom_p1_ttl_col=c2;custom_p2_ttl_duration=5000;" '
        "PARTITION BY LIST(c1) (PARTITION custom_p0 VALUES IN (1, 2, 3), PARTITION custom_p1 VALUES IN (4, 5, 6), "
        "PARTITION custom_p2 VALUES IN (7, 8, 9))"
    )
    assert _durations(rocks_server, db) == {"custom_p0": 1, "custom_p1": 100, "custom_p2": 5000}
    db.execute("INSERT INTO t1 SELECT seq, unix_timestamp(), 'x', NULL FROM seq_1_to_9")
    rocks_server.move("+50s")
    deleted = {job.table.partition: job.counts.deleted for job in db.run("t1").jobs}
    # MyRocks may be quicker, with a compaction of its own.
    assert deleted.pop("custom_p0") in (0, 3)
    assert deleted == {"custom_p1": 0, "custom_p2": 0}
    assert _entries(rocks_server, db) == {"custom_p1": 3, "custom_p2": 3}
    rocks_server.move("+200s")
    db.run("t1")
    assert _entries(rocks_server, db) == {"custom_p2": 3}
    assert db.execute("SELECT count(*) FROM t1").rows == ((3,),)


def test_ttl_clause_becomes_a_comment_and_goes_again(rocks: Open, rocks_server: MovableServer) -> None:
    db = rocks()
    db.execute(
        "CREATE TABLE t1 (a BIGINT PRIMARY KEY, ts BIGINT UNSIGNED NOT NULL) ENGINE=ROCKSDB COMMENT='sessions' "
        "TTL = ts + INTERVAL 1 HOUR"
    )
    assert "COMMENT='sessions;ttl_duration=3600;ttl_col=ts;'" in str(db.execute("SHOW CREATE TABLE t1").rows)
    assert _durations(rocks_server, db) == {"": 3600}
    db.execute("ALTER TABLE t1 TTL = ts + INTERVAL 2 HOUR")
    assert _durations(rocks_server, db) == {"": 7200}
    db.execute("ALTER TABLE t1 RESET (ttl)")
    assert _durations(rocks_server, db) == {}
    assert "COMMENT='sessions'" in str(db.execute("SHOW CREATE TABLE t1").rows)


@pytest.mark.parametrize(
    ("columns", "ttl", "reason"),
    [
        ("ts BIGINT UNSIGNED NOT NULL", "TTL = ts + INTERVAL 1 MONTH", "whole seconds"),
        ("ts TIMESTAMP NOT NULL", "TTL = ts + INTERVAL 1 HOUR", "BIGINT UNSIGNED"),
        ("ts BIGINT NOT NULL", "TTL = ts + INTERVAL 1 HOUR", "BIGINT UNSIGNED"),
        ("ts BIGINT UNSIGNED", "TTL = ts + INTERVAL 1 HOUR", "NOT NULL"),
        (
            "ts BIGINT UNSIGNED NOT NULL",
            "WITH (ttl_expiration_expression = 'if(a > 3, to_timestamp(ts), NULL)')",
            "expr",
        ),
    ],
)
def test_what_myrocks_cannot_express_is_lapses_job(rocks: Open, columns: str, ttl: str, reason: str) -> None:
    db = rocks()
    notices = db.execute(f"CREATE TABLE t1 (a BIGINT PRIMARY KEY, {columns}) ENGINE=ROCKSDB {ttl}").notices
    assert any(reason in notice and "Lapse's job" in notice for notice in notices)
    is_number = "BIGINT" in columns
    old, new = (str(OLD), "unix_timestamp() + 10000") if is_number else (f"from_unixtime({OLD})", "now()")
    db.execute(f"INSERT INTO t1 VALUES (5, {old}), (6, {new}), (7, {1 if is_number else new})")
    (job,) = db.run("t1").jobs
    assert (job.path.kind, job.counts.deleted) == (PathKind.PHYSICAL, 1)
    assert db.execute("SELECT a FROM t1").rows == ((6,), (7,))


@pytest.mark.parametrize(
    "comment",
    [
        "ttl_duration=-1;ttl_col=ts;",
        "ttl_duration=0;ttl_col=ts;",
        "ttl_duration=99999999999999999999;ttl_col=ts;",
        "ttl_duration=;ttl_col=ts;",
        "ttl_duration=1.5;ttl_col=ts;",
        "ttl_duration=1; ttl_col=ts;",
        "ttl_duration =1;ttl_col=ts;",
        "TTL_DURATION=1;ttl_col=ts;",
        "TTL_DURATION=1;",
        "ttl_duration=1;ttl_col=nope;",
        "ttl_duration=1;ttl_col=ts;nopart_ttl_duration=5;",
        "ttl_duration=60;ttl_duration=5;ttl_col=ts;",
        "ttl_duration=60;ttl_col=ts;ttl_col=a;",
        "ttl_col=ts;",
        'ttl_duration="1";ttl_col=ts;',
        "ttl_duration=60;ttl_col=ts ;",
    ],
)
def test_comments_that_myrocks_misreads_are_refused(rocks: Open, comment: str) -> None:
    db = rocks()
    with pytest.raises(LapseError):
        db.execute(
            f"CREATE TABLE t1 (a BIGINT PRIMARY KEY, ts BIGINT UNSIGNED NOT NULL) ENGINE=ROCKSDB COMMENT='{comment}'"
        )
    assert db.execute("SHOW TABLES LIKE 't1'").rows == ()


def test_a_unique_key_is_warned_about(rocks: Open) -> None:
    notices = (
        rocks()
        .execute(
            "CREATE TABLE t1 (a BIGINT PRIMARY KEY, u INT UNIQUE, ts BIGINT UNSIGNED NOT NULL DEFAULT 0) "
            "ENGINE=ROCKSDB COMMENT='ttl_duration=60;ttl_col=ts;'"
        )
        .notices
    )
    assert any("unique key u" in notice for notice in notices)
    assert any("default 0" in notice for notice in notices)


def test_switched_off_ttl_stops_the_job_with_a_reason(rocks: Open, rocks_server: MovableServer) -> None:
    db = rocks()
    db.execute(EXPLICIT)
    rocks_server.execute("SET GLOBAL rocksdb_enable_ttl_read_filtering = OFF")
    try:
        (job,) = db.run("t1").jobs
    finally:
        rocks_server.execute("SET GLOBAL rocksdb_enable_ttl_read_filtering = ON")
    assert job.status is JobStatus.FAILED
    assert "rocksdb_enable_ttl_read_filtering is OFF" in (job.reason or "")


def test_rows_that_are_archived_are_lapses_job(rocks: Open, rocks_server: MovableServer) -> None:
    """MyRocks would delete them and keep nothing: its own TTL ends before the first of them is archived."""
    db = rocks()
    db.execute(EXPLICIT)
    assert _durations(rocks_server, db)
    # MyRocks copies the table to end its TTL. The copy has a later time of creation, in whole seconds of the file
    # system's clock, and is still the table.
    sleep(1.1)
    notices = db.execute("ALTER TABLE t1 SET (ttl_archive = 'table:', ttl_guard = 'off')").notices
    assert any("archives no rows" in notice for notice in notices)
    assert not _durations(rocks_server, db)
    db.execute(f"INSERT INTO t1 VALUES (1, 1, {OLD}), (2, 2, unix_timestamp())")
    (job,) = db.run("t1").jobs
    assert (job.path.kind, job.counts.deleted) == (PathKind.PHYSICAL, 1)
    assert db.execute("SELECT a, lapse_job FROM t1_archive").rows == ((1, job.id),)
    assert db.undo(job.id).restored == 1


def test_another_table_is_not_taken_for_it_when_its_rows_become_lapses_job(
    rocks: Open, rocks_server: MovableServer
) -> None:
    db = rocks()
    db.execute(EXPLICIT)
    db.execute("INSERT INTO t1 VALUES (1, 1, unix_timestamp())")
    assert db.run("t1").jobs
    sleep(1.1)
    database = str(db.engine.database.url.database)
    rocks_server.execute("DROP TABLE t1", EXPLICIT, database=database)
    db.execute("ALTER TABLE t1 SET (ttl_archive = 'table:', ttl_guard = 'off')")
    db.execute(f"INSERT INTO t1 VALUES (1, 1, {OLD})")
    assert db.run("t1").deleted == 0
    (health,) = db.health()
    assert health.blocked is BlockCode.TABLE_REPLACED
    db.resume("t1")
    assert db.run("t1").deleted == 1


def test_a_locked_row_does_not_hold_up_lapses_job(rocks: Open, rocks_server: MovableServer) -> None:
    """MyRocks knows no SKIP LOCKED: the row is isolated, passed by, and taken by the next run."""
    db = rocks()
    db.execute("CREATE TABLE t1 (a INT PRIMARY KEY, ts DATETIME) ENGINE=ROCKSDB TTL = ts + INTERVAL 1 DAY")
    db.execute("ALTER TABLE t1 SET (ttl_guard = 'off', ttl_delete_batch_size = 4, ttl_adaptive = 'off')")
    db.execute("INSERT INTO t1 SELECT seq, '2020-01-01' FROM seq_1_to_12")
    with rocks_server.connect(db.engine.database.url.database) as holder, holder.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT * FROM t1 WHERE a = 3 FOR UPDATE")
        (job,) = db.run("t1").jobs
        cursor.execute("ROLLBACK")
    assert (job.status, job.counts.deleted, job.counts.skipped) == (JobStatus.INCOMPLETE, 11, 1)
    assert db.run("t1").deleted == 1


def test_the_same_comment_on_innodb_is_lapses_job(rocks: Open) -> None:
    db = rocks()
    db.execute(EXPLICIT.replace("ENGINE=rocksdb", "ENGINE=InnoDB"))
    db.execute(f"INSERT INTO t1 VALUES (1, 1, {OLD}), (2, 2, unix_timestamp()), (3, 3, 1)")
    (job,) = db.run("t1").jobs
    assert (job.path.kind, job.counts.deleted) == (PathKind.PHYSICAL, 1)
    assert db.execute("SELECT a FROM t1").rows == ((2,), (3,))


def test_a_pause_does_not_stop_myrocks_and_says_so(rocks: Open) -> None:
    db = rocks()
    db.execute(EXPLICIT)
    assert "MyRocks goes on" in " ".join(db.execute("ALTER TABLE t1 SET (ttl_pause = true)").notices)
    db.execute("INSERT INTO t1 VALUES (1, 1, unix_timestamp() - 4000)")
    assert db.execute("SELECT count(*) FROM t1").rows == ((0,),)


def test_holds_are_not_for_rows_that_the_engine_deletes(rocks: Open) -> None:
    db = rocks()
    db.execute(EXPLICIT)
    with pytest.raises(Unsupported, match="MyRocks"):
        db.hold("t1", "b = 3")
    assert db.holds(ended=True) == []
    # Held before it has a policy: then Lapse's jobs delete the others.
    db.execute("CREATE TABLE t2 (a bigint PRIMARY KEY, ts bigint UNSIGNED NOT NULL) ENGINE=rocksdb")
    db.hold("t2", "a = 2")
    result = db.execute("ALTER TABLE t2 TTL = ts + INTERVAL 1 HOUR, COMMENT = 'ours'")
    assert any("holds" in notice for notice in result.notices)
    db.execute(f"INSERT INTO t2 VALUES (1, {OLD}), (2, {OLD})")
    (job,) = db.run("t2", confirm=True).jobs
    assert (job.status, job.path.kind) == (JobStatus.FINISHED, PathKind.PHYSICAL)
    assert db.execute("SELECT a FROM t2").rows == ((2,),)
