"""Zones, SQL modes, the days when clocks change, partitions, foreign keys, triggers, comments, copies, accounts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import cycle

import pytest
from sqlalchemy import make_url

from lapse.app import Health, Lapse
from lapse.clock import ManualClock
from lapse.engines.base import Batch, Checkpoint
from lapse.engines.mysql.delete import KeyDeleter
from lapse.errors import LapseError, PolicyConflict, Unsupported, UnsupportedUrl
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus, PathKind
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness
from tests.mysql.numbers import numbers

HOSTILE_MODES = [
    "",
    "ANSI",
    "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
    "ORACLE",
    "TRADITIONAL,NO_ZERO_DATE",
    "PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE,IGNORE_SPACE,NO_UNSIGNED_SUBTRACTION",
]


@pytest.fixture
def restored(server: MariadbServer) -> Iterator[MariadbServer]:
    """Puts the global settings back that a test changes."""
    names = ("time_zone", "sql_mode", "default_storage_engine", "explicit_defaults_for_timestamp", "sql_safe_updates")
    values = server.execute(f"SELECT {', '.join(f'@@global.{name}' for name in names)}")[0]
    yield server
    for name, value in zip(names, values, strict=True):
        server.execute(f"SET GLOBAL {name} = {value!r}")


@pytest.mark.parametrize("zone", ["+13:00", "-12:00"])
def test_the_servers_zone_decides_nothing(h: Harness, restored: MariadbServer, zone: str) -> None:
    restored.execute(f"SET GLOBAL time_zone = '{zone}'")
    with h.open() as db:
        db.execute(
            "CREATE TABLE events (id INT PRIMARY KEY, ts TIMESTAMP(3) NULL, d DATETIME) TTL = ts + INTERVAL 1 DAY"
        )
        rows = f"(1, {h.at(days=-1)}, NULL), (2, {h.at(days=-1, seconds=1)}, NULL)"
        db.execute(f"SET time_zone = '+00:00'; INSERT INTO events VALUES {rows}")
        assert db.run("events").deleted == 1
        db.execute("ALTER TABLE events SET (ttl_time_zone = 'UTC'), TTL = d + INTERVAL 1 DAY")
        db.execute(f"INSERT INTO events VALUES (3, NULL, {h.at(days=-1)}), (4, NULL, {h.at(days=-1, seconds=1)})")
        restored.execute("SET GLOBAL time_zone = '+05:30'")
        assert db.run("events").deleted == 1
    assert h.ids() == [2, 4]


@pytest.mark.parametrize("mode", HOSTILE_MODES)
def test_the_servers_sql_mode_decides_nothing(h: Harness, restored: MariadbServer, mode: str) -> None:
    if mode == "ORACLE" and not h.features.replaces_tables:
        pytest.skip("there is no such mode")
    restored.execute(f"SET GLOBAL sql_mode = '{mode}'", "SET GLOBAL sql_safe_updates = 1")
    restored.execute("SET GLOBAL default_storage_engine = 'MyISAM'")
    with h.open() as db:
        db.execute(
            "CREATE TABLE events (id VARCHAR(9) PRIMARY KEY, ts DATETIME) ENGINE=InnoDB TTL = ts + INTERVAL 1 DAY"
        )
        db.execute(
            f"INSERT INTO events VALUES ('a\\\\b''c', {h.at(days=-2)}), ('\\\\', {h.at(days=-2)}), ('x', {h.at()})"
        )
        assert db.run("events").deleted == 2
        db.execute("CREATE TABLE padded (id CHAR(9) PRIMARY KEY, ts DATETIME) ENGINE=InnoDB TTL = ts + INTERVAL 1 DAY")
        db.execute(f"INSERT INTO padded VALUES ('a', {h.at(days=-2)}), ('a b', {h.at(days=-2)}), ('c', {h.at()})")
        assert db.run("padded").deleted == 2


def test_a_zone_that_changes_in_the_middle_of_a_job_deletes_nothing_early(
    h: Harness, restored: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are made anew after every batch, and the server's zone is another each time."""
    zones = cycle(["+13:00", "-12:00", "SYSTEM"])
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, ts TIMESTAMP NULL, d DATETIME) TTL = ts + INTERVAL 1 DAY")
    h.sql("CREATE TABLE walls (id INT PRIMARY KEY, d DATETIME) TTL = d + INTERVAL 1 DAY")
    h.sql("ALTER TABLE walls SET (ttl_time_zone = 'UTC')")
    at = f"{h.at(days=-1)} + INTERVAL if(seq % 2, 0, 1) SECOND"
    h.sql(f"INSERT INTO events SELECT seq, {at}, NULL FROM {numbers(40)}")
    h.sql(f"INSERT INTO walls SELECT seq, {at} FROM {numbers(40)}")
    step = KeyDeleter.step

    def moved(self: KeyDeleter, limit: int, checkpoint: Checkpoint) -> Batch:
        restored.execute(f"SET GLOBAL time_zone = '{next(zones)}'")
        h.backend.cut_connections(h.url)
        return step(self, limit, checkpoint)

    monkeypatch.setattr(KeyDeleter, "step", moved)
    for table in ("events", "walls"):
        h.sql(f"ALTER TABLE {table} SET (ttl_delete_batch_size = 4, ttl_adaptive = 'off', ttl_guard = 'off')")
        assert h.run_one(table).counts.deleted == 20
        assert h.ids(table) == list(range(2, 41, 2))


def test_a_zone_that_changes_in_the_middle_of_a_job_blocks_times_whose_zone_was_not_said(
    h: Harness, restored: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that come now are twelve hours old, by a clock that the policy knows nothing about."""
    h.clock.set(datetime.now(UTC))
    h.sql("CREATE TABLE walls (id INT PRIMARY KEY, d DATETIME DEFAULT now()) TTL = d + INTERVAL 1 HOUR")
    h.sql("ALTER TABLE walls SET (ttl_delete_batch_size = 4, ttl_adaptive = 'off', ttl_guard = 'off')")
    h.sql(f"INSERT INTO walls SELECT seq, {h.at(days=-1)} FROM {numbers(40)}")
    step = KeyDeleter.step

    def moved(self: KeyDeleter, limit: int, checkpoint: Checkpoint) -> Batch:
        batch = step(self, limit, checkpoint)
        restored.execute("SET GLOBAL time_zone = '-12:00'")
        restored.execute("INSERT IGNORE INTO walls (id) VALUES (100)", database=_name(h))
        return batch

    monkeypatch.setattr(KeyDeleter, "step", moved)
    h.run("walls")
    assert 100 in h.ids("walls")
    (status,) = h.db.status()
    assert status.blocked == BlockCode.COLUMN_CHANGED and "-12:00" in (status.reason or "")


def test_a_value_that_is_no_time_never_expires(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INT PRIMARY KEY, doc JSON) "
        "WITH (ttl_expiration_expression = '(doc->>''at'')::timestamptz')"
    )
    h.sql(
        """INSERT INTO events VALUES (1, '{"at": "2020-01-01 00:00"}'), (2, '{"at": "soon"}'), (3, '{}'), (4, NULL)"""
    )
    assert h.run_one().counts.deleted == 1
    assert h.ids() == [2, 3, 4]


def test_the_zero_date_never_expires(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, ts DATETIME NOT NULL) TTL = ts + INTERVAL 1 DAY")
    server.execute(
        "SET sql_mode = ''", "INSERT INTO events VALUES (1, '0000-00-00'), (2, '2020-01-01')", database=_name(h)
    )
    h.run()
    assert h.ids() == [1]


@pytest.mark.parametrize(
    ("instant", "gone"),
    [
        # Clocks in New York go back at 06:00 UTC: 01:30 is read at 05:30 and again at 06:30.
        ("2026-11-01 05:30:00", []),
        ("2026-11-01 06:29:59", []),
        ("2026-11-01 06:30:00", [1]),
        # They go forward at 07:00 UTC: 02:30 is never read.
        ("2026-03-08 06:59:59", []),
        ("2026-03-08 07:30:00", [2]),
    ],
)
def test_days_on_which_clocks_change(h: Harness, instant: str, gone: list[int]) -> None:
    h.clock.set(datetime.fromisoformat(instant).replace(tzinfo=UTC))
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 SECOND")
    h.sql("ALTER TABLE events SET (ttl_time_zone = 'America/New_York', ttl_expiration_expression = 'ts')")
    day = instant[:10]
    h.sql("INSERT INTO events VALUES (1, '2026-11-01 01:30:00'), (2, '2026-03-08 02:30:00'), (3, '2030-01-01')")
    h.sql(f"DELETE FROM events WHERE date(ts) <> '{day}' AND id < 3")
    h.run()
    assert h.ids() == sorted({3, 1 if day == "2026-11-01" else 2} - set(gone))


@pytest.mark.parametrize("column", ["DATE", "INT", "BIGINT UNSIGNED", "DATETIME(6)", "TIMESTAMP(6) NULL"])
def test_column_types(h: Harness, column: str) -> None:
    h.sql(f"CREATE TABLE events (id INT PRIMARY KEY, ts {column}) TTL = ts + INTERVAL 1 DAY")
    day = {"DATE": ("'2026-03-14'", "'2026-03-15'")}.get(column, ("'2026-03-14 12:00:00'", "'2026-03-14 12:00:01'"))
    if "INT" in column:
        day = ("1773489600", "1773489601")
    h.sql(f"INSERT INTO events VALUES (1, {day[0]}), (2, {day[1]}), (3, NULL)")
    h.run()
    assert h.ids() == [2, 3]


def test_a_generated_column_can_decide(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INT PRIMARY KEY, doc VARCHAR(100), "
        "at DATETIME AS (CAST(json_value(doc, '$.at') AS DATETIME)) VIRTUAL) TTL = at + INTERVAL 1 DAY"
    )
    h.sql("""INSERT INTO events (id, doc) VALUES (1, '{"at": "2026-03-01"}'), (2, '{"at": "2026-04-01"}'), (3, '{}')""")
    h.run()
    assert h.ids() == [2, 3]


@pytest.mark.parametrize("column", ["VARCHAR(20)", "YEAR", "TIME", "DOUBLE"])
def test_other_types_are_refused(h: Harness, column: str) -> None:
    with pytest.raises(Unsupported, match="cannot hold an expiry"):
        h.sql(f"CREATE TABLE events (id INT PRIMARY KEY, ts {column}) TTL = ts + INTERVAL 1 DAY")
    assert h.rows("SHOW TABLES LIKE 'events'") == []


def test_the_index_serves_when_few_have_expired(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INT, k VARCHAR(9), ts DATETIME(3), PRIMARY KEY (id, k), KEY by_ts (ts)) "
        "TTL = ts + INTERVAL 1 DAY"
    )
    h.sql(f"INSERT INTO events SELECT seq, 'a', if(seq % 20, {h.at()}, {h.at(days=-2)}) FROM {numbers(2000)}")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 7, ttl_adaptive = 'off')")
    job = h.run_one()
    assert (job.path.kind, job.path.index, job.counts.deleted) == (PathKind.INDEX, "by_ts", 100)


def _partitioned(h: Harness, by: str, column: str, bounds: list[str], extra: str = "") -> None:
    parts = ", ".join(f"PARTITION p{n} VALUES LESS THAN ({bound})" for n, bound in enumerate(bounds))
    h.sql(
        f"CREATE TABLE events (id INT, ts {column}, PRIMARY KEY (id, ts)) TTL = ts + INTERVAL 1 DAY "
        f"PARTITION BY {by} ({parts}, PARTITION p9 VALUES LESS THAN MAXVALUE)"
    )
    if extra:
        h.sql(f"ALTER TABLE events SET ({extra})")


def test_every_partition_is_a_physical_table(h: Harness) -> None:
    _partitioned(h, "RANGE (id)", "DATETIME NOT NULL", ["10", "20"])
    h.sql(f"INSERT INTO events SELECT seq, if(seq % 2, {h.at(days=-2)}, {h.at()}) FROM {numbers(30)}")
    jobs = {job.table.partition: job.counts.deleted for job in h.run().jobs}
    assert jobs == {"p0": 5, "p1": 5, "p9": 5}
    assert len(h.ids()) == 15


@pytest.mark.parametrize(
    ("by", "column", "bounds"),
    [
        ("RANGE COLUMNS (ts)", "DATETIME NOT NULL", ["'2026-01-01'", "'2026-03-14'", "'2026-03-15'"]),
        ("RANGE (to_days(ts))", "DATETIME NOT NULL", ["740000", "to_days('2026-03-14')", "to_days('2026-03-15')"]),
        ("RANGE (unix_timestamp(ts))", "TIMESTAMP NOT NULL", ["1600000000", "1773446400", "1773532800"]),
        ("RANGE (ts)", "BIGINT NOT NULL", ["1600000000", "1773446400", "1773532800"]),
    ],
)
def test_whole_partitions_are_dropped(h: Harness, by: str, column: str, bounds: list[str]) -> None:
    _partitioned(h, by, column, bounds, "ttl_partition_drop = 'on'")
    old, mixed, new = "'2026-03-01'", "'2026-03-14 09:00:00'", "'2026-03-15 09:00:00'"
    if "BIGINT" in column:
        old, mixed, new = "1770000000", "1773478800", "1773565200"
    h.sql(f"INSERT INTO events VALUES (1, {old}), (2, {old}), (3, {mixed}), (4, {new})")
    jobs = {job.table.partition: (job.path.kind, job.counts.deleted) for job in h.run().jobs}
    assert jobs["p1"] == (PathKind.PARTITION, 2)
    assert jobs["p2"] == (PathKind.PHYSICAL, 1)
    assert h.ids() == [4]
    left = {
        row[0] for row in h.rows("SELECT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_NAME = 'events'")
    }
    assert left >= {"p2", "p9"} and "p1" not in left
    assert all(job.status is JobStatus.FINISHED for job in h.run().jobs)


def test_the_myrocks_partition_comment_on_innodb(h: Harness) -> None:
    h.sql(
        "CREATE TABLE t1 (c1 BIGINT, c2 BIGINT UNSIGNED NOT NULL, PRIMARY KEY (c1)) "
        'COMMENT="ttl_duration=60;p1_ttl_duration=100;p1_ttl_col=c2;p2_ttl_duration=5000;" PARTITION BY LIST (c1) '
        "(PARTITION p0 VALUES IN (1), PARTITION p1 VALUES IN (2, 3), PARTITION p2 VALUES IN (4))"
    )
    h.clock.set(datetime.now(UTC))
    seconds = int(h.now.timestamp())
    h.sql(f"INSERT INTO t1 VALUES (1, 0), (2, {seconds - 200}), (3, {seconds}), (4, 0)")
    assert {job.table.partition: job.counts.deleted for job in h.run("t1").jobs} == {"p0": 0, "p1": 1, "p2": 0}
    h.advance(minutes=3)
    assert {job.table.partition: job.counts.deleted for job in h.run("t1").jobs} == {"p0": 1, "p1": 1, "p2": 0}
    h.advance(hours=2)
    assert h.run("t1").deleted == 1


def test_referenced_rows_are_held_and_the_rest_goes(h: Harness) -> None:
    h.events()
    h.sql(
        "CREATE TABLE child (id INT PRIMARY KEY, e BIGINT, FOREIGN KEY (e) REFERENCES events (id) ON DELETE RESTRICT)"
    )
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, {h.at(days=-2)} FROM {numbers(50)}")
    h.sql("INSERT INTO child VALUES (1, 7), (2, 8)")
    job = h.run_one()
    assert (job.counts.deleted, job.counts.held) == (48, 2)
    assert h.ids() == [7, 8]


def test_cascades_shrink_the_batch(h: Harness) -> None:
    h.events()
    h.sql("CREATE TABLE child (id INT PRIMARY KEY, e BIGINT, FOREIGN KEY (e) REFERENCES events (id) ON DELETE CASCADE)")
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, {h.at(days=-2)} FROM {numbers(20)}")
    h.sql(f"INSERT INTO child SELECT seq, seq % 20 + 1 FROM {numbers(2000)}")
    h.sql("ANALYZE TABLE child, events")
    job = h.run_one()
    assert (job.counts.deleted, job.counts.batches >= 10) == (20, True)
    assert h.rows("SELECT count(*) FROM child") == [(0,)]


def test_a_trigger_that_objects_holds_its_row_only(h: Harness, server: MariadbServer) -> None:
    h.events()
    h.sql("CREATE TABLE gone (n INT)")
    h.sql("INSERT INTO gone VALUES (0)")
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, {h.at(days=-2)} FROM {numbers(20)}")
    server.execute(
        "CREATE TRIGGER keep BEFORE DELETE ON events FOR EACH ROW BEGIN IF OLD.id = 13 THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF; UPDATE gone SET n = n + 1; END",
        database=_name(h),
    )
    job = h.run_one()
    assert (job.counts.deleted, job.counts.held) == (19, 1)
    assert h.rows("SELECT n FROM gone") == [(19,)]


def test_the_live_view_in_any_session(h: Harness, server: MariadbServer) -> None:
    h.clock.set(datetime.now(UTC))
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, ts TIMESTAMP(3) NULL, d DATETIME(3)) TTL = ts + INTERVAL 1 HOUR")
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'view')")
    h.sql(f"INSERT INTO events (id, ts) VALUES (1, {h.at(hours=-1, seconds=-1)}), (2, {h.at(minutes=-50)}), (3, NULL)")
    for zone in ("+13:00", "-12:00"):
        rows = server.execute(f"SET time_zone = '{zone}'", "SELECT id FROM events_live ORDER BY id", database=_name(h))
        assert [row[0] for row in rows] == [2, 3]
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.rows("SHOW TABLES LIKE 'events_live'") == []


def test_the_managed_column_is_hidden_and_added_without_touching_rows(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, body VARCHAR(20))")
    h.sql(f"INSERT INTO events SELECT seq, 'x' FROM {numbers(1000)}")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '5 minutes')")
    assert h.rows("SELECT * FROM events WHERE id = 1") == [(1, "x")]
    h.sql("INSERT INTO events VALUES (1001, 'y')")
    assert h.rows("SELECT count(crdb_internal_expiration) FROM events") == [(1001,)]
    assert "INVISIBLE" in str(h.rows("SHOW CREATE TABLE events"))


def test_a_failed_declaration_leaves_nothing_behind(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, ts DATETIME)")
    h.sql("CREATE VIEW events_live AS SELECT 1 AS one")
    before = h.rows("SHOW CREATE TABLE events")
    with pytest.raises(PolicyConflict):
        h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour', ttl_hide_expired = 'view')")
    assert h.rows("SHOW CREATE TABLE events") == before


def test_an_install_that_fails_half_way_is_undone(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LapseError("no trigger today")

    h.sql("CREATE TABLE old (id INT PRIMARY KEY)")
    monkeypatch.setattr("lapse.engines.mysql.managed.create_triggers", fail)
    with pytest.raises(LapseError, match="no trigger today"):
        h.sql("ALTER TABLE old SET (ttl_expire_after = '1 hour')")
    with pytest.raises(LapseError, match="no trigger today"):
        h.sql("CREATE TABLE new (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour')")
    assert "crdb_internal" not in str(h.rows("SHOW CREATE TABLE old"))
    assert h.rows("SHOW TABLES LIKE 'new'") == []
    assert h.db.policies() == []


def test_a_restored_copy_is_disarmed(h: Harness, server: MariadbServer) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    h.run()
    h.insert((2, h.at(days=-2)))
    name = f"{_name(h)}_copy"
    server.execute(f"CREATE DATABASE {name}")
    try:
        for table, kind in server.execute("SHOW FULL TABLES", database=_name(h)):
            if kind == "BASE TABLE":
                server.execute(f"CREATE TABLE {name}.{table} LIKE {table}", database=_name(h))
                server.execute(f"INSERT INTO {name}.{table} SELECT * FROM {table}", database=_name(h))
        with Lapse(h.url.replace(_name(h), name), clock=h.clock) as db:
            db.run()
            (status,) = db.status()
            assert status.blocked is BlockCode.DATABASE_COPIED
            (health,) = db.health()
            assert (health.health, health.is_failing) == (Health.BLOCKED, True)
            assert db.execute("SELECT id FROM events").rows == ((2,),)
            db.resume("events")
            assert db.run("events").deleted == 1
    finally:
        server.execute(f"DROP DATABASE {name}")
    assert h.ids() == [2]
    assert h.run_one().counts.deleted == 1


def test_an_account_learns_what_it_lacks(h: Harness, server: MariadbServer) -> None:
    h.events()
    name = _name(h)
    server.execute(
        "DROP USER IF EXISTS worker@'%'", "CREATE USER worker@'%'", f"GRANT SELECT ON {name}.* TO worker@'%'"
    )
    with Lapse(h.url.replace("root@", "worker@"), clock=h.clock) as db:
        fixes = [finding.fix for finding in db.doctor() if finding.level == "problem"]
        assert f"GRANT DELETE ON `{name}`.`events` TO `worker`@`%`;" in fixes
        for fix in fixes:
            server.execute(str(fix).rstrip(";"))
    with Lapse(h.url.replace("root@", "worker@"), clock=h.clock) as db:
        h.insert((1, h.at(days=-2)))
        assert [finding for finding in db.doctor() if finding.level == "problem"] == []
        assert db.run("events").deleted == 1
    server.execute("DROP USER worker@'%'")


def test_the_url_names_what_is_wrong(h: Harness) -> None:
    for url, words in (
        ("mysql://root@127.0.0.1/", "names no database"),
        ("mysql+mysqldb://root@127.0.0.1/x", "PyMySQL"),
        (f"{h.url}?lapse_binlog=maybe", "must be on or off"),
    ):
        with pytest.raises(UnsupportedUrl, match=words):
            Lapse(url)
    with Lapse(h.url.replace("mysql:", "mariadb+pymysql:") + "?lapse_binlog=off", clock=ManualClock()) as db:
        assert db.execute("SELECT 'a%b' LIKE 'a%'").rows == ((1,),)


def _name(h: Harness) -> str:
    return str(make_url(h.url).database)
