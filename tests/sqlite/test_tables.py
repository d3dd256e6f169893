"""Kinds of SQLite tables, and what users have around them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lapse.errors import LapseError, PolicyConflict, Refused
from lapse.model.job import JobStatus
from lapse.runner.events import BatchDone, NullListener
from tests.conformance.harness import Harness
from tests.conformance.test_preview import make_odd_keys


@pytest.mark.parametrize(
    "definition",
    [
        "id INTEGER PRIMARY KEY, body TEXT) STRICT",
        "id INTEGER PRIMARY KEY, body TEXT) WITHOUT ROWID",
        "id TEXT, body TEXT, PRIMARY KEY (body, id)) WITHOUT ROWID",
        "id REAL, body BLOB, PRIMARY KEY (id DESC, body)) WITHOUT ROWID",
        "id TEXT COLLATE NOCASE, body TEXT, PRIMARY KEY (id, body)) STRICT, WITHOUT ROWID",
        "rowid TEXT, _rowid_ TEXT, id INTEGER, body TEXT)",
        "id INT, body TEXT)",
    ],
)
def test_the_managed_column_works_on_every_kind(h: Harness, definition: str) -> None:
    from datetime import UTC, datetime

    h.clock.set(datetime.now(UTC))
    h.sql(f"CREATE TABLE events ({definition} WITH (ttl_expire_after = '1 hour')".replace(") WITH", ") WITH"))
    for number in range(1, 8):
        h.sql(f"INSERT INTO events (id, body) VALUES ({number}, 'b')")
    h.sql("UPDATE events SET crdb_internal_expiration = NULL WHERE id = 7")
    h.sql(f"UPDATE events SET crdb_internal_expiration = {h.at(days=1)} WHERE id = 6")
    h.sql("UPDATE events SET body = 'c'")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 2)")
    h.run()
    assert len(h.ids()) == 7
    h.advance(hours=2)
    assert h.run_one().counts.deleted == 5
    h.sql("ALTER TABLE events RESET (ttl)")


def test_all_three_row_addresses_taken(h: Harness) -> None:
    h.sql("CREATE TABLE events (rowid TEXT, _rowid_ TEXT, oid TEXT, ts TEXT)")
    with pytest.raises(Refused, match="WITHOUT ROWID"):
        h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")


def test_key_values_of_every_storage_class(h: Harness) -> None:
    h.sql("CREATE TABLE events (k, ts TEXT, PRIMARY KEY (k)) WITHOUT ROWID")
    values = [
        "-9223372036854775808",
        "9223372036854775807",
        "1.5",
        "-0.1",
        "''",
        "'a'",
        "'A'",
        "x''",
        "x'00'",
        "x'ff00'",
    ]
    for i, value in enumerate(values):
        h.sql(f"INSERT INTO events VALUES ({value}, {h.at(days=-2) if i % 2 else h.at()})")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 1)")
    assert h.run_one().counts.deleted == 5
    assert h.rows("SELECT count(*) FROM events") == [(5,)]


def test_row_ids_at_the_ends_of_the_range(h: Harness) -> None:
    h.events()
    for rowid in (-(2**63), -1, 0, 1, 2**62, 2**63 - 1):
        h.insert((rowid, h.at(days=-2)))
    assert h.run_one().counts.deleted == 6
    assert h.ids() == []


def test_a_users_trigger_that_refuses_is_isolated(h: Harness) -> None:
    h.events()
    h.insert(*((i, h.at(days=-2)) for i in range(1, 101)))
    h.sql(
        "CREATE TRIGGER keep BEFORE DELETE ON events WHEN OLD.id IN (13, 77) "
        "BEGIN SELECT RAISE(ABORT, 'kept for the auditors'); END"
    )
    job = h.run_one()
    assert h.ids() == [13, 77]
    assert (job.counts.deleted, job.counts.held, job.counts.errors) == (98, 2, 2)
    assert job.status is JobStatus.FINISHED


def test_a_users_delete_trigger_runs(h: Harness) -> None:
    h.events()
    h.sql("CREATE TABLE log (id INTEGER)")
    h.sql("CREATE TRIGGER logged AFTER DELETE ON events BEGIN INSERT INTO log VALUES (OLD.id); END")
    h.insert(*((i, h.at(days=-2)) for i in range(1, 11)))
    h.run()
    assert h.rows("SELECT count(*) FROM log") == [(10,)]


def test_a_set_default_foreign_key(h: Harness) -> None:
    h.events()
    h.sql("CREATE TABLE child (id INTEGER PRIMARY KEY, e INTEGER DEFAULT 99 REFERENCES events ON DELETE SET DEFAULT)")
    h.insert((1, h.at(days=-2)), (99, h.at()))
    h.sql("INSERT INTO child VALUES (1, 1)")
    h.run()
    assert h.rows("SELECT e FROM child") == [(99,)]


def test_declaring_on_a_referenced_table_without_index_gives_a_notice(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP)")
    h.sql("CREATE TABLE child (e INTEGER REFERENCES events)")
    result = h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    assert "child(e)" in result.notices[0]


def test_a_busy_writer_makes_the_job_wait_not_fail(h: Harness) -> None:
    h.events()
    h.insert(*((i, h.at(days=-2)) for i in range(1, 51)))
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10)")
    path = h.url.removeprefix("sqlite:///")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    from threading import Timer

    class Block(NullListener):
        blocked = False
        waits = 0

        def batch_done(self, event: BatchDone) -> None:
            if not self.blocked:
                self.blocked = True
                other.execute("BEGIN IMMEDIATE")
                Timer(0.3, other.execute, ("COMMIT",)).start()

        def waiting(self, job: object, seconds: float, reason: str, cause: object) -> None:
            assert "locked by another session" in reason
            self.waits += 1

    listener = Block()
    job = h.db.run("events", listener=listener).jobs[0]
    other.close()
    assert job.status is JobStatus.FINISHED
    assert listener.waits > 0
    assert h.ids() == []


@pytest.mark.parametrize("mode", ["wal", "delete", "truncate", "persist"])
def test_journal_modes(h: Harness, mode: str) -> None:
    h.sql(f"PRAGMA journal_mode = {mode}")
    h.events()
    h.insert(*((i, h.at(days=-2)) for i in range(500)))
    h.run()
    assert h.ids() == []
    # More rows than one batch may take.
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 1)")
    h.insert((1, h.at()), (2, h.at()))
    # Without a write-ahead log a long look would hold writers up.
    assert h.run_one().tasks_total == (0 if mode == "wal" else 1)


def test_space_comes_back_where_the_file_allows_it(h: Harness) -> None:
    h.sql("PRAGMA auto_vacuum = INCREMENTAL")
    h.sql("VACUUM")
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP, body TEXT) TTL = ts + INTERVAL 1 DAY")
    moment = h.at(days=-2)
    for start in range(0, 2000, 500):
        h.sql(
            "INSERT INTO events VALUES "
            + ", ".join(f"({i}, {moment}, '{'x' * 400}')" for i in range(start, start + 500))
        )
    path = Path(h.url.removeprefix("sqlite:///"))
    before = path.stat().st_size
    result = h.run()
    assert result.reclaimed_bytes > before / 2
    assert path.stat().st_size < before / 2


def test_advice_where_space_cannot_come_back(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TIMESTAMP, body TEXT) TTL = ts + INTERVAL 1 DAY")
    h.sql("INSERT INTO events VALUES " + ", ".join(f"({i}, {h.at(days=-2)}, '{'x' * 400}')" for i in range(1000)))
    h.run()
    assert any("auto_vacuum is off" in finding.text for finding in h.db.doctor())


def test_a_users_own_view_is_not_overwritten(h: Harness) -> None:
    h.events()
    h.sql("CREATE VIEW events_live AS SELECT 1 AS mine")
    with pytest.raises(PolicyConflict, match="events_live"):
        h.sql("ALTER TABLE events SET (ttl_hide_expired = 'view')")
    assert h.rows("SELECT mine FROM events_live") == [(1,)]
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.rows("SELECT mine FROM events_live") == [(1,)]


def test_the_view_hides_by_every_format(h: Harness) -> None:
    from datetime import UTC, datetime

    h.clock.set(datetime.now(UTC))
    now = int(h.now.timestamp())
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts INTEGER)")
    h.sql(f"INSERT INTO events VALUES (1, {now - 7200}), (2, {now}), (3, NULL)")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 hour''', ttl_hide_expired = 'view')")
    assert h.ids("events_live") == [2, 3]


def test_trigger_dropped_behind_our_back_is_found_and_repaired(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT) WITH (ttl_expire_after = '1 day')")
    with h.db.engine.connection() as connection:
        connection.exec_driver_sql("DROP TRIGGER lapse_events_insert")
    (finding,) = [f for f in h.db.doctor() if f.level == "problem"]
    assert "lapse_events_insert" in finding.text
    assert [f.fixed for f in h.db.doctor(repair=True) if f.level == "problem"] == [True]
    assert not [f for f in h.db.doctor() if f.level == "problem"]


def test_a_column_dropped_behind_our_back_fails_the_job_and_deletes_nothing(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    with h.db.engine.connection() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME COLUMN ts TO created")
    job = h.run_one()
    assert job.status is JobStatus.FAILED
    assert "ts" in (job.reason or "")
    assert h.ids() == [1]


def test_declaration_rolls_back_with_the_users_transaction(h: Harness) -> None:
    with h.db.engine.connection() as connection:
        from lapse import ddl

        connection.exec_driver_sql("BEGIN")
        for statement in ddl.parse(
            "CREATE TABLE events (id INTEGER PRIMARY KEY) WITH (ttl_expire_after = '1 day')", "sqlite"
        ):
            h.db.frontend.execute(connection, statement)
        connection.exec_driver_sql("ROLLBACK")
    with pytest.raises(LapseError):
        h.sql("SELECT * FROM events")
    with pytest.raises(LapseError):
        h.db.policies()


def test_a_catalog_from_the_future_is_refused(h: Harness) -> None:
    from lapse.errors import CatalogTooNew

    h.events()
    h.sql("UPDATE lapse_meta SET value = '999' WHERE name = 'catalog_version'")
    fresh = h.open()
    with pytest.raises(CatalogTooNew, match="999"):
        fresh.run("events")
    with pytest.raises(CatalogTooNew):
        fresh.execute("ALTER TABLE events SET (ttl_expire_after = '1 day')")
    fresh.close()


def test_an_attached_database_is_refused(h: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with pytest.raises(Refused, match="attached"):
        h.sql(
            f"ATTACH '{other}' AS aux; CREATE TABLE aux.t (id INTEGER PRIMARY KEY); "
            "ALTER TABLE aux.t SET (ttl_expire_after = '1 day')"
        )


@pytest.mark.parametrize("action", ["NO ACTION", "RESTRICT"])
@pytest.mark.parametrize(
    "definition",
    [
        "id INTEGER PRIMARY KEY, ts TEXT, parent INTEGER REFERENCES events ON DELETE {})",
        "id INTEGER PRIMARY KEY, ts TEXT, parent INTEGER REFERENCES events ON DELETE {}) WITHOUT ROWID",
        "id INTEGER, part TEXT COLLATE NOCASE DEFAULT 'a', ts TEXT, parent INTEGER, of TEXT DEFAULT 'a',"
        " PRIMARY KEY (id, part), FOREIGN KEY (parent, of) REFERENCES events ON DELETE {}) WITHOUT ROWID",
    ],
)
def test_a_row_that_refers_to_itself_goes_with_itself(h: Harness, definition: str, action: str) -> None:
    h.sql(f"CREATE TABLE events ({definition.format(action)}")
    h.sql(f"INSERT INTO events (id, ts, parent) VALUES (1, {h.at(days=-2)}, 1), (2, {h.at(days=-2)}, NULL)")
    h.sql(f"INSERT INTO events (id, ts, parent) VALUES (3, {h.at()}, 2), (4, {h.at()}, 4)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    assert h.run_one().counts.held == 1
    assert h.ids() == [2, 3, 4]


def test_the_preview_follows_rows_without_row_ids(h: Harness) -> None:
    make_odd_keys(h, " WITHOUT ROWID")
    found = h.owner.preview("events", column="ts", after="1 day")[0].outlook
    assert (found.deleted, found.followed) == (4, True)
    assert [(each.table.name, each.deleted) for each in found.touched] == [("child", 4), ("loose", 8)]
