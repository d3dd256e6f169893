"""Eight clients renew, insert and delete while jobs run: nothing live is lost, nothing expired is left."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

from lapse.app import Lapse
from tests.conformance.harness import Harness
from tests.crowd import CLIENTS, ROWS, SECONDS, Client, run_among


class PostgresClient(Client):
    def __init__(self, url: str, number: int) -> None:
        super().__init__(number)
        self._url = url

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS
        with psycopg.connect(self._url) as connection:
            next_id = ROWS + self.number
            while time.monotonic() < deadline:
                try:
                    next_id = self._turn(connection, next_id)
                except psycopg.errors.DeadlockDetected:
                    connection.rollback()

    def _turn(self, connection: psycopg.Connection, next_id: int) -> int:
        what = self.random.random()
        if what < 0.5:
            # Whether it is still there tells what the client may rely on.
            wanted = self.some_of_its_rows()
            kept = connection.execute(
                "UPDATE events SET ts = now() + interval '1 hour' WHERE id = ANY(%s) RETURNING id", (wanted,)
            ).fetchall()
            if self.random.random() < 0.3:
                time.sleep(0.005)
            connection.commit()
            self.live |= {row[0] for row in kept}
            self.renewed += len(kept)
        elif what < 0.8:
            next_id += CLIENTS
            expired = self.random.random() < 0.5
            connection.execute(
                "INSERT INTO events VALUES (%s, now() + %s * interval '1 hour')", (next_id, -1 if expired else 1)
            )
            connection.commit()
            if not expired:
                self.live.add(next_id)
        elif what < 0.9 and self.live:
            victim = self.live.pop()
            gone = connection.execute("DELETE FROM events WHERE id = %s", (victim,)).rowcount
            connection.commit()
            if gone != 1:
                self.problems.append(f"row {victim} was lost")
        else:
            connection.execute("SELECT * FROM events WHERE id %% 50 = %s FOR UPDATE SKIP LOCKED", (self.number,))
            time.sleep(0.003)
            connection.rollback()
        return next_id


def test_eight_clients_and_two_workers(h: Harness) -> None:
    with Lapse(h.url) as db, Lapse(h.url) as second:
        db.execute("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) WITH (fillfactor = 80)")
        db.execute("ALTER TABLE events SET (ttl_expiration_expression = 'ts', ttl_delete_batch_size = 100)")
        db.execute(f"INSERT INTO events SELECT n, now() - interval '1 hour' FROM generate_series(1, {ROWS}) n")
        run_among([PostgresClient(h.url, number) for number in range(CLIENTS)], (db, second))


def test_a_job_that_begins_waits_for_a_change_of_its_policy_without_the_rows_of_its_tables(h: Harness) -> None:
    """What changes a policy locks its row first and those of its tables then. In the other order the two would wait for
    each other, and the server would refuse one of them."""
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    # The first run writes down that it may.
    assert h.db.run("events").deleted == 1
    h.insert((3, h.at(days=-2)))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(h.url) as changing, psycopg.connect(h.url) as watching:
        watching.autocommit = True
        # Less than the server takes to see that two wait for each other.
        changing.execute("SET lock_timeout = '300ms'")
        changing.execute("UPDATE lapse_ttl.lapse_policy SET grace_until = NULL")
        run = pool.submit(h.db.run, "events")
        deadline = time.monotonic() + 30
        while watching.execute(waiting).fetchone() == (0,):
            assert not run.done() and time.monotonic() < deadline
            time.sleep(0.01)
        changing.execute("UPDATE lapse_ttl.lapse_table SET statistics = statistics")
        changing.commit()
        assert run.result(30).deleted == 1
    assert h.ids() == [2]
