"""Holds placed and released at any moment while four workers delete: from the return of `hold` on no held row goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from threading import Event, Thread
from time import monotonic

import pytest

from lapse.app import Lapse
from lapse.errors import Retryable
from tests.conformance.harness import Harness

WORKERS = 4
ACCOUNTS = 8
PER_ACCOUNT = 40
SHORT_SECONDS = 2.0
LONG_SECONDS = float(os.environ.get("LAPSE_CHAOS_SECONDS", "240")) / 4


class Holder:
    """Places and releases holds by account, and knows which rows were there when a hold was placed."""

    def __init__(self, h: Harness, seed: int) -> None:
        self._h = h
        self._chance = Random(seed)
        self._held: dict[int, tuple[int, frozenset[int]]] = {}
        self._next = 0
        self.placed = 0

    def turn(self) -> None:
        account = self._chance.randrange(ACCOUNTS)
        self.check()
        if account in self._held:
            number, _ = self._held.pop(account)
            self._h.owner.release(number)
        elif self._chance.random() < 0.5:
            self.place(account)
        else:
            self.fill(account)

    def place(self, account: int) -> None:
        number = self._h.owner.hold("events", f"account = {account}").id
        self._held[account] = (number, frozenset(self._rows(account)))
        self.placed += 1

    def fill(self, account: int) -> None:
        """Rows that have expired before they come; in a partitioned table, in every partition that is to be dropped."""
        first, self._next = self._next, self._next + PER_ACCOUNT
        rows = [f"({first + i}, {self._h.at(days=-45 + 4 * (i % 10))}, {account})" for i in range(PER_ACCOUNT)]
        self._h.sql(f"INSERT INTO events (id, ts, account) VALUES {', '.join(rows)}")

    def check(self) -> None:
        for account, (number, rows) in self._held.items():
            gone = rows - set(self._rows(account))
            assert not gone, f"hold {number} of account {account} lost rows {sorted(gone)}"

    def release_all(self) -> None:
        for number, _ in self._held.values():
            self._h.owner.release(number)
        self._held.clear()

    def _rows(self, account: int) -> list[int]:
        return [row[0] for row in self._h.rows(f"SELECT id FROM events WHERE account = {account}")]


@contextmanager
def _workers(h: Harness) -> Iterator[list[BaseException]]:
    """Each deletes whatever is due, as often as it can."""
    stop, failures = Event(), list[BaseException]()

    def work(database: Lapse) -> None:
        try:
            while not stop.is_set():
                with suppress(Retryable):
                    database.run("events")
        except BaseException as error:
            failures.append(error)

    databases = [h.open() for _ in range(WORKERS)]
    threads = [Thread(target=work, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for database in databases:
            database.close()


def _declare(h: Harness, *, partitioned: bool) -> None:
    options = "ttl_guard = 'off', ttl_grace = '0 seconds', ttl_delete_batch_size = 5, ttl_adaptive = 'off'"
    if not partitioned:
        h.events(extra=f", account {h.backend.bigint}")
        h.sql(f"ALTER TABLE events SET ({options})")
        return
    if not h.features.partitions:
        pytest.skip("there are no partitions")
    days = (-41, -33, -25, -17, -9, 40)
    if h.db.engine.dialect == "postgres":
        h.sql("CREATE TABLE events (id bigint, ts timestamptz NOT NULL, account bigint) PARTITION BY RANGE (ts)")
        lower = "MINVALUE"
        for number, day in enumerate(days):
            upper = f"{h.at(days=day)}::timestamptz"
            h.sql(f"CREATE TABLE p{number} PARTITION OF events FOR VALUES FROM ({lower}) TO ({upper})")
            lower = upper
    else:
        parts = (f"PARTITION p{number} VALUES LESS THAN ({h.at(days=day)})" for number, day in enumerate(days))
        h.sql(
            "CREATE TABLE events (id BIGINT, ts DATETIME(3) NOT NULL, account BIGINT, PRIMARY KEY (id, ts))"
            f" PARTITION BY RANGE COLUMNS (ts) ({', '.join(parts)})"
        )
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 day''')")
    h.sql(f"ALTER TABLE events SET (ttl_partition_drop = 'on', {options})")


def _hold_and_release(h: Harness, seconds: float, *, partitioned: bool, seed: int) -> None:
    _declare(h, partitioned=partitioned)
    holder = Holder(h, seed)
    for account in range(ACCOUNTS):
        holder.fill(account)
    with _workers(h) as failures:
        end = monotonic() + seconds
        # On a slow machine a few turns are waited for, however long they take.
        while (monotonic() < end or not holder.placed) and not failures:
            holder.turn()
        holder.check()
    assert not failures, failures
    holder.check()
    holder.release_all()
    for _ in range(5):
        h.run("events")
        if not h.ids():
            return
    assert h.ids() == []


def test_no_held_row_goes_and_all_others_do(h: Harness) -> None:
    _hold_and_release(h, SHORT_SECONDS, partitioned=False, seed=1)


def test_no_held_row_goes_with_a_partition(h: Harness) -> None:
    # Partitions that are dropped do not come back, so rows of the past would have no place.
    _declare(h, partitioned=True)
    holder = Holder(h, 2)
    for account in range(ACCOUNTS):
        holder.fill(account)
    for account in range(0, ACCOUNTS, 3):
        holder.place(account)
    with _workers(h) as failures:
        end = monotonic() + SHORT_SECONDS / 2
        while monotonic() < end and not failures:
            holder.check()
    assert not failures, failures
    holder.check()
    holder.release_all()
    for _ in range(5):
        h.run("events")
    assert h.ids() == []


@pytest.mark.slow
@pytest.mark.timeout(LONG_SECONDS + 600)
@pytest.mark.parametrize("seed", range(3))
def test_for_a_long_time(h: Harness, seed: int) -> None:
    _hold_and_release(h, LONG_SECONDS / 3, partitioned=False, seed=100 + seed)
