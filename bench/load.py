"""An application at work: reads, updates and inserts by key at a steady rate, in a process of its own.

`python -m bench.load URL TABLE ROWS RATE`: works until its input ends, then prints what every transaction took. A
rate of 0 means as fast as it can. A transaction that should have begun while its client was still busy with the one
before counts from the moment it should have begun, so a stall is seen by everything that queued behind it.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import closing
from threading import Event, Thread
from time import monotonic, sleep

from sqlalchemy import make_url

from lapse.bench import BenchTable, table_for

CLIENTS = 4
READS, UPDATES = 0.6, 0.25
"""Shares; the rest are inserts."""


class Client(Thread):
    def __init__(self, table: BenchTable, number: int, rows: int, rate: float, stop: Event) -> None:
        super().__init__()
        self._table = table
        self._chance = random.Random(number)
        self._rows = rows
        self._next_id = rows + 1 + number
        self._interval = CLIENTS / rate if rate else 0.0
        self._stop_asked = stop
        self.samples: list[tuple[float, float]] = []
        self.inserted = 0

    def run(self) -> None:
        due = monotonic() + self._chance.random() * self._interval
        with closing(self._table.connect()) as connection, closing(connection.cursor()) as cursor:
            while not self._stop_asked.is_set():
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


def main() -> None:
    url, name, rows, rate = sys.argv[1:]
    stop = Event()
    clients = [Client(table_for(make_url(url), name), i, int(rows), float(rate), stop) for i in range(CLIENTS)]
    for client in clients:
        client.start()
    sys.stdin.read()
    stop.set()
    for client in clients:
        client.join()
    samples = [sample for client in clients for sample in client.samples]
    json.dump({"samples": samples, "inserted": sum(client.inserted for client in clients)}, sys.stdout)


if __name__ == "__main__":
    main()
