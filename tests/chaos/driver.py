"""Workers are killed, frozen, cut off and lied to while clients insert, renew and delete; then the books are checked.

The tables' own triggers keep the books, in the transactions that change the rows, so nothing has to be guessed:
every row that went must have expired or have been deleted by a client, and what the history counts is what went.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from threading import Event, Thread

from sqlalchemy import Connection

from lapse.app import Lapse
from lapse.engines import open_engine
from lapse.errors import LapseError
from tests.backends import Backend
from tests.chaos import audit

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much, for how long. `heartbeat_seconds` is short, so that takeovers happen during the test."""

    seconds: float
    tables: int
    workers: int
    clients: int = 3
    heartbeat_seconds: float = 1.0
    seed: int = 1


@dataclass
class Books:
    """What the triggers wrote down, added up."""

    inserted: int
    left: int
    by_clients: int
    by_ttl: int
    too_early: int
    expired_left: int
    counted: int
    stuck: list[str] = field(default_factory=list)


class Chaos:
    def __init__(self, backend: Backend, url: str, plan: Plan, worker_urls: Sequence[str] = ()) -> None:
        """Workers take turns with `worker_urls`, where the same database is reached in several ways."""
        self._backend = backend
        self._url = url
        self._worker_urls = cycle(worker_urls or [url])
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._tables = [f"t{number}" for number in range(plan.tables)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `run`
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stop = Event()
        self.actions: dict[str, int] = {}

    def run(self) -> Books:
        with Lapse(self._url) as db:
            self._prepare(db)
        for _ in range(self._plan.workers):
            self._workers.append(self._start_worker(next(self._worker_urls)))
        clients = [Thread(target=self._client, args=(n,)) for n in range(self._plan.clients)]
        for client in clients:
            client.start()
        try:
            self._make_trouble()
        finally:
            self._stop.set()
            for client in clients:
                client.join()
            self._end_workers()
            self._log.close()
        with Lapse(self._url) as db:
            return self._check(db)

    def _prepare(self, db: Lapse) -> None:
        instant = self._backend.instant
        audit.install(db, instant)
        for table in self._tables:
            db.execute(
                f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, expires_at {instant}, n INTEGER) "
                "WITH (ttl_expiration_expression = 'expires_at', ttl_job_interval = '1 second', "
                "ttl_delete_batch_size = 50, ttl_grace = '0 seconds')"
            )
            audit.watch(db, table)
        db.set_setting("lapse_heartbeat_interval", f"{self._plan.heartbeat_seconds} seconds")

    # Clients

    def _client(self, number: int) -> None:
        chance = random.Random(self._plan.seed * 1000 + number)
        engine = open_engine(self._url)
        next_id = number
        while not self._stop.is_set():
            table = chance.choice(self._tables)
            try:
                what = chance.random()
                with engine.errors(), closing(engine.user_connection()) as connection, engine.atomic(connection):
                    if what < 0.6:
                        rows = []
                        for _ in range(20):
                            rows.append(f"({next_id}, {self._moment(chance)}, 0)")
                            next_id += self._plan.clients
                        connection.exec_driver_sql(f"INSERT INTO {table} VALUES {', '.join(rows)}")
                    elif what < 0.85:
                        low = chance.randrange(next_id + 1)
                        connection.exec_driver_sql(
                            f"UPDATE {table} SET expires_at = {self._moment(chance)}, n = n + 1"
                            f" WHERE id BETWEEN {low} AND {low + 60}"
                        )
                    else:
                        self._delete_some(connection, table, chance.randrange(next_id + 1))
            except LapseError:
                # A lost connection or a deadlock: the transaction is gone, the books with it.
                self._stop.wait(0.1)
            self._stop.wait(0.01)
        engine.close()

    @staticmethod
    def _delete_some(connection: Connection, table: str, low: int) -> None:
        execute = connection.exec_driver_sql
        found = [row[0] for row in execute(f"SELECT id FROM {table} WHERE id BETWEEN {low} AND {low + 20}")]
        for number in found:
            gone = execute(f"DELETE FROM {table} WHERE id = {number}").rowcount
            if gone:
                execute(f"INSERT INTO audit (tbl, id, op) VALUES ('{table}', {number}, 'C')")

    @staticmethod
    def _moment(chance: random.Random) -> str:
        """Expired, about to expire, to live for ever, or for an hour."""
        kind = chance.random()
        if kind < 0.1:
            return "NULL"
        seconds = chance.uniform(-60, -1) if kind < 0.5 else chance.uniform(0, 5) if kind < 0.7 else 3600.0
        moment = datetime.now(UTC) + timedelta(seconds=seconds)
        return "'" + moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03}'"

    # HeldKind

    def _make_trouble(self) -> None:
        deadline = time.monotonic() + self._plan.seconds
        troubles = [self._kill, self._freeze, self._lie, self._cut, self._restart_server]
        while time.monotonic() < deadline:
            time.sleep(self._random.uniform(0.5, 1.5))
            trouble = self._random.choice(troubles)
            self.actions[trouble.__name__] = self.actions.get(trouble.__name__, 0) + 1
            trouble()

    def _kill(self) -> None:
        index = self._random.randrange(len(self._workers))
        self._workers[index].kill()
        self._workers[index].wait()
        self._workers[index] = self._start_worker(next(self._worker_urls))

    def _freeze(self) -> None:
        victim = self._random.choice(self._workers)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(self._plan.heartbeat_seconds * 2.5)
        victim.send_signal(signal.SIGCONT)

    def _lie(self) -> None:
        victim = self._random.choice(self._workers)
        victim.send_signal(signal.SIGUSR1)
        time.sleep(self._random.uniform(0.5, 2.0))
        victim.send_signal(signal.SIGUSR1)

    def _cut(self) -> None:
        self._backend.cut_connections(self._url)

    def _restart_server(self) -> None:
        self._backend.restart()

    def _start_worker(self, url: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worker", url],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdout=self._log,
            stderr=self._log,
        )

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGCONT)
            worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(20)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    # The books

    def _check(self, db: Lapse) -> Books:
        deadline = time.monotonic() + 60
        while db.jobs() and time.monotonic() < deadline:
            db.run()
        # Jobs of the storm had earlier cutoffs, and rows were inserted behind their backs: now one fresh job each.
        cutoff = min(job.cutoff for table in self._tables for job in db.run(table).jobs)
        count = self._count
        left = sum(count(db, f"SELECT count(*) FROM {table}") for table in self._tables)
        before = "'" + cutoff.strftime("%Y-%m-%d %H:%M:%S.%f") + "'"
        by_clients = count(db, "SELECT count(*) FROM audit WHERE op = 'C'")
        return Books(
            inserted=count(db, "SELECT count(*) FROM audit WHERE op = 'I'"),
            left=left,
            by_clients=by_clients,
            by_ttl=count(db, "SELECT count(*) FROM audit WHERE op = 'D'") - by_clients,
            too_early=count(
                db,
                "SELECT count(*) FROM audit d WHERE op = 'D' AND (expires_at IS NULL OR expires_at > at)"
                " AND NOT EXISTS (SELECT 1 FROM audit c WHERE c.op = 'C' AND c.tbl = d.tbl AND c.id = d.id)",
            ),
            expired_left=sum(
                count(db, f"SELECT count(*) FROM {table} WHERE expires_at <= {before}") for table in self._tables
            ),
            counted=sum(job.counts.deleted for job in db.history(limit=1_000_000)),
            stuck=[f"{job.id} {job.status}" for job in db.jobs()],
        )

    @staticmethod
    def _count(db: Lapse, sql: str) -> int:
        return int(db.execute(sql).rows[0][0])
