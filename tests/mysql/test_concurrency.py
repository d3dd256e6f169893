"""Eight clients renew, insert and delete while jobs run: nothing live is lost, nothing expired is left."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.engines.mysql.session import Flavour
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness
from tests.crowd import CLIENTS, ROWS, SECONDS, Client, run_among
from tests.mysql.numbers import numbers

DEADLOCK, LOCK_WAIT = 1213, 1205
DECLARERS = 12


class MysqlClient(Client):
    def __init__(self, server: MariadbServer, database: str, number: int) -> None:
        super().__init__(number)
        self._server = server
        self._database = database

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS
        with self._server.connect(self._database) as connection, connection.cursor() as cursor:
            connection.autocommit(False)
            cursor.execute("SET time_zone = '+05:30'")
            next_id = ROWS + self.number
            while time.monotonic() < deadline:
                try:
                    next_id = self._turn(connection, cursor, next_id)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in (DEADLOCK, LOCK_WAIT):
                        raise
                    connection.rollback()

    def _turn(self, connection: Any, cursor: Any, next_id: int) -> int:
        what = self.random.random()
        if what < 0.5:
            self._renew(connection, cursor)
        elif what < 0.8:
            next_id += CLIENTS
            expired = self.random.random() < 0.5
            cursor.execute(f"INSERT INTO events VALUES ({next_id}, now(3) + INTERVAL {-1 if expired else 1} HOUR)")
            connection.commit()
            if not expired:
                self.live.add(next_id)
        elif what < 0.9 and self.live:
            victim = next(iter(self.live))
            gone = cursor.execute(f"DELETE FROM events WHERE id = {victim}")
            connection.commit()
            self.live.remove(victim)
            if gone != 1:
                self.problems.append(f"row {victim} was lost")
        else:
            cursor.execute(f"SELECT * FROM events WHERE id % 50 = {self.number} FOR UPDATE SKIP LOCKED")
            time.sleep(0.003)
            connection.rollback()
        return next_id

    def _renew(self, connection: Any, cursor: Any) -> None:
        """Whether a row is still there tells what the client may rely on."""
        among = ", ".join(map(str, self.some_of_its_rows()))
        cursor.execute(f"SELECT id FROM events WHERE id IN ({among}) FOR UPDATE")
        kept = [row[0] for row in cursor.fetchall()]
        cursor.execute(f"UPDATE events SET ts = now(3) + INTERVAL 1 HOUR WHERE id IN ({among})")
        if self.random.random() < 0.3:
            time.sleep(0.005)
        connection.commit()
        self.live |= set(kept)
        self.renewed += len(kept)


@pytest.mark.parametrize("waits", [False, True], ids=["MariaDB", "MySQL"])
def test_eight_clients_and_two_workers(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    if waits:
        monkeypatch.setattr(Flavour, "can_refuse_to_wait", False)
    database = str(make_url(h.url).database)
    with Lapse(h.url) as db, Lapse(h.url) as second:
        db.execute("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMP(3) NULL)")
        db.execute("ALTER TABLE events SET (ttl_expiration_expression = 'ts', ttl_delete_batch_size = 100)")
        db.execute("ALTER TABLE events SET (ttl_guard = 'off')")
        db.execute(f"INSERT INTO events SELECT seq, now(3) - INTERVAL 1 HOUR FROM {numbers(ROWS)}")
        run_among([MysqlClient(server, database, number) for number in range(CLIENTS)], (db, second))


@pytest.mark.parametrize("ttl", ["TTL = ts + INTERVAL 1 DAY", "SET (ttl_expire_after = '1 hour')"])
def test_many_first_declarations_at_the_same_time(h: Harness, server: MariadbServer, ttl: str) -> None:
    """Each finds no catalog, and one makes it."""
    names = [f"t{number}" for number in range(DECLARERS)]
    tables = [f"CREATE TABLE {name} (id INT PRIMARY KEY, ts DATETIME)" for name in names]
    server.execute(*tables, database=str(make_url(h.url).database))

    def declare(name: str) -> None:
        with Lapse(h.url, clock=h.clock) as db:
            db.execute(f"ALTER TABLE {name} {ttl}")

    with ThreadPoolExecutor(DECLARERS) as pool:
        list(pool.map(declare, names))
    assert {stored.table.name for stored in h.db.policies()} == set(names)
