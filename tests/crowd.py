"""Clients that renew, insert and delete rows while jobs run, and know which of theirs must be there in the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from lapse.app import Lapse

CLIENTS = 8
SECONDS = 4.0
ROWS = 4_000
"""Of table `events`, all expired at the start; client n owns those whose id is n modulo the number of clients."""


class Client(threading.Thread):
    """`live` are the rows that it has renewed or inserted, and that nobody but itself may delete."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"client-{number}")
        self.number = number
        self.random = random.Random(number)
        self.live: set[int] = set()
        self.problems: list[str] = []
        self.renewed = 0

    def some_of_its_rows(self) -> list[int]:
        return sorted({self.number + CLIENTS * self.random.randrange(ROWS // CLIENTS) for _ in range(5)})


def run_among(clients: Sequence[Client], workers: Sequence[Lapse]) -> None:
    """Jobs run, one after the other, until the clients have had enough; then the books are checked."""
    for client in clients:
        client.start()
    deleted = 0
    while any(client.is_alive() for client in clients):
        deleted += sum(worker.run("events").deleted for worker in workers)
    for client in clients:
        client.join()
    db = workers[0]
    db.run("events")
    last = db.run("events")
    assert not [problem for client in clients for problem in client.problems]
    assert sum(client.renewed for client in clients) > 100
    assert deleted > 500
    there = {row[0] for row in db.execute("SELECT id FROM events").rows}
    assert there == set().union(*(client.live for client in clients))
    assert last.deleted == 0
