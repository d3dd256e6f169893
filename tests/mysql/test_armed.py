"""A policy deletes from the table it was declared on, whatever maintenance does, and not from another of that name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from time import sleep, time

import pytest
from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.engines.base import Batch, Checkpoint
from lapse.engines.mysql import armed, inspect
from lapse.engines.mysql.delete import MysqlDeleter
from lapse.engines.mysql.server import table_ids
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from lapse.model.table import TableName
from lapse.runner.atonce import AtOnce
from tests.backends.mariadb import MariadbBackend, MariadbServer
from tests.conformance.harness import Harness
from tests.mysql.numbers import numbers

COLUMNS = "id INT PRIMARY KEY, note INT DEFAULT 5, ts TIMESTAMP(3) NULL, other TIMESTAMP(3) NULL"
COPY = "CREATE TABLE copy LIKE events; INSERT INTO copy SELECT * FROM events"

REPLACED = {
    "dropped and made again": f"DROP TABLE events; CREATE TABLE events ({COLUMNS}); {{rows}}",
    "with the same rows": f"{COPY}; DROP TABLE events; CREATE TABLE events LIKE copy;"
    " INSERT INTO events SELECT * FROM copy",
    "made again in one statement": f"CREATE OR REPLACE TABLE events ({COLUMNS}); {{rows}}",
    "another takes the name": f"CREATE TABLE b ({COLUMNS}); INSERT INTO b SELECT * FROM events; DELETE FROM b;"
    " RENAME TABLE events TO a, b TO events; {rows}",
    "names swapped": f"CREATE TABLE b ({COLUMNS}); RENAME TABLE events TO a, b TO events, a TO b; {{rows}}",
    "an online change that keeps the old table": f"{COPY}; RENAME TABLE events TO old, copy TO events",
    "an online change that drops the old table": f"{COPY}; ALTER TABLE copy ADD COLUMN more INT;"
    " RENAME TABLE events TO old, copy TO events; DROP TABLE old",
}
KEPT = {
    "OPTIMIZE": "OPTIMIZE TABLE events",
    "OPTIMIZE beside other work": "CREATE TABLE x (id INT); RENAME TABLE x TO y; DROP TABLE y; OPTIMIZE TABLE events",
    "a rebuild": "ALTER TABLE events FORCE",
    "an engine": "ALTER TABLE events ENGINE = InnoDB",
    "a column at the end": "ALTER TABLE events ADD COLUMN more INT DEFAULT 3",
    "a column in front": "ALTER TABLE events ADD COLUMN more INT DEFAULT 3 FIRST",
    "a column less": "ALTER TABLE events DROP COLUMN note",
    "an index": "CREATE INDEX i ON events (note)",
    "TRUNCATE": "TRUNCATE TABLE events; {rows}",
    "a comment": "ALTER TABLE events COMMENT = 'hello'",
    "there and back": "RENAME TABLE events TO a; RENAME TABLE a TO events",
    "ANALYZE": "ANALYZE TABLE events",
}
CHANGED = {
    "DATETIME": "ALTER TABLE events MODIFY ts DATETIME(3)",
    "another column of that name": "ALTER TABLE events CHANGE ts was TIMESTAMP(3) NULL,"
    " CHANGE other ts TIMESTAMP(3) NULL",
}


def _name(h: Harness) -> str:
    return str(make_url(h.url).database)


@pytest.fixture(params=["with PROCESS", "without PROCESS"])
def url(request: pytest.FixtureRequest, h: Harness, server: MariadbServer) -> Iterator[str]:
    """Of an account that sees the server's numbers of its tables, or does not."""
    if request.param == "with PROCESS":
        yield h.url
        return
    server.execute("DROP USER IF EXISTS plain@'%'", "CREATE USER plain@'%'", f"GRANT ALL ON {_name(h)}.* TO plain@'%'")
    yield h.url.replace("root@", "plain@")
    server.execute("DROP USER plain@'%'")


def _declare(h: Harness, db: Lapse) -> None:
    db.execute(f"CREATE TABLE events ({COLUMNS}) TTL = ts + INTERVAL 1 DAY")
    db.execute("ALTER TABLE events SET (ttl_guard = 'off')")
    db.execute(_rows(h, 1))
    assert db.run("events").deleted == 10


def _rows(h: Harness, first: int, **later: float) -> str:
    """Ten that have expired and ten that have not."""
    old, new = h.at(days=-2, **later), h.at(**later)
    return (
        f"INSERT INTO events (id, ts, other) SELECT seq, if(seq % 2, {old}, {new}), {old}"
        f" FROM {numbers(first + 19, first)}"
    )


def _behind_its_back(h: Harness, server: MariadbServer, script: str, url: str) -> None:
    """Times of creation are whole seconds. Only who sees the server's numbers sees what happens within one."""
    pause = "SELECT sleep(1.1);" if "plain@" in url else ""
    statements = (pause + script.format(rows=_rows(h, 1, minutes=7))).split(";")
    server.execute(*(statement.strip() for statement in statements if statement.strip()), database=_name(h))


def _skip_what_cannot_be(h: Harness, url: str, how: str) -> None:
    if "plain@" in url and how in ("with the same rows", *(each for each in REPLACED if "online" in each)):
        pytest.skip("without the server's numbers a copy with all its rows is taken for the table")
    if "OR REPLACE" in REPLACED[how] and not h.features.replaces_tables:
        pytest.skip("no statement replaces a table")


@pytest.mark.parametrize("how", REPLACED)
def test_a_table_that_was_replaced_is_blocked_until_it_is_resumed(
    h: Harness, server: MariadbServer, url: str, how: str
) -> None:
    _skip_what_cannot_be(h, url, how)
    with Lapse(url, clock=h.clock) as db:
        _declare(h, db)
        _behind_its_back(h, server, REPLACED[how], url)
        before = h.rows("SELECT id, ts FROM events ORDER BY id")
        h.advance(hours=1)
        db.run()
        assert h.rows("SELECT id, ts FROM events ORDER BY id") == before
        (status,) = [each for each in db.status() if each.table.name == "events"]
        assert status.blocked == BlockCode.TABLE_REPLACED
        db.resume("events")
        h.advance(days=3)
        assert db.run("events").deleted == len(before)


@pytest.mark.parametrize("how", KEPT)
def test_maintenance_blocks_nothing(h: Harness, server: MariadbServer, url: str, how: str) -> None:
    if "plain@" in url and how == "TRUNCATE":
        pytest.skip("without the server's numbers a table with other rows is taken for another table")
    with Lapse(url, clock=h.clock) as db:
        _declare(h, db)
        db.execute(_rows(h, 1001))
        assert db.run("events").deleted == 10
        _behind_its_back(h, server, KEPT[how], url)
        h.advance(hours=1)
        db.execute(_rows(h, 3001))
        job = db.run("events").jobs[0]
        assert (job.status, job.reason) == (JobStatus.FINISHED, None)
        assert job.counts.deleted >= 10


def _known_for_a_while(h: Harness, db: Lapse) -> None:
    """Its time of creation is that of no other table, so a plan goes by what its description has told."""
    _declare(h, db)
    sleep(1.2)
    h.advance(hours=1)
    db.execute(_rows(h, 1001))
    assert db.run("events").deleted == 10
    h.advance(hours=1)
    db.execute(_rows(h, 2001, hours=-2))


def _once(monkeypatch: pytest.MonkeyPatch, moment: str, action: Callable[[], object]) -> list[object]:
    """What is returned has one entry once that moment has come."""
    place, name, before = MOMENTS[moment]
    original, done = getattr(place, name), list[object]()

    def acting(*args: object, **kwargs: object) -> object:
        if before and not done:
            done.append(action())
        found = original(*args, **kwargs)
        if not done:
            done.append(action())
        return found

    monkeypatch.setattr(place, name, acting)
    return done


MOMENTS: dict[str, tuple[object, str, bool]] = {
    "after its description": (inspect, "look", False),
    "after its rows were seen": (armed, "witnesses", False),
    "before the batch": (AtOnce, "run", True),
}


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_table_that_is_replaced_while_its_job_begins(
    h: Harness, server: MariadbServer, url: str, monkeypatch: pytest.MonkeyPatch, how: str, moment: str
) -> None:
    _skip_what_cannot_be(h, url, how)
    with Lapse(url, clock=h.clock) as db:
        _known_for_a_while(h, db)
        monkeypatch.setattr(armed, "LASTS", timedelta())
        seen: list[object] = []

        def replace() -> None:
            _behind_its_back(h, server, REPLACED[how], url)
            seen.append(h.rows("SELECT id, ts FROM events ORDER BY id"))

        _once(monkeypatch, moment, replace)
        db.run()
        monkeypatch.undo()
        db.run()
        assert [h.rows("SELECT id, ts FROM events ORDER BY id")] == seen
        (status,) = [each for each in db.status() if each.table.name == "events"]
        assert status.blocked == BlockCode.TABLE_REPLACED


@pytest.mark.parametrize("how", [each for each in KEPT if each != "TRUNCATE"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_maintenance_while_a_job_begins(
    h: Harness, server: MariadbServer, url: str, monkeypatch: pytest.MonkeyPatch, how: str, moment: str
) -> None:
    with Lapse(url, clock=h.clock) as db:
        _known_for_a_while(h, db)
        monkeypatch.setattr(armed, "LASTS", timedelta())
        done = _once(monkeypatch, moment, lambda: _behind_its_back(h, server, KEPT[how], url))
        job = db.run("events").jobs[0]
        assert len(done) == 1
        assert (job.status, job.reason, job.counts.deleted) == (JobStatus.FINISHED, None, 10)


@pytest.mark.parametrize("how", CHANGED)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_column_that_means_something_else_while_a_job_begins(
    h: Harness, server: MariadbServer, url: str, monkeypatch: pytest.MonkeyPatch, how: str, moment: str
) -> None:
    with Lapse(url, clock=h.clock) as db:
        _known_for_a_while(h, db)
        # No row has the same time in both columns.
        db.execute("UPDATE events SET other = other - INTERVAL 5 DAY")
        before = h.ids()
        monkeypatch.setattr(armed, "LASTS", timedelta())
        done = _once(monkeypatch, moment, lambda: _behind_its_back(h, server, CHANGED[how], url))
        db.run()
        assert len(done) == 1
        assert h.ids() == before
        (status,) = db.status()
        assert status.blocked in (BlockCode.COLUMN_CHANGED, BlockCode.TABLE_REPLACED)


@pytest.mark.parametrize("how", CHANGED)
def test_a_column_that_means_something_else_blocks(h: Harness, server: MariadbServer, url: str, how: str) -> None:
    with Lapse(url, clock=h.clock) as db:
        _declare(h, db)
        _behind_its_back(h, server, CHANGED[how], url)
        h.advance(hours=1)
        db.run()
        assert len(h.ids()) == 10
        (status,) = db.status()
        unknown = [BlockCode.TABLE_REPLACED] if "plain@" in url else []
        assert status.blocked in (BlockCode.COLUMN_CHANGED, *unknown)


@pytest.mark.parametrize("rows", [1, 50])
def test_a_table_replaced_in_the_middle_of_a_job_loses_nothing(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """`rows` of which one has expired: deleted without looking, or found first and deleted by key."""
    h.sql(f"CREATE TABLE events ({COLUMNS}) TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off', ttl_delete_batch_size = 10, ttl_adaptive = 'off')")
    old, new = h.at(days=-2), h.at()
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, if(seq % {rows}, {new}, {old}) FROM {numbers(100 * rows)}")
    h.sql(f"CREATE TABLE precious ({COLUMNS})")
    h.sql(f"INSERT INTO precious SELECT seq, 1, {old}, NULL FROM {numbers(100 * rows)}")
    _after_a_batch(
        monkeypatch,
        lambda: server.execute("RENAME TABLE events TO away, precious TO events", database=_name(h)),
    )
    h.run()
    assert h.rows("SELECT count(*) FROM events") == [(100 * rows,)]
    (status,) = h.db.status()
    assert status.blocked == BlockCode.TABLE_REPLACED


def test_a_rebuild_in_the_middle_of_a_job_is_no_trouble(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    h.sql(f"CREATE TABLE events ({COLUMNS}) TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off', ttl_delete_batch_size = 10, ttl_adaptive = 'off')")
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, {h.at(days=-2)} FROM {numbers(100)}")
    _after_a_batch(monkeypatch, lambda: server.execute("OPTIMIZE TABLE events", database=_name(h)))
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 100)


def _declare_with_the_oldest_at_both_ends(h: Harness, db: Lapse) -> None:
    """Followed along an index, the first batch takes every row that the table is known by."""
    db.execute(f"CREATE TABLE events ({COLUMNS}, KEY (ts)) TTL = ts + INTERVAL 1 DAY")
    db.execute("ALTER TABLE events SET (ttl_guard = 'off', ttl_delete_batch_size = 40, ttl_adaptive = 'off')")
    db.execute(
        f"INSERT INTO events (id, ts) SELECT seq, if(seq <= 20 OR seq > 1980, {h.at(days=-3)},"
        f" if(seq BETWEEN 101 AND 110, {h.at(days=-2)}, {h.at()})) FROM {numbers(2000)}"
    )
    db.execute("ANALYZE TABLE events")


REBUILT_BESIDE_OTHER_WORK = "CREATE TABLE x (id INT); DROP TABLE x; ALTER TABLE events FORCE"


def test_a_rebuild_after_the_batch_that_took_every_row_the_table_was_known_by(
    h: Harness, server: MariadbServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lapse(url, clock=h.clock) as db:
        _declare_with_the_oldest_at_both_ends(h, db)
        _after_a_batch(monkeypatch, lambda: _behind_its_back(h, server, REBUILT_BESIDE_OTHER_WORK, url))
        job = db.run("events").jobs[0]
        assert (job.status, job.reason, job.counts.deleted, job.counts.batches) == (JobStatus.FINISHED, None, 50, 2)


def test_a_rebuild_after_the_run_that_took_every_row_the_table_was_known_by(
    h: Harness, server: MariadbServer, url: str
) -> None:
    with Lapse(url, clock=h.clock) as db:
        _declare_with_the_oldest_at_both_ends(h, db)
        assert db.run("events").deleted == 50
        _behind_its_back(h, server, REBUILT_BESIDE_OTHER_WORK, url)
        h.advance(days=2)
        job = db.run("events").jobs[0]
        assert (job.status, job.reason, job.counts.deleted) == (JobStatus.FINISHED, None, 1950)


def test_a_trigger_dropped_in_the_middle_of_a_job_stops_it(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    h.sql("CREATE TABLE events (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour', ttl_guard = 'off')")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10, ttl_adaptive = 'off')")
    h.sql(f"INSERT INTO events (id, crdb_internal_expiration) SELECT seq, {h.at(days=-2)} FROM {numbers(100)}")
    _after_a_batch(monkeypatch, lambda: server.execute("DROP TRIGGER lapse_events_update", database=_name(h)))
    h.run()
    assert 0 < len(h.ids()) < 100
    (status,) = h.db.status()
    assert status.blocked == BlockCode.PARTS_MISSING
    h.db.doctor(repair=True)
    h.db.resume("events")
    h.advance(hours=1)
    h.run()
    assert h.ids() == []


def _after_a_batch(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    step = MysqlDeleter.step
    done: list[object] = []

    def acting(self: MysqlDeleter, limit: int, checkpoint: Checkpoint) -> Batch:
        batch = step(self, limit, checkpoint)
        if not done and batch.deleted:
            done.append(action())
        return batch

    monkeypatch.setattr(MysqlDeleter, "step", acting)


def test_a_restart_changes_the_incarnation_and_nothing_else(backend: MariadbBackend) -> None:
    server = backend.start()
    try:
        server.execute("CREATE DATABASE shop")
        with Lapse(f"{server.url}/shop") as db:
            db.execute("CREATE TABLE carts (id INT PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
            db.execute("INSERT INTO carts VALUES (1, '2020-01-01'), (2, '2037-01-01')")
            with db.engine.connection() as connection:
                first, again = db.engine.place(connection), db.engine.place(connection)
            assert first == again
            assert db.run("carts").deleted == 1
            server.stop()
            _wait_for_another_second()
            server.start()
            with db.engine.connection() as connection:
                second = db.engine.place(connection)
            assert first is not None and second is not None
            assert (first.endpoint, first.incarnation) != (second.endpoint, second.incarnation)
            assert first.endpoint == second.endpoint
            db.execute("INSERT INTO carts VALUES (3, '2020-01-01')")
            assert db.run("carts").deleted == 1
    finally:
        server.close()


def _wait_for_another_second() -> None:
    """The server says in whole seconds when it was started."""
    sleep(1 - time() % 1)


def _twins(h: Harness, server: MariadbServer) -> None:
    """Two tables that were made in the same second, a while ago: on MySQL a rename changes no time of creation."""
    born = (
        "SELECT count(DISTINCT CREATE_TIME) FROM information_schema.TABLES"
        f" WHERE TABLE_SCHEMA = '{_name(h)}' AND TABLE_NAME IN ('events', 'twin')"
    )
    made = [f"CREATE TABLE {name} ({COLUMNS})" for name in ("events", "twin")]
    server.execute(*made, database=_name(h))
    while server.execute(born) != [(1,)]:
        server.execute("DROP TABLE events, twin", *made, database=_name(h))
    sleep(1.2)


def test_tables_of_one_second_that_are_swapped_are_told_apart(h: Harness, server: MariadbServer, url: str) -> None:
    _twins(h, server)
    with Lapse(url, clock=h.clock) as db:
        db.execute("ALTER TABLE events SET (ttl_guard = 'off'), TTL = ts + INTERVAL 1 DAY")
        db.execute(_rows(h, 1))
        assert db.run("events").deleted == 10
        server.execute("RENAME TABLE events TO away, twin TO events", _rows(h, 101, minutes=7), database=_name(h))
        h.advance(hours=1)
        db.run()
        assert len(h.ids()) == 20
        (status,) = [each for each in db.status() if each.table.name == "events"]
        assert status.blocked == BlockCode.TABLE_REPLACED


def test_tables_of_one_second_that_are_swapped_in_the_middle_of_a_job(
    h: Harness, server: MariadbServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _twins(h, server)
    server.execute(_rows(h, 101, minutes=7).replace("events", "twin", 1), database=_name(h))
    with Lapse(url, clock=h.clock) as db:
        db.execute("ALTER TABLE events SET (ttl_guard = 'off'), TTL = ts + INTERVAL 1 DAY")
        db.execute("ALTER TABLE events SET (ttl_delete_batch_size = 2, ttl_adaptive = 'off')")
        db.execute(_rows(h, 101))
        _after_a_batch(
            monkeypatch, lambda: server.execute("RENAME TABLE events TO away, twin TO events", database=_name(h))
        )
        db.run("events")
        assert len(h.ids()) == 20
        (status,) = [each for each in db.status() if each.table.name == "events"]
        assert status.blocked == BlockCode.TABLE_REPLACED


def test_a_swap_that_was_waiting_before_the_job_began(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server counted it when it began to wait, so only the rows tell that the table is another one."""
    _twins(h, server)
    h.sql(_rows(h, 101))
    h.sql("ALTER TABLE events SET (ttl_guard = 'off'), TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 2, ttl_adaptive = 'off')")
    # Names are locked in their order: this one first, which a reader keeps.
    server.execute("RENAME TABLE twin TO a_twin", database=_name(h))
    server.execute(_rows(h, 101, minutes=7).replace("events", "a_twin", 1), database=_name(h))
    swap = "RENAME TABLE events TO away, a_twin TO events"
    waiting = Thread(target=server.execute, args=(swap,), kwargs={"database": _name(h)})
    with server.connect(_name(h)) as reader, reader.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT count(*) FROM a_twin")
        waiting.start()
        while not server.execute(f"SELECT 1 FROM information_schema.processlist WHERE info = '{swap}'"):
            sleep(0.01)
        sleep(0.2)

        def let_it() -> None:
            cursor.execute("ROLLBACK")
            waiting.join()

        _after_a_batch(monkeypatch, let_it)
        h.run("events")
    waiting.join()
    h.advance(hours=1)
    h.run("events")
    assert len(h.ids()) == 20
    (status,) = [each for each in h.db.status() if each.table.name == "events"]
    assert status.blocked == BlockCode.TABLE_REPLACED


@pytest.mark.parametrize("name", ["Events", "été", "a b-c", "漢字"])
def test_any_name_has_its_number(h: Harness, server: MariadbServer, name: str) -> None:
    """However InnoDB spells it; and not that of a table whose name differs by case alone."""
    for each in (name, name.swapcase(), f"{name}#p#x"):
        server.execute(f"CREATE TABLE IF NOT EXISTS `{each}` (id INT PRIMARY KEY)", database=_name(h))
    server.execute(
        f"CREATE TABLE `{name}2` (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3", database=_name(h)
    )
    with h.db.engine.connection() as connection:
        assert list(table_ids(connection, TableName(name))) == [""]
        partitions = table_ids(connection, TableName(f"{name}2"))
    assert len(set(partitions.values())) == 3 and all(each.lower().startswith("#p#") for each in partitions)
