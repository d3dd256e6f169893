"""An application at work: reads, updates and inserts by key at a steady rate, each client a process of its own.

`python -m bench.load URL TABLE ROWS RATE`: works until its input ends, then prints what every transaction took. A
rate of 0 means as fast as it can. A transaction that should have begun while its client was still busy with the one
before counts from the moment it should have begun, so a stall is seen by everything that queued behind it.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from time import monotonic, sleep

from sqlalchemy import make_url

from lapse.bench import BenchTable, table_for

CLIENTS = 4
"""Threads of one process would wait for each other, and that would be taken for the database's time."""
READS, UPDATES = 0.6, 0.25
"""Shares; the rest are inserts."""


class Client:
    def __init__(self, table: BenchTable, number: int, rows: int, rate: float) -> None:
        self._table = table
        self._chance = random.Random(number)
        self._rows = rows
        self._next_id = rows + 1 + number
        self._interval = CLIENTS / rate if rate else 0.0
        self.samples: list[tuple[float, float]] = []
        self.inserted = 0

    def work(self, stop: Event) -> None:
        due = monotonic() + self._chance.random() * self._interval
        with closing(self._table.connect()) as connection, closing(connection.cursor()) as cursor:
            while not stop.is_set():
                now = monotonic()
                if self._interval and now < due:
                    sleep(due - now)
                    begun = monotonic()
                else:
                    begun = due if self._interval else now
                self._transaction(cursor)
                self.samples.append((begun, monotonic() - begun))
                due += self._interval

    def _transaction(self, cursor: object) -> None:
        execute = cursor.execute  # type: ignore[attr-defined]
        name, kind, row = self._table.name, self._chance.random(), self._chance.randint(1, self._rows)
        if kind < READS:
            execute(f"SELECT body, expire_at FROM {name} WHERE id = {row}")
            cursor.fetchall()  # type: ignore[attr-defined]
        elif kind < READS + UPDATES:
            execute(f"UPDATE {name} SET body = 'changed' WHERE id = {row}")
        else:
            values = ", ".join(["0", *(str(self._chance.randint(1, 1 << 30)) for _ in range(5))])
            execute(
                f"INSERT INTO {name} (id, r0, r1, r2, r3, r4, r5, expire_at, body)"
                f" VALUES ({self._next_id}, {values}, '2037-01-01 00:00:00', 'new')"
            )
            self._next_id += CLIENTS
            self.inserted += 1


def _be_a_client(number: int, stop: Event, told: Connection) -> None:
    url, name, rows, rate = sys.argv[1:]
    client = Client(table_for(make_url(url), name), number, int(rows), float(rate))
    client.work(stop)
    told.send((client.samples, client.inserted))


def main() -> None:
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(CLIENTS)]
    clients = [
        context.Process(target=_be_a_client, args=(number, stop, told)) for number, (_, told) in enumerate(pipes)
    ]
    for client in clients:
        client.start()
    for _, told in pipes:
        told.close()  # so that the end of a client is noticed
    sys.stdin.read()
    stop.set()
    results = [heard.recv() for heard, _ in pipes]
    for client in clients:
        client.join()
    json.dump(
        {"samples": [sample for samples, _ in results for sample in samples], "inserted": sum(n for _, n in results)},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
