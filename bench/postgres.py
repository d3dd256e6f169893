"""How fast Lapse deletes on PostgreSQL, beside the usual ways: `PYTHONPATH=src:. python -m bench.postgres`.

Every contender gets its own freshly loaded copy of the same rows, in shuffled order, three times; medians are shown.
The server is private: started here, removed at the end. What is left in the table is checked after every run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import psycopg
from tests.backends import BACKENDS
from tests.backends.postgres import Cluster, PostgresBackend

from lapse.app import Lapse
from lapse.runner.events import BatchDone, Silent

SERVER = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "2GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "wal_level": "replica",
}
KEYS = {"bigint": "n", "uuid": "md5(n::text)::uuid"}
EXPIRED_SHARE = 10
"""Every tenth row, spread evenly at random."""
SELECT_BATCH, DELETE_BATCH, LOOP_BATCH = 500, 100, 10_000


@dataclass(kw_only=True)
class Bench:
    url: str
    rows: int
    key: str
    batches: list[float] = field(default_factory=list)

    def load(self) -> int:
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("DROP TABLE IF EXISTS events")
            db.execute(
                f"CREATE TABLE events AS SELECT {KEYS[self.key]} AS id, (random_order * 1000000)::bigint AS other,"
                " repeat(md5(n::text), 6) AS body,"
                " now() + CASE WHEN expired THEN -1 ELSE 30 END * interval '1 day' AS expire_at FROM master"
                " ORDER BY n"
            )
            db.execute("ALTER TABLE events ADD PRIMARY KEY (id)")
            db.execute("CREATE INDEX events_other ON events (other)")
            db.execute("VACUUM (ANALYZE) events")
            db.execute("CHECKPOINT")
            return int(self._one(db, "SELECT count(*) FROM events WHERE expire_at <= now()"))

    def check(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as db:
            left, live = db.execute(
                "SELECT count(*) FILTER (WHERE expire_at <= now()), count(*) FILTER (WHERE expire_at > now())"
                " FROM events"
            ).fetchone() or (None, None)
            wanted = self._one(db, "SELECT count(*) FROM master WHERE NOT expired")
            assert (left, live) == (0, wanted), (left, live, wanted)

    @staticmethod
    def _one(db: psycopg.Connection, sql: str) -> int:
        row = db.execute(sql).fetchone()
        assert row is not None
        return int(row[0])

    # Contenders

    def one_statement(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as db:
            self._timed(lambda: db.execute("DELETE FROM events WHERE expire_at <= now()"))

    def references_loop(self) -> None:
        """SELECT 500 keys in key order, DELETE 100 of them at a time, as the reference documents do."""
        kind = {"bigint": "bigint", "uuid": "uuid"}[self.key]
        with psycopg.connect(self.url, autocommit=True) as db:
            cutoff = db.execute("SELECT now()").fetchone()
            last = None
            while True:
                after = "" if last is None else "AND id > %(last)s"
                rows = db.execute(
                    f"SELECT id FROM events WHERE expire_at <= %(cutoff)s {after} ORDER BY id LIMIT {SELECT_BATCH}",
                    {"cutoff": cutoff and cutoff[0], "last": last},
                ).fetchall()
                ids = [row[0] for row in rows]
                for start in range(0, len(ids), DELETE_BATCH):
                    part = ids[start : start + DELETE_BATCH]
                    self._timed(
                        lambda part=part: db.execute(
                            f"DELETE FROM events WHERE id = ANY(%s::{kind}[]) AND expire_at <= %s",
                            (part, cutoff and cutoff[0]),
                        )
                    )
                if len(ids) < SELECT_BATCH:
                    return
                last = ids[-1]

    def ctid_loop(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as db:
            done = False
            while not done:
                started = perf_counter()
                done = not db.execute(
                    "DELETE FROM events WHERE ctid IN"
                    f" (SELECT ctid FROM events WHERE expire_at <= now() LIMIT {LOOP_BATCH})"
                ).rowcount
                self.batches.append(perf_counter() - started)

    def lapse(self) -> None:
        watch = self

        class Watch(Silent):
            def batch_done(self, event: BatchDone) -> None:
                watch.batches.append(event.seconds)

        with Lapse(self.url) as db:
            # A worker has been at work before: what it prepares once per process is not measured.
            db.execute("DROP TABLE IF EXISTS small; CREATE TABLE small AS SELECT * FROM events LIMIT 1000")
            db.execute("ALTER TABLE small SET (ttl_expiration_expression = 'expire_at')")
            db.execute("SET GLOBAL tidb_ttl_scan_worker_count = 1")
            db.run("small")
            db.execute("ALTER TABLE events SET (ttl_expiration_expression = 'expire_at')")
            started = perf_counter()
            result = db.run("events", listener=Watch())
            self.seconds = perf_counter() - started
            assert result.complete
            db.execute("ALTER TABLE events RESET (ttl)")

    def _timed(self, action: Callable[[], object]) -> None:
        started = perf_counter()
        action()
        self.batches.append(perf_counter() - started)

    seconds: float = 0.0


CONTENDERS = {
    "one DELETE": Bench.one_statement,
    "references' loop, SELECT 500 / DELETE 100": Bench.references_loop,
    "ctid IN (… LIMIT 10000) loop": Bench.ctid_loop,
    "Lapse, one worker": Bench.lapse,
}


def server_seconds(postmaster: int) -> float:
    """Processor time of the server so far, ended backends included: a figure that other load does not touch."""

    def fields(pid: str) -> list[int]:
        text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return [int(text[number]) for number in (1, 11, 12, 13, 14)]

    ticks = sum(fields(str(postmaster))[3:])
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent, user, system, *_ = fields(folder.name)
            ticks += user + system if parent == postmaster else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(url: str, rows: int, rounds: int, postmaster: int) -> list[dict[str, object]]:
    turns = [(key, name) for key in KEYS for name in CONTENDERS for _ in range(rounds)]
    random.shuffle(turns)
    found: dict[tuple[str, str], list[tuple[float, list[float]]]] = {turn: [] for turn in turns}
    worked: dict[tuple[str, str], list[float]] = {turn: [] for turn in turns}
    for number, (key, name) in enumerate(turns, start=1):
        bench = Bench(url=url, rows=rows, key=key)
        expired = bench.load()
        before = server_seconds(postmaster)
        started = perf_counter()
        CONTENDERS[name](bench)
        worked[key, name].append(server_seconds(postmaster) - before)
        seconds = bench.seconds or perf_counter() - started
        bench.check()
        found[key, name].append((expired / seconds, bench.batches))
        print(f"{number}/{len(turns)} {key:7} {name:45} {expired / seconds:10,.0f} rows/s", flush=True)
    results = []
    for key in KEYS:
        base = statistics.median(rate for rate, _ in found[key, "one DELETE"])
        for name in CONTENDERS:
            rate = statistics.median(rate for rate, _ in found[key, name])
            batches = sorted(seconds for _, all_batches in found[key, name] for seconds in all_batches)
            results.append(
                {
                    "key": key,
                    "way": name,
                    "rows_per_second": round(rate),
                    "of_one_delete": round(rate / base, 2),
                    "server_cpu_seconds": round(statistics.median(worked[key, name]), 2),
                    "runs": [round(rate) for rate, _ in found[key, name]],
                    "median_ms": round(1000 * statistics.median(batches), 1),
                    "p95_ms": round(1000 * batches[int(len(batches) * 0.95)], 1),
                    "max_ms": round(1000 * batches[-1], 1),
                }
            )
    return results


def overhead(url: str, rounds: int) -> dict[str, float]:
    """What the managed column costs: seconds of bulk statements with it and without it."""
    statements = {
        "insert": "INSERT INTO {t} (n, body) SELECT n, md5(n::text) FROM generate_series(1, 300000) n",
        "update": "UPDATE {t} SET body = body || 'x'",
    }
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        with Lapse(url) as db, psycopg.connect(url, autocommit=True) as client:
            db.execute("DROP TABLE IF EXISTS plain; CREATE TABLE plain (n BIGINT PRIMARY KEY, body TEXT)")
            db.execute("DROP TABLE IF EXISTS managed")
            db.execute("CREATE TABLE managed (n BIGINT PRIMARY KEY, body TEXT) WITH (ttl_expire_after = '30 days')")
            for verb, sql in statements.items():
                for table in random.sample(["plain", "managed"], 2):
                    client.execute("CHECKPOINT")
                    started = perf_counter()
                    client.execute(sql.format(t=table))
                    seconds.setdefault((verb, table), []).append(perf_counter() - started)
    median = {turn: statistics.median(values) for turn, values in seconds.items()}
    return {verb: round(median[verb, "managed"] / median[verb, "plain"] - 1, 3) for verb in statements}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", default="postgres15")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    backend = BACKENDS[options.backend]
    assert issubclass(backend, PostgresBackend)
    binaries = backend.binaries()
    assert binaries is not None
    cluster = Cluster(binaries, SERVER)
    try:
        with psycopg.connect(cluster.url(), autocommit=True) as db:
            db.execute(
                "CREATE TABLE master AS SELECT n, random() AS random_order,"
                f" random() < 1.0 / {EXPIRED_SHARE} AS expired FROM generate_series(1, {options.rows}) n"
            )
            row = db.execute("SHOW server_version").fetchone()
        report = {
            "server": row and row[0],
            "machine": platform.processor() or platform.machine(),
            "rows": options.rows,
            "results": measure(cluster.url(), options.rows, options.rounds, cluster.pid),
            "managed_column_overhead": overhead(cluster.url(), options.rounds),
        }
    finally:
        cluster.close()
    print(json.dumps(report, indent=2, ensure_ascii=False))
    if options.output:
        options.output.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
