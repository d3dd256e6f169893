"""A primary and a replica: what is written to the log, who waits for whom, and who takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, sleep

import pytest

from lapse.app import Lapse
from lapse.engines.base import BoundPolicy
from lapse.engines.mysql.engine import MysqlEngine
from lapse.engines.mysql.replicas import Reader
from lapse.errors import Blocked, DatabaseError, UnsupportedUrl
from lapse.model.blocked import BlockCode
from lapse.model.table import TableName
from lapse.runner.controller import Controller
from tests.backends.mariadb import MariadbBackend, MariadbServer
from tests.mysql.numbers import numbers


@dataclass(frozen=True)
class Pair:
    primary: MariadbServer
    replica: MariadbServer

    @property
    def url(self) -> str:
        return f"{self.primary.url}/shop"

    def replicated(self, sql: str) -> list[tuple[object, ...]]:
        """The replica's answer, once it has everything that the primary has."""
        self.replica.catch_up(self.primary)
        return self.replica.execute(sql, database="shop")


@pytest.fixture(scope="module")
def servers_in_line(backend: MariadbBackend) -> Iterator[Pair]:
    primary = backend.start("--server-id=1", *backend.server.logging)
    replica = backend.start("--server-id=2", *backend.server.logging)
    replica.follow(primary)
    yield Pair(primary, replica)
    replica.close()
    primary.close()


@pytest.fixture
def pair(servers_in_line: Pair) -> Iterator[Pair]:
    pair = servers_in_line
    pair.primary.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    with Lapse(pair.url) as db:
        db.execute("CREATE TABLE carts (id INT PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
        db.execute(f"INSERT INTO carts SELECT seq, if(seq <= 5, '2020-01-01', '2037-01-01') FROM {numbers(20)}")
    pair.replicated("SELECT 1")
    yield pair
    pair.replica.execute("START REPLICA")
    pair.primary.execute("DROP DATABASE shop")
    # The replica drops its own by replication. One dropped there first would stop replication for all later tests.
    pair.replica.catch_up(pair.primary)
    pair.replica.execute("SET GLOBAL read_only = 0")


def _wait_until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, what
        sleep(0.1)


def test_deletes_reach_the_replica_and_can_be_told_apart(pair: Pair) -> None:
    with Lapse(pair.url) as db:
        assert db.run("carts").deleted == 5
    assert pair.replicated("SELECT count(*) FROM carts") == [(15,)]
    (last,) = [str(row[0]) for row in pair.primary.execute("SHOW BINARY LOGS")][-1:]
    logged = pair.primary.execute(f"SHOW BINLOG EVENTS IN '{last}'")
    events = [str(event[5]).removeprefix("# ") for event in logged if event[2] in ("Annotate_rows", "Rows_query")]
    deletes = [text for text in events if "DELETE" in text and "FROM `carts`" in text]
    assert deletes and all(text.startswith("/* lapse ttl carts */") for text in deletes)


def test_deletes_can_be_left_out_of_the_log(pair: Pair) -> None:
    with Lapse(f"{pair.url}?lapse_binlog=off") as db:
        assert db.run("carts").deleted == 5
        assert db.history("carts")[0].counts.deleted == 5
    assert pair.replicated("SELECT count(*) FROM carts") == [(20,)]


def test_an_account_that_may_not_leave_them_out_learns_what_it_needs(pair: Pair) -> None:
    pair.primary.execute(
        "DROP USER IF EXISTS worker@'%'", "CREATE USER worker@'%'", "GRANT ALL ON shop.* TO worker@'%'"
    )
    url = f"{pair.url}?lapse_binlog=off".replace("root@", "worker@")
    with Lapse(url) as db:
        (job,) = db.run("carts").jobs
        assert isinstance(db.engine, MysqlEngine)
        privilege = db.engine.flavour.binlog_privilege
        assert privilege.split("_")[0] in str(job.reason)
        fixes = [str(finding.fix) for finding in db.doctor() if finding.level == "problem"]
    assert f"GRANT {privilege} ON *.* TO `worker`@`%`;" in fixes
    pair.primary.execute(f"GRANT {privilege} ON *.* TO worker@'%'")
    with Lapse(url) as db:
        assert db.run("carts").deleted == 5
        assert [finding for finding in db.doctor() if finding.level == "problem"] == []
    pair.primary.execute("DROP USER worker@'%'")


def test_a_replica_that_falls_behind_is_waited_for(pair: Pair) -> None:
    with Lapse(f"{pair.url}?lapse_replicas=127.0.0.1:{pair.replica.port}") as db:
        db.set_setting("lapse_replica_lag_limit", "2 seconds")
        controller = Controller(db.catalog)

        def reason() -> str | None:
            controller.run_once()
            return controller.stop_reason()

        assert reason() is None
        with pair.replica.connect("shop") as holder, holder.cursor() as cursor:
            cursor.execute("LOCK TABLES carts READ")
            db.execute("INSERT INTO carts VALUES (100, '2037-01-01')")
            _wait_until(lambda: reason() is not None, "the lag was not seen")
            assert str(reason()).startswith(f"gate: replica lag of 127.0.0.1:{pair.replica.port}")
            cursor.execute("UNLOCK TABLES")
        _wait_until(lambda: reason() is None, "the gate stayed closed")
        pair.replica.execute("STOP REPLICA SQL_THREAD")
        assert "replica lag of" in str(reason())
        pair.replica.execute("START REPLICA")
        _wait_until(lambda: reason() is None, "the gate stayed closed")
        assert db.run("carts").deleted == 5


def test_a_replica_that_cannot_be_asked_closes_the_gate(pair: Pair) -> None:
    with Lapse(f"{pair.url}?lapse_replicas=127.0.0.1:1") as db:
        (gauge,) = [reading for reading in db.gauges() if reading.name == "replica lag of 127.0.0.1:1"]
        assert (gauge.stops, gauge.note) == (True, "it cannot be reached")
    for address in (":3306", "db:x"):
        with pytest.raises(UnsupportedUrl, match="lapse_replicas"):
            Lapse(f"{pair.url}?lapse_replicas={address}")


def test_a_read_only_server_is_told_from_a_broken_one(pair: Pair) -> None:
    pair.replica.execute("SET GLOBAL read_only = 1", "DROP USER IF EXISTS reader@'%'", "CREATE USER reader@'%'")
    pair.replica.execute("GRANT ALL ON shop.* TO reader@'%'")
    with (
        Lapse(f"{pair.replica.url}/shop".replace("root@", "reader@")) as db,
        pytest.raises(DatabaseError, match="takes no writes"),
    ):
        db.run("carts")


def test_a_replica_that_is_reached_in_a_new_way_counts_as_a_copy(pair: Pair) -> None:
    """Whether the old primary is dead cannot be told from here, so a person has to say it."""
    with Lapse(pair.url) as db:
        db.run("carts")
        db.execute("INSERT INTO carts VALUES (101, '2020-01-01')")
    pair.replicated("SELECT 1")
    pair.replica.execute("STOP REPLICA")
    with Lapse(f"{pair.replica.url}/shop") as db:
        assert db.run().deleted == 0
        (status,) = db.status()
        assert status.blocked is BlockCode.DATABASE_COPIED
        db.resume("carts")
        assert db.run("carts").deleted == 1


def test_a_replica_has_the_table_that_was_armed(pair: Pair) -> None:
    """Its numbers and times are others; the rows are the same."""
    with Lapse(pair.url) as db, db.engine.connection() as connection:
        table = db.engine.describe(connection, TableName("carts"))
        declared = BoundPolicy(table=table, policy=db.policies()[0].policy)
        text = db.engine.arm(connection, declared)
    pair.replicated("SELECT 1")
    pair.replica.execute("STOP REPLICA")
    with Lapse(f"{pair.replica.url}/shop") as db, db.engine.connection() as connection:
        known = db.engine.check_armed(connection, declared, text)
        assert db.engine.check_armed(connection, declared, known) == known or known != text
        pair.replica.execute("UPDATE carts SET ts = '2036-01-01'", database="shop")
        with pytest.raises(Blocked):
            db.engine.check_armed(connection, declared, text)
        # Once it was seen here, rows need not be the same any more.
        db.engine.check_armed(connection, declared, known)


def _reading_url(pair: Pair) -> str:
    return f"{pair.url}?lapse_replicas=127.0.0.1:{pair.replica.port}"


def _rows_read(server: MariadbServer) -> int:
    """By statements, however they came to the rows."""
    rows = server.execute("SHOW GLOBAL STATUS WHERE Variable_name IN ('Handler_read_next', 'Handler_read_rnd_next')")
    return sum(int(str(value)) for _, value in rows)


def test_rows_are_found_on_a_replica(pair: Pair) -> None:
    """The primary reads little more than what it deletes."""
    with Lapse(_reading_url(pair)) as db:
        db.execute(f"INSERT INTO carts SELECT seq + 100, '2037-01-01' FROM {numbers(20_000)}")
        pair.replicated("SELECT 1")
        before = _rows_read(pair.primary), _rows_read(pair.replica)
        assert db.run("carts").deleted == 5
        without = _rows_read(pair.primary) - before[0]
        db.execute("UPDATE carts SET ts = '2020-01-01' WHERE id BETWEEN 6 AND 10")
        notices = db.execute("ALTER TABLE carts SET (ttl_select_as_of_system_time = '-5s')").notices
        assert not any("as_of_system_time" in notice for notice in notices)
        assert "rows are found on a replica" in db.preview("carts")[0].path.evidence
        pair.replicated("SELECT 1")
        before = _rows_read(pair.primary), _rows_read(pair.replica)
        assert db.run("carts").deleted == 5
        assert _rows_read(pair.replica) - before[1] >= 20_000
        assert _rows_read(pair.primary) - before[0] < without / 5
    assert pair.primary.execute("SELECT min(id) FROM carts", database="shop") == [(11,)]


def test_a_row_that_was_renewed_after_the_replica_saw_it_survives(pair: Pair) -> None:
    with Lapse(_reading_url(pair)) as db, pair.replica.connect("shop") as holder, holder.cursor() as cursor:
        db.execute("ALTER TABLE carts SET (ttl_select_as_of_system_time = '-1h')")
        db.set_setting("lapse_replica_lag_limit", "1 hour")
        pair.replicated("SELECT 1")
        cursor.execute("LOCK TABLES carts READ")
        db.execute("UPDATE carts SET ts = '2037-01-01' WHERE id = 1")
        db.execute("DELETE FROM carts WHERE id = 2")
        (job,) = db.run("carts").jobs
        # Found there, and neither deleted nor held here.
        assert (job.counts.selected, job.counts.deleted, job.counts.held) == (5, 3, 0)
        assert pair.primary.execute("SELECT id FROM carts WHERE id <= 5", database="shop") == [(1,)]
        cursor.execute("UNLOCK TABLES")


def test_a_server_that_cannot_know_is_not_asked(pair: Pair) -> None:
    """One that follows another server, that is too far behind, or that lacks the table."""
    with Lapse(_reading_url(pair)) as db:
        engine = db.engine
        assert isinstance(engine, MysqlEngine)
        assert Reader(engine._read_pools, 1, 60.0).has_replica()
        assert not Reader(engine._read_pools, 7, 60.0).has_replica()
        assert not Reader(engine._read_pools, 1, -1.0).has_replica()
        pair.replica.execute("STOP REPLICA SQL_THREAD")
        assert not Reader(engine._read_pools, 1, 60.0).has_replica()
        pair.replica.execute("START REPLICA")
        _wait_until(lambda: Reader(engine._read_pools, 1, 60.0).has_replica(), "the replica did not go on")
        pair.primary.execute(
            "SET SESSION sql_log_bin = 0",
            "CREATE TABLE only_here (id INT PRIMARY KEY, ts DATETIME)",
            "INSERT INTO only_here VALUES (1, '2020-01-01')",
            database="shop",
        )
        reader = Reader(engine._read_pools, 1, 60.0)
        with engine.connection() as connection:
            asked = reader.ask(connection, lambda session: session.exec_driver_sql("SELECT id FROM only_here").all())
        assert (asked, reader.has_replica()) == ([(1,)], False)
    with Lapse(pair.url) as db:
        (notice,) = db.execute("ALTER TABLE carts SET (ttl_select_as_of_system_time = '-5s')").notices
        assert "lapse_replicas=host:port" in notice
