"""Archives on MariaDB and MySQL: every type value for value, locks, and what others do to the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import sleep

import pytest
from sqlalchemy import Connection, ExceptionContext, event
from sqlalchemy.engine import Engine

from lapse.app import Lapse
from lapse.errors import InvalidValue, PolicyConflict, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import PathKind
from lapse.runner.events import BatchDone, NullListener
from tests.conformance.harness import Harness

ARCHIVE = "ALTER TABLE events SET (ttl_archive = 'table:', ttl_guard = 'off')"

TYPES = {
    "a": ("TINYINT UNSIGNED", "255"),
    "b": ("BIGINT UNSIGNED", "18446744073709551615"),
    "c": ("INT(5) ZEROFILL", "42"),
    "d": ("DECIMAL(65,30)", "'-12345678901234567890123456789012345.123456789012345678901234567890'"),
    "e": ("FLOAT", "1.5e-30"),
    "f": ("DOUBLE", "1.7976931348623157e308"),
    "g": ("BIT(13)", "b'1010101010101'"),
    "h": ("DATE", "'0000-00-00'"),
    "i": ("DATETIME(6)", "'1000-01-01 00:00:00.123456'"),
    "j": ("TIMESTAMP(3) NULL", "'2030-03-31 02:30:00.123'"),
    "k": ("TIME(6)", "'-838:59:58.999999'"),
    "l": ("YEAR", "2155"),
    "m": ("CHAR(5) CHARACTER SET latin1 COLLATE latin1_german2_ci", "'äb'"),
    "n": ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "'ä😀 '"),
    "o": ("BINARY(4)", "x'00ff'"),
    "p": ("BLOB", "x'00ff00'"),
    "q": ("LONGTEXT", "'100% of {it}'"),
    "r": ("ENUM('it''s', 'b,c')", "'it''s'"),
    "s": ("SET('x','y','z')", "'x,z'"),
    "t": ("JSON", "'{\"a\": [1, null]}'"),
    "u": ("POINT", "ST_GeomFromText('POINT(1 2)')"),
    'odd `%s` "name"': ("INT NOT NULL", "7"),
}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _rows(h: Harness, table: str) -> list[tuple[object, ...]]:
    exact = ", ".join(f"HEX({_quoted(name)}), {_quoted(name)} + 0" for name in TYPES if name not in "uqtnmrs")
    texts = ", ".join(f"HEX({_quoted(name)})" for name in TYPES)
    with h.client() as client:
        client.exec_driver_sql("SET time_zone = '+00:00'")
        sql = f"SELECT id, ts, twice, thrice, {texts}, {exact} FROM {table} ORDER BY id"
        return [tuple(row) for row in client.exec_driver_sql(sql)]


def test_every_type_goes_and_comes_back_value_for_value(h: Harness) -> None:
    columns = ", ".join(f"{_quoted(name)} {kind}" for name, (kind, _) in TYPES.items())
    with h.client() as client:
        client.exec_driver_sql("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
        client.exec_driver_sql(
            f"CREATE TABLE events (id BIGINT AUTO_INCREMENT PRIMARY KEY, ts DATETIME, {columns},"
            " twice INT GENERATED ALWAYS AS (a * 2) STORED, thrice INT GENERATED ALWAYS AS (a * 3) VIRTUAL)"
        )
        named = ", ".join(_quoted(name) for name in TYPES)
        values = ", ".join(value for _, value in TYPES.values())
        client.exec_driver_sql(f"INSERT INTO events (id, ts, {named}) VALUES (0, '2020-01-01', {values})")
        odd = _quoted('odd `%s` "name"')
        client.exec_driver_sql(f"INSERT INTO events (id, ts, {odd}) VALUES (5, '2020-01-01', 1)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(ARCHIVE)
    before = _rows(h, "events")
    assert h.db.run("events").deleted == 2
    assert _rows(h, "events_archive") == before
    done = h.owner.restore("events")
    assert (done.restored, done.refused, done.reason) == (2, 0, None)
    assert _rows(h, "events") == before


def _expired(h: Harness, more: str = "") -> None:
    h.sql(f"CREATE TABLE events (id BIGINT PRIMARY KEY, ts DATETIME, note VARCHAR(20)) {more}")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(ARCHIVE)
    values = ", ".join(f"({i}, '2020-01-01', '{i}')" for i in range(1, 41))
    h.sql(f"INSERT INTO events VALUES {values}")


@pytest.mark.parametrize(
    "attack",
    [
        "CREATE TRIGGER t BEFORE INSERT ON events_archive FOR EACH ROW SET NEW.note = 'x'",
        "ALTER TABLE events_archive MODIFY note VARCHAR(5)",
        "ALTER TABLE events_archive MODIFY note VARCHAR(20) NOT NULL",
        "ALTER TABLE events_archive ADD CONSTRAINT five CHECK (id > 5)",
        "ALTER TABLE events MODIFY note VARCHAR(30)",
        "CREATE TABLE child (event BIGINT, FOREIGN KEY (event) REFERENCES events (id) ON DELETE SET NULL)",
    ],
)
def test_what_could_refuse_change_or_lose_a_row_blocks(h: Harness, attack: str) -> None:
    _expired(h)
    with h.client() as client:
        client.exec_driver_sql(attack)
    (skip,) = h.db.run("events").skipped
    assert skip.blocked is BlockCode.PARTS_MISSING
    assert len(h.ids()) == 40 and h.ids("events_archive") == []
    h.owner.hold("events", "id = 1")


def test_rows_that_another_session_has_locked_stay_where_they_are(h: Harness) -> None:
    _expired(h)
    with h.client() as client:
        client.exec_driver_sql("BEGIN")
        client.exec_driver_sql("UPDATE events SET note = 'locked' WHERE id IN (7, 8)")
        h.db.run("events")
        assert h.ids() == [7, 8] and len(h.ids("events_archive")) == 38
        client.exec_driver_sql(f"UPDATE events SET ts = {h.at()} WHERE id = 7")
        client.exec_driver_sql("COMMIT")
    h.db.run("events")
    assert h.ids() == [7]
    assert h.rows("SELECT note FROM events_archive WHERE id = 8") == [("locked",)]
    assert len(h.ids("events_archive")) == 39


@contextmanager
def _refused() -> Iterator[list[str]]:
    """Statements about the archive that the server refuses meanwhile."""
    found: list[str] = []

    def note(context: ExceptionContext) -> None:
        if "events_archive" in (context.statement or ""):
            found.append(str(context.original_exception))

    event.listen(Engine, "handle_error", note)
    try:
        yield found
    finally:
        event.remove(Engine, "handle_error", note)


@contextmanager
def _after_a_copy(act: Callable[[], object]) -> Iterator[None]:
    """Acts once, between the two statements of a batch."""
    acted = Event()

    def look(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO `events_archive`" in statement and not acted.is_set():
            acted.set()
            act()

    event.listen(Engine, "after_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(Engine, "after_cursor_execute", look)
    assert acted.is_set()


@contextmanager
def _numbers_taken(h: Harness, seconds: float) -> Iterator[None]:
    """Another session copies into the archive, for so long: to no other does MariaDB give numbers meanwhile."""
    h.sql("CREATE TABLE pace (n INT PRIMARY KEY)")
    h.sql("INSERT INTO pace VALUES (1), (2)")

    def copy() -> None:
        with h.client() as client:
            client.exec_driver_sql(
                f"INSERT INTO events_archive (id) SELECT if(n = 2, sleep({seconds}), 0) FROM pace ORDER BY n"
            )

    thread = Thread(target=copy)
    thread.start()
    sleep(0.1)
    try:
        yield
    finally:
        thread.join()


def test_copies_of_two_tasks_wait_for_each_other(h: Harness) -> None:
    """MariaDB lets one statement at a time copy into a table with AUTO_INCREMENT."""
    _expired(h)
    with _refused() as refused, _numbers_taken(h, seconds=0.6):
        done = h.db.run("events")
    assert done.deleted == 40 and refused == []
    assert h.ids() == [] and len(h.ids("events_archive")) == 42


def test_a_long_copy_of_a_person_delays_a_job_and_does_not_fail_it(h: Harness) -> None:
    _expired(h)
    with _numbers_taken(h, seconds=1.6):
        done = h.db.run("events")
    assert done.deleted == 40 and [str(job.status) for job in done.jobs] == ["finished"]
    assert h.ids() == [] and len(h.ids("events_archive")) == 42


def test_a_lock_that_ends_between_copy_and_delete_loses_nothing(h: Harness) -> None:
    """The copy has passed the rows by, and the statement that deletes would take them."""
    _expired(h)
    with h.client() as client:
        client.exec_driver_sql("BEGIN")
        client.exec_driver_sql("SELECT * FROM events WHERE id IN (7, 8) FOR UPDATE")
        with _after_a_copy(lambda: client.exec_driver_sql("ROLLBACK")):
            h.db.run("events")
    assert h.ids() == [] and h.ids("events_archive") == list(range(1, 41))


def test_a_row_renewed_between_copy_and_delete_is_in_one_place(h: Harness) -> None:
    _expired(h)
    with h.client() as client:
        client.exec_driver_sql("BEGIN")
        client.exec_driver_sql(f"UPDATE events SET ts = {h.at()} WHERE id IN (7, 8)")
        with _after_a_copy(lambda: client.exec_driver_sql("COMMIT")):
            h.db.run("events")
    assert h.ids() == [7, 8]
    assert h.ids("events_archive") == [each for each in range(1, 41) if each not in (7, 8)]


def test_partitions_are_emptied_into_one_archive(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id BIGINT, ts DATETIME, PRIMARY KEY (id, ts)) PARTITION BY RANGE COLUMNS (ts)"
        " (PARTITION p0 VALUES LESS THAN ('2020-01-01'), PARTITION p1 VALUES LESS THAN (MAXVALUE))"
    )
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    notices = h.sql(
        "ALTER TABLE events SET (ttl_archive = 'table:', ttl_partition_drop = 'on', ttl_guard = 'off')"
    ).notices
    assert any("emptied first, and dropped by a later run" in notice for notice in notices)
    h.sql("INSERT INTO events VALUES (1, '2019-05-05'), (2, '2019-05-06'), (3, '2021-01-01')")
    jobs = h.db.run("events").jobs
    assert {job.path.kind for job in jobs} <= {PathKind.PHYSICAL, PathKind.INDEX}
    assert h.ids() == [] and h.ids("events_archive") == [1, 2, 3]
    assert h.owner.restore("events").restored == 3


def test_deletes_without_a_binary_log_are_refused(h: Harness) -> None:
    _expired(h)
    with Lapse(f"{h.url}{'&' if '?' in h.url else '?'}lapse_binlog=off", clock=h.clock) as db:
        db.run("events")
    assert len(h.ids()) == 40


def test_a_database_of_its_own(h: Harness) -> None:
    _expired(h)
    with pytest.raises(Unsupported, match="no database"):
        h.sql("ALTER TABLE events SET (ttl_archive = 'table:no_such_database.events')")
    with pytest.raises((Unsupported, PolicyConflict, InvalidValue)):
        h.sql(f"ALTER TABLE events SET (ttl_archive = 'table:{'x' * 70}')")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE events ADD COLUMN later INT DEFAULT 5",
        "ALTER TABLE events_old MODIFY COLUMN note VARCHAR(30)",
        "CREATE UNIQUE INDEX one ON events_old (id)",
        "CREATE TRIGGER one BEFORE INSERT ON events_old FOR EACH ROW SET NEW.note = 'x'",
    ],
)
@pytest.mark.parametrize("kind", ["table:events_old", "file://{}#events_old"])
def test_what_is_altered_long_after_it_was_made_is_noticed_in_the_middle_of_a_job(
    h: Harness, change: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB: while neither the table nor its archive was altered, not everything is looked at in every batch."""
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts DATETIME, note VARCHAR(20))")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    batches = "ttl_delete_batch_size = 3, ttl_adaptive = 'off', ttl_guard = 'off'"
    h.sql(f"ALTER TABLE events SET (ttl_archive = '{kind.format(tmp_path)}', {batches})")
    h.sql("INSERT INTO events VALUES " + ", ".join(f"({i}, '2020-01-01', 'note {i}')" for i in range(1, 41)))
    sleep(1.2)
    seen: list[int] = []

    class Altering(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            if len(h.ids()) <= 31 and not seen:
                with h.client() as client:
                    client.exec_driver_sql(change)
                seen.extend(h.ids())

    h.db.run("events", listener=Altering())
    assert 0 < len(seen) <= 31 and h.ids() == seen
