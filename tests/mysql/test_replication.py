"""A primary and a replica: what is written to the log, who waits for whom, and who takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, sleep

import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseError, UnsupportedUrl
from lapse.runner.controller import Controller
from tests.backends.mariadb import MariadbServer, why_no_server


@dataclass(frozen=True)
class Pair:
    primary: MariadbServer
    replica: MariadbServer

    @property
    def url(self) -> str:
        return f"{self.primary.url}/shop"

    def replicated(self, sql: str) -> list[tuple[object, ...]]:
        """The replica's answer, once it has everything that the primary has."""
        position = self.primary.execute("SELECT @@gtid_binlog_pos")[0][0]
        assert self.replica.execute(f"SELECT master_gtid_wait('{position}', 20)") == [(0,)]
        return self.replica.execute(sql, database="shop")


@pytest.fixture(scope="module")
def servers_in_line() -> Iterator[Pair]:
    reason = why_no_server()
    if reason is not None:
        pytest.skip(reason)
    primary = MariadbServer("--server-id=1", "--log-bin=log", "--binlog-format=ROW")
    replica = MariadbServer("--server-id=2", "--log-bin=log", "--binlog-format=ROW")
    replica.execute(
        f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='root',"
        " MASTER_USE_GTID=slave_pos",
        "START SLAVE",
    )
    yield Pair(primary, replica)
    replica.close()
    primary.close()


@pytest.fixture
def pair(servers_in_line: Pair) -> Iterator[Pair]:
    pair = servers_in_line
    pair.primary.execute("CREATE DATABASE shop")
    with Lapse(pair.url) as db:
        db.execute("CREATE TABLE carts (id INT PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
        db.execute("INSERT INTO carts SELECT seq, if(seq <= 5, '2020-01-01', '2037-01-01') FROM seq_1_to_20")
    pair.replicated("SELECT 1")
    yield pair
    pair.replica.execute("START SLAVE")
    pair.primary.execute("DROP DATABASE shop")
    pair.replica.execute("DROP DATABASE IF EXISTS shop", "SET GLOBAL read_only = 0")


def _wait_until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, what
        sleep(0.1)


def test_deletes_reach_the_replica_and_can_be_told_apart(pair: Pair) -> None:
    with Lapse(pair.url) as db:
        assert db.run("carts").deleted == 5
    assert pair.replicated("SELECT count(*) FROM carts") == [(15,)]
    events = [str(event[5]) for event in pair.primary.execute("SHOW BINLOG EVENTS") if event[2] == "Annotate_rows"]
    deletes = [text for text in events if "DELETE FROM `carts`" in text]
    assert deletes and all(text.startswith("/* lapse ttl carts */") for text in deletes)


def test_deletes_can_be_left_out_of_the_log(pair: Pair) -> None:
    with Lapse(f"{pair.url}?lapse_binlog=off") as db:
        assert db.run("carts").deleted == 5
        assert db.history("carts")[0].counts.deleted == 5
    assert pair.replicated("SELECT count(*) FROM carts") == [(20,)]


def test_an_account_that_may_not_leave_them_out_learns_what_it_needs(pair: Pair) -> None:
    pair.primary.execute("CREATE OR REPLACE USER worker@'%'", "GRANT ALL ON shop.* TO worker@'%'")
    url = f"{pair.url}?lapse_binlog=off".replace("root@", "worker@")
    with Lapse(url) as db:
        with pytest.raises(DatabaseError, match="BINLOG ADMIN"):
            db.run("carts")
        fixes = [str(finding.fix) for finding in db.doctor() if finding.level == "problem"]
    assert fixes == ["GRANT BINLOG ADMIN ON *.* TO `worker`@`%`;"]
    pair.primary.execute(fixes[0].rstrip(";"))
    with Lapse(url) as db:
        assert [finding for finding in db.doctor() if finding.level == "problem"] == []
        assert db.run("carts").deleted == 5
    pair.primary.execute("DROP USER worker@'%'")


def test_a_replica_that_falls_behind_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.engines.mysql.gauges.LAG_STOP_SECONDS", 2.0)
    with Lapse(f"{pair.url}?lapse_replicas=127.0.0.1:{pair.replica.port}") as db:
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
        pair.replica.execute("STOP SLAVE SQL_THREAD")
        assert "replica lag of" in str(reason())
        pair.replica.execute("START SLAVE")
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
    pair.replica.execute("SET GLOBAL read_only = 1", "CREATE OR REPLACE USER reader@'%'")
    pair.replica.execute("GRANT ALL ON shop.* TO reader@'%'")
    with (
        Lapse(f"{pair.replica.url}/shop".replace("root@", "reader@")) as db,
        pytest.raises(DatabaseError, match="takes no writes"),
    ):
        db.run("carts")


def test_a_replica_made_from_a_backup_counts_as_a_copy_when_it_takes_over(pair: Pair) -> None:
    """Whether the old primary is dead cannot be told from here, so somebody has to say it."""
    with Lapse(pair.url) as db:
        db.run("carts")
        db.execute("INSERT INTO carts VALUES (101, '2020-01-01')")
    pair.replicated("SELECT 1")
    pair.replica.execute("STOP SLAVE")
    # As if it had been made from a backup: one that was there from the start has the same time of birth, to the second.
    pair.replica.execute(
        "UPDATE lapse_meta SET value = replace(value, '20', '19') WHERE name = 'database_identity'", database="shop"
    )
    with Lapse(f"{pair.replica.url}/shop") as db:
        assert db.run().deleted == 0
        (status,) = db.status()
        assert "disarmed" in (status.reason or "")
        db.resume("carts")
        assert db.run("carts").deleted == 1
