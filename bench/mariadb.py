"""How fast expired rows leave a MariaDB table, by several ways: `python -m bench.mariadb`.

One million rows of about 250 bytes with an index on a random column, a tenth of them expired and spread evenly. Each
way starts from a fresh copy of the same table; the order is shuffled in every round; what is left is checked.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

from tests.backends.mariadb import MariadbServer, has_rocksdb

from lapse.app import Lapse

CHUNK = 20_000
CUTOFF = "2026-01-01 00:00:00"
EXPIRED = f"expire_at <= '{CUTOFF}'"
SERVER = ("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=512M", "--innodb-flush-log-at-trx-commit=1")


class Bench:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.server = MariadbServer(*SERVER, rocksdb=has_rocksdb())
        self.server.execute("CREATE DATABASE bench")
        self.session = self.server.connect("bench")
        self.run("SET sql_mode = '', time_zone = '+00:00'")
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self.run("CREATE TABLE source (id BIGINT PRIMARY KEY, r INT, expire_at DATETIME NULL, pad VARCHAR(220))")
        self.run(
            "INSERT INTO source SELECT seq, floor(rand(1) * 1e9), if(seq % 10 = 3, '2020-01-01', '2037-01-01'), "
            f"repeat('x', 200) FROM seq_1_to_{rows}"
        )

    def run(self, sql: str) -> list[tuple[object, ...]]:
        with self.session.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def fill(self) -> None:
        self.run("DROP TABLE IF EXISTS t")
        self.run(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, r INT, expire_at DATETIME NULL, pad VARCHAR(220), KEY (r)) "
            "ENGINE=InnoDB"
        )
        self.run("INSERT INTO t SELECT * FROM source ORDER BY id")
        self.run("ANALYZE TABLE t")

    def left(self) -> tuple[object, ...]:
        return self.run(f"SELECT count(*), sum({EXPIRED}) FROM t")[0]

    # The ways

    def one_delete(self) -> None:
        self.run(f"DELETE FROM t WHERE {EXPIRED}")

    def references_loop(self) -> None:
        """What the reference documents describe: select 500 keys, delete them 100 at a time."""
        last = 0
        while True:
            rows = self.run(f"SELECT id FROM t WHERE id > {last} AND {EXPIRED} ORDER BY id LIMIT 500")
            keys = [str(row[0]) for row in rows]
            for start in range(0, len(keys), 100):
                self.run(f"DELETE FROM t WHERE id IN ({','.join(keys[start : start + 100])}) AND {EXPIRED}")
            if len(keys) < 500:
                return
            last = int(keys[-1])

    def delete_limit_loop(self) -> None:
        """The usual recipe: each statement reads again what the others have left."""
        with self.session.cursor() as cursor:
            while cursor.execute(f"DELETE FROM t WHERE {EXPIRED} LIMIT 10000"):
                pass

    def lapse(self) -> None:
        assert self.db.run("t").deleted == self.rows // 10

    def archiver(self) -> None:
        subprocess.run(
            [
                "pt-archiver",
                f"--source=h=127.0.0.1,P={self.server.port},u=root,D=bench,t=t",
                f"--where={EXPIRED}",
                "--purge",
                "--bulk-delete",
                "--limit=1000",
                "--commit-each",
                "--no-check-charset",
            ],
            check=True,
            capture_output=True,
        )

    def measure(self, name: str, way: Callable[[], None]) -> float:
        self.fill()
        if name == "Lapse":
            self.db = Lapse(f"{self.server.url}/bench")
            self.db.execute("ALTER TABLE t SET (ttl_expiration_expression = 'expire_at')")
        started = perf_counter()
        way()
        seconds = perf_counter() - started
        if name == "Lapse":
            self.db.execute("ALTER TABLE t RESET (ttl)")
            self.db.close()
        left, expired = self.left()
        assert (left, int(str(expired))) == (self.rows - self.rows // 10, 0), (name, left, expired)
        return seconds

    def measure_myrocks(self) -> float:
        """The same rows in a MyRocks table; some of the expired go by its own compactions while it is filled."""
        self.run("DROP TABLE IF EXISTS r")
        with Lapse(f"{self.server.url}/bench") as db:
            db.execute(
                "CREATE TABLE r (id BIGINT PRIMARY KEY, ts BIGINT UNSIGNED NOT NULL, r INT, pad VARCHAR(220), KEY (r)) "
                "ENGINE=ROCKSDB COMMENT='ttl_duration=3600;ttl_col=ts;'"
            )
            for first in range(1, self.rows, CHUNK):
                self.run(
                    "INSERT INTO r SELECT id, if(id % 10 = 3, 1, unix_timestamp()), r, pad FROM source "
                    f"WHERE id BETWEEN {first} AND {first + CHUNK - 1}"
                )
            db.execute("ALTER TABLE r SET (ttl_adaptive = 'off')")
            started = perf_counter()
            db.run("r")
            seconds = perf_counter() - started
            (left,) = self.run(
                "SELECT sum(m.NUM_ROWS) FROM information_schema.ROCKSDB_DDL d "
                "JOIN information_schema.ROCKSDB_INDEX_FILE_MAP m ON m.COLUMN_FAMILY = d.COLUMN_FAMILY "
                "AND m.INDEX_NUMBER = d.INDEX_NUMBER WHERE d.TABLE_NAME = 'r' AND d.INDEX_NAME = 'PRIMARY'"
            )
            assert int(str(left[0])) == self.rows - self.rows // 10, left
            assert self.run("SELECT count(*) FROM r")[0][0] == self.rows - self.rows // 10
            db.execute("DROP TABLE r")
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-myrocks", action="store_true")
    options = parser.parse_args()
    bench = Bench(options.rows)
    ways: dict[str, Callable[[], None]] = {
        "one DELETE": bench.one_delete,
        "references' loop": bench.references_loop,
        "DELETE … LIMIT loop": bench.delete_limit_loop,
        "Lapse": bench.lapse,
    }
    if shutil.which("pt-archiver"):
        ways["pt-archiver"] = bench.archiver
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    if has_rocksdb() and not options.without_myrocks:
        seconds["MyRocks native"] = []
    try:
        for number in range(options.rounds):
            for name in random.sample(list(seconds), len(seconds)):
                taken = bench.measure_myrocks() if name == "MyRocks native" else bench.measure(name, ways[name])
                seconds[name].append(taken)
                print(f"round {number + 1}: {name}: {taken:.2f} s", file=sys.stderr, flush=True)
    finally:
        bench.server.close()
    best = statistics.median(seconds["one DELETE"])
    print("| way | seconds (median of 3) | rows/s | of one DELETE |\n|---|---|---|---|")
    for name, taken in sorted(seconds.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(taken)
        spread = " / ".join(f"{each:.2f}" for each in sorted(taken))
        print(f"| {name} | {median:.2f} ({spread}) | {options.rows / 10 / median:,.0f} | {best / median:.2f}x |")


if __name__ == "__main__":
    main()
