"""What per-row TTL costs: Lapse's stores beside the bare engines, Redis, diskcache and sqlite3 with an expiry
column.

All figures of a run are taken in turns on the same data, each round in another order, so that the ratios mean
something on a shared machine. The time that the process had a processor is the second witness: neighbours do not
lengthen it by making it wait.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import sqlite3
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lapse.kv
import lapse.kv.aio
from lapse.bench.measure import Progress
from lapse.clock import ManualClock
from lapse.kv.rocksdb.store import RocksStore
from lapse.kv.verify import total_bytes

BATCH_ROWS = 1_000
TTL_MS = 30 * 86_400_000
SMALL_SHARE = 10
"""The slower contestants get this part of the rows."""
VALUE_BYTES = 100
TTLS = ("30 days", timedelta(days=7), "1 hour", timedelta(hours=9))
"""Each row of the contestants with a TTL per row gets another one."""
PURGE_FACTOR = 10
"""Purges are measured on so many times the rows."""
DISK_FACTOR = 30
"""Logs and tables are measured after so many times the puts."""
REDIS_START_S = 10
Rows = list[tuple[bytes, bytes]]


class Rate(NamedTuple):
    """Rows per second of wall time, and per second of processor time of all threads where it was taken."""

    wall: float
    cpu: float | None = None


Figures = dict[str, Rate]
"""By operation."""


def make_rows(count: int) -> Rows:
    """Random keys of 16 bytes and values of which half compresses, as real ones do."""
    source = random.Random(7)
    return [(source.randbytes(8).hex().encode(), source.randbytes(50) + b"x" * 50) for _ in range(count)]


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="lapse-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def rate(count: int, work: Callable[[], object]) -> Rate:
    began, worked = time.perf_counter(), time.process_time()
    work()
    return Rate(count / (time.perf_counter() - began), count / (time.process_time() - worked))


async def rate_async(count: int, work: Callable[[], Awaitable[object]]) -> Rate:
    began, worked = time.perf_counter(), time.process_time()
    await work()
    return Rate(count / (time.perf_counter() - began), count / (time.process_time() - worked))


def batches(rows: Rows) -> Iterator[Rows]:
    for start in range(0, len(rows), BATCH_ROWS):
        yield rows[start : start + BATCH_ROWS]


def measure(
    rows: Rows,
    *,
    put: Any,
    get: Any,
    many: Any,
    scan: Any,
    singles: int,
    settle: Callable[[], object] = int,
    ttls: Mapping[bytes, object] | None = None,
) -> Figures:
    """`many` fills the store, `settle` moves the rows to where they stay; single puts overwrite some of
    them, each with one of `ttls` if there are any."""
    picks = random.Random(3).sample(rows, singles)
    hits, misses = [key for key, _ in picks], [value[:16] for _, value in picks]
    with_ttls = [(key, value, ttls[key]) for key, value in picks] if ttls else []

    def gets(keys: list[bytes]) -> None:
        for key in keys:
            get(key)

    def puts() -> None:
        for key, value in picks:
            put(key, value)

    def puts_with_ttls(rows: list[tuple[bytes, bytes, object]]) -> None:
        for key, value, ttl in rows:
            put(key, value, ttl)

    figures = {"batch put": rate(len(rows), lambda: [many(part) for part in batches(rows)])}
    settle()
    figures["scan"] = rate(len(rows), lambda: sum(1 for _ in scan()))
    figures["get"] = rate(singles, lambda: gets(hits))
    figures["miss"] = rate(singles, lambda: gets(misses))
    figures["put"] = rate(singles, (lambda: puts_with_ttls(with_ttls)) if ttls else puts)
    return figures


def bare_rocksdb(rows: Rows, singles: int, *, ttl_s: int = 0, head: bytes = b"") -> Figures:
    """`ttl_s` is the engine's own TTL, `head` a header put before every value by hand."""
    from rocksdict import AccessType, Options, Rdict, WriteBatch

    with folder() as path:
        access = AccessType.with_ttl(ttl_s) if ttl_s else AccessType.read_write()
        database = Rdict(str(path / "db"), Options(raw_mode=True), access_type=access)

        def many(part: Rows) -> None:
            batch = WriteBatch(raw_mode=True)
            put = batch.put
            if head:
                for key, value in part:
                    put(key, head + value)
            else:
                for key, value in part:
                    put(key, value)
            database.write(batch)

        figures = measure(
            rows,
            put=database.put,
            get=database.get,
            many=many,
            scan=database.items,
            singles=singles,
            settle=database.flush,
        )
        database.close()
        return figures


def flush_tables(store: lapse.kv.Store) -> Callable[[], object]:
    """Moves a RocksDB store's rows to table files, as time would."""
    adapted: Any = store
    assert isinstance(adapted._inner, RocksStore)
    flush: Callable[[], object] = adapted._inner.handle.flush
    return flush


def lapse_rocksdb_each(rows: Rows, singles: int) -> Figures:
    """A TTL per row: `put_many` with rows of three, single puts, and a `batch()`."""
    ttls = {key: TTLS[number % len(TTLS)] for number, (key, _) in enumerate(rows)}
    parts = {part[0]: [(key, value, ttls[key]) for key, value in part] for part in batches(rows)}
    with folder() as path, lapse.kv.open(f"rocksdb:{path / 'db'}") as store:
        figures = measure(
            rows,
            put=store.put,
            get=store.get,
            many=lambda part: store.put_many(parts[part[0]]),
            ttls=ttls,
            scan=store.scan,
            singles=singles,
            settle=flush_tables(store),
        )
    with folder() as path, lapse.kv.open(f"rocksdb:{path / 'db'}") as store:

        def collect() -> None:
            for part in parts.values():
                with store.batch() as batch:
                    put = batch.put
                    for key, value, ttl in part:
                        put(key, value, ttl)

        figures["batch()"] = rate(len(rows), collect)
    return figures


def lapse_rocksdb(rows: Rows, singles: int) -> Figures:
    with folder() as path, lapse.kv.open(f"rocksdb:{path / 'db'}", default_ttl="30 days") as store:
        return measure(
            rows,
            put=store.put,
            get=store.get,
            many=store.put_many,
            scan=store.scan,
            singles=singles,
            settle=flush_tables(store),
        )


def purge_rocksdb(rows: Rows, singles: int) -> Figures:
    clock = ManualClock()
    with (
        folder() as path,
        lapse.kv.open(f"rocksdb:{path / 'db'}", default_ttl="1 hour", clock=clock) as store,
    ):
        store.put_many(rows)
        clock.advance(timedelta(hours=1))
        swept = store.purge()
        store.put_many(rows)
        clock.advance(timedelta(hours=1))
        physical = store.purge(within="5 minutes")
        assert swept.purged == physical.purged == len(rows) and physical.complete
        return {
            "purge": Rate(swept.purged / swept.elapsed_s),
            "purge, verified": Rate(physical.purged / physical.elapsed_s),
        }


async def slatedb_figures(rows: Rows, singles: int, *, put: Any, get: Any, many: Any, scan: Any) -> Figures:
    picks = random.Random(3).sample(rows, singles)

    async def fill() -> None:
        for part in batches(rows):
            await many(part)

    async def gets() -> None:
        for key, _ in picks:
            await get(key)

    async def puts() -> None:
        for key, value in picks:
            await put(key, value)

    async def misses() -> None:
        for _, value in picks:
            await get(value[:16])

    figures = {"batch put": await rate_async(len(rows), fill)}
    figures["get"] = await rate_async(singles, gets)
    figures["miss"] = await rate_async(singles, misses)
    figures["put"] = await rate_async(singles, puts)
    figures["scan"] = await rate_async(len(rows), scan)
    return figures


def bare_slatedb(rows: Rows, singles: int, *, with_ttl: bool = False) -> Figures:
    """`with_ttl` gives every row the engine's own TTL, which is the like of what Lapse writes."""

    async def run(path: Path) -> Figures:
        from slatedb import uniffi as slatedb

        ttl = slatedb.PutOptions(ttl=slatedb.Ttl.EXPIRE_AFTER_MILLIS(TTL_MS))
        write_options = slatedb.WriteOptions()

        builder = slatedb.ObjectStoreBuilder.from_env(slatedb.ObjectStoreType.LOCAL)
        builder.with_config("local_path", str(path))
        database = await slatedb.DbBuilder("db", builder.build()).build()

        async def many(part: Rows) -> None:
            batch = slatedb.WriteBatch()
            for key, value in part:
                batch.put_with_options(key, value, ttl) if with_ttl else batch.put(key, value)
            await database.write(batch)

        async def put(key: bytes, value: bytes) -> None:
            if with_ttl:
                await database.put_with_options(key, value, ttl, write_options)
            else:
                await database.put(key, value)

        async def scan() -> None:
            everything = slatedb.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False)
            iterator = await database.scan(everything)
            while [(entry.key, entry.value) for entry in await iterator.next_batch(1000)]:
                pass

        figures = await slatedb_figures(rows, singles, put=put, get=database.get, many=many, scan=scan)
        await database.shutdown()
        return figures

    with folder() as path:
        return asyncio.run(run(path))


def lapse_slatedb(rows: Rows, singles: int) -> Figures:
    async def run(path: Path) -> Figures:
        async with await lapse.kv.aio.open(f"slatedb:{path / 'db'}", default_ttl="30 days") as store:

            async def scan() -> None:
                async for _ in store.scan():
                    pass

            return await slatedb_figures(rows, singles, put=store.put, get=store.get, many=store.put_many, scan=scan)

    with folder() as path:
        return asyncio.run(run(path))


def lapse_slatedb_each(rows: Rows, singles: int) -> Figures:
    ttls = {key: TTLS[number % len(TTLS)] for number, (key, _) in enumerate(rows)}

    async def run(path: Path) -> Figures:
        async with await lapse.kv.aio.open(f"slatedb:{path / 'db'}") as store:

            async def scan() -> None:
                async for _ in store.scan():
                    pass

            async def put(key: bytes, value: bytes) -> None:
                await store.put(key, value, ttls[key])

            async def many(part: Rows) -> None:
                await store.put_many([(key, value, ttls[key]) for key, value in part])

            return await slatedb_figures(rows, singles, put=put, get=store.get, many=many, scan=scan)

    with folder() as path:
        return asyncio.run(run(path))


def lapse_slatedb_sync(rows: Rows, singles: int) -> Figures:
    with folder() as path, lapse.kv.open(f"slatedb:{path / 'db'}", default_ttl="30 days") as store:
        return measure(rows, put=store.put, get=store.get, many=store.put_many, scan=store.scan, singles=singles)


def purge_slatedb(rows: Rows, singles: int) -> Figures:
    clock = ManualClock()
    with (
        folder() as path,
        lapse.kv.open(f"slatedb:{path / 'db'}", default_ttl="1 hour", clock=clock) as store,
    ):
        store.put_many(rows)
        clock.advance(timedelta(hours=1))
        swept = store.purge()
        assert swept.purged == len(rows)
        store.put_many(rows)
        clock.advance(timedelta(hours=1))
        physical = store.purge(within="5 minutes")
        assert swept.purged == physical.purged == len(rows) and physical.complete
        return {
            "purge": Rate(swept.purged / swept.elapsed_s),
            "purge, verified": Rate(physical.purged / physical.elapsed_s),
        }


class Redis:
    """As little of a client as there can be: a command is a list of bytes, answers are read one after the other."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")

    def call(self, *command: bytes) -> Any:
        return self.calls([command])[0]

    def calls(self, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        parts = [b"".join([b"*%d\r\n" % len(c), *(b"$%d\r\n%b\r\n" % (len(p), p) for p in c)]) for c in commands]
        self._socket.sendall(b"".join(parts))
        return [self._answer() for _ in commands]

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        cursor = b"0"
        while True:
            cursor, keys = self.call(b"SCAN", cursor, b"COUNT", b"1000")
            if keys:
                yield from zip(keys, self.call(b"MGET", *keys), strict=True)
            if cursor == b"0":
                return

    def _answer(self) -> Any:
        line = self._answers.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self._answers.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        assert kind in b"+:", line
        return rest


def connect_to_redis(address: Path) -> Redis:
    """Its socket is there a moment before it can be connected to."""
    until = time.monotonic() + REDIS_START_S
    while True:
        try:
            return Redis(address)
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.01)


def with_redis(rows: Rows, singles: int) -> Figures:
    """The processor time is the client's alone; the server has its own. Its purge is not asked for: it samples."""
    with folder() as path:
        address = path / "socket"
        options = {"port": "0", "save": "", "appendonly": "yes", "unixsocket": str(address), "dir": str(path)}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        server = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        try:
            client, life = connect_to_redis(address), b"%d" % TTL_MS
            return measure(
                rows,
                put=lambda key, value: client.call(b"SET", key, value, b"PX", life),
                get=lambda key: client.call(b"GET", key),
                many=lambda part: client.calls([(b"SET", key, value, b"PX", life) for key, value in part]),
                scan=client.scan,
                singles=singles,
            )
        finally:
            server.terminate()
            server.wait()


def with_diskcache(rows: Rows, singles: int) -> Figures:
    import diskcache

    with (
        folder() as path,
        diskcache.Cache(str(path), size_limit=1 << 40, eviction_policy="none", cull_limit=0) as cache,
    ):

        def many(part: Rows) -> None:
            with cache.transact():
                for key, value in part:
                    cache.set(key, value, expire=86_400)

        figures = measure(
            rows,
            put=lambda key, value: cache.set(key, value, expire=86_400),
            get=cache.get,
            many=many,
            scan=lambda: ((key, cache.get(key)) for key in cache.iterkeys()),
            singles=singles,
        )
        with cache.transact():
            for key, value in rows:
                cache.set(key, value, expire=0.001)
        time.sleep(0.01)
        figures["purge"] = rate(len(rows), cache.expire)
        return figures


def with_sqlite(rows: Rows, singles: int) -> Figures:
    with folder() as path:
        database = sqlite3.connect(path / "db", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("CREATE TABLE kv (k BLOB PRIMARY KEY, v BLOB, e REAL) WITHOUT ROWID")
        database.execute("CREATE INDEX kv_e ON kv (e)")
        upsert = "INSERT OR REPLACE INTO kv VALUES (?, ?, ?)"

        def many(part: Rows) -> None:
            expiry = time.time() + 86_400
            database.execute("BEGIN")
            database.executemany(upsert, ((key, value, expiry) for key, value in part))
            database.execute("COMMIT")

        figures = measure(
            rows,
            put=lambda key, value: database.execute(upsert, (key, value, time.time() + 86_400)),
            get=lambda key: database.execute("SELECT v FROM kv WHERE k = ? AND e > ?", (key, time.time())).fetchone(),
            many=many,
            scan=lambda: database.execute("SELECT k, v FROM kv WHERE e > ? ORDER BY k", (time.time(),)),
            singles=singles,
        )
        database.execute("UPDATE kv SET e = 0")
        figures["purge"] = rate(len(rows), lambda: database.execute("DELETE FROM kv WHERE e <= ?", (time.time(),)))
        database.close()
        return figures


CONTESTANTS: dict[str, list[Callable[[Rows, int], Figures]]] = {
    "rocksdb, bare": [bare_rocksdb],
    "rocksdb, with_ttl": [partial(bare_rocksdb, ttl_s=86_400)],
    "rocksdb, header by hand": [partial(bare_rocksdb, head=b"h" * 18)],
    "rocksdb, Lapse": [lapse_rocksdb, purge_rocksdb],
    "rocksdb, Lapse, TTL per row": [lapse_rocksdb_each],
    "slatedb, bare (asyncio)": [bare_slatedb],
    "slatedb, bare with TTL": [partial(bare_slatedb, with_ttl=True)],
    "slatedb, Lapse (asyncio)": [lapse_slatedb, purge_slatedb],
    "slatedb, Lapse (asyncio), TTL per row": [lapse_slatedb_each],
    "slatedb, Lapse (sync)": [lapse_slatedb_sync],
    "redis, unix socket (client)": [with_redis],
    "diskcache": [with_diskcache],
    "sqlite3, expiry column": [with_sqlite],
}
RATIOS = [
    ("rocksdb, with_ttl", "rocksdb, bare"),
    ("rocksdb, header by hand", "rocksdb, bare"),
    ("rocksdb, Lapse", "rocksdb, bare"),
    ("rocksdb, Lapse, TTL per row", "rocksdb, bare"),
    ("slatedb, Lapse (asyncio)", "slatedb, bare with TTL"),
    ("slatedb, Lapse (asyncio), TTL per row", "slatedb, bare with TTL"),
    ("slatedb, Lapse (asyncio)", "slatedb, bare (asyncio)"),
    ("slatedb, Lapse (sync)", "slatedb, bare (asyncio)"),
    ("redis, unix socket (client)", "rocksdb, bare"),
    ("diskcache", "rocksdb, bare"),
]


Taken = dict[str, dict[str, list[Rate]]]
"""Contestant to operation to one figure per round."""
Table = dict[str, dict[str, float]]
"""Contestant to operation to one number."""


def compare(count: int, *, rounds: int, progress: Progress) -> dict[str, Any]:
    """MultiListener rounds, the contestants taking turns; a quarter of the rows is read and written one by one, too."""
    rows = make_rows(count)
    contestants = dict(CONTESTANTS)
    if shutil.which("redis-server") is None:
        progress("redis is left out: there is no redis-server here")
        contestants = {name: parts for name, parts in contestants.items() if "redis" not in name}
    taken: Taken = {name: {} for name in contestants}
    for number in range(1, rounds + 1):
        for name, parts in random.Random(number).sample(list(contestants.items()), len(contestants)):
            share = count if "rocksdb" in name or "sqlite3" in name else count // SMALL_SHARE
            for part in parts:
                for operation, figure in part(rows[:share], share // 4).items():
                    taken[name].setdefault(operation, []).append(figure)
            progress(f"round {number}: {name}, {share:,} rows")
    return {
        "rows": count,
        "rounds": rounds,
        "rows_per_second": _rounded(medians(taken), 0),
        "ratios": _rounded(ratios(taken, lambda rate: rate.wall), 3),
        "ratios_of_processor_time": _rounded(ratios(taken, lambda rate: rate.cpu), 3),
        "purges": purge_figures(count * PURGE_FACTOR, rounds=rounds, progress=progress)
        | disk_figures(count * DISK_FACTOR),
    }


def purge_figures(count: int, *, rounds: int, progress: Progress) -> dict[str, float]:
    """Processor time of purges against a scan and deletes by hand."""
    by_hand, tenth, one, verified = [], [], [], []
    for number in range(1, rounds + 1):
        by_hand.append(purge_by_hand(count))
        tenth.append(purge_share(count, 10))
        one.append(purge_share(count, count))
        verified.append(purge_share(count, count, within="5 minutes"))
        progress(f"round {number}: purges of {count:,} rows")
    pairs = {"a tenth expired": tenth, "one row expired": one, "one row expired, verified": verified}
    return {
        name: round(statistics.median(mine / theirs for mine, theirs in zip(taken, by_hand, strict=True)), 3)
        for name, taken in pairs.items()
    }


def disk_figures(count: int) -> dict[str, float]:
    ours, theirs = disk_bytes(count, bare=False), disk_bytes(count, bare=True)
    return {f"log and tables after {count // 2:,} to {count:,} puts, against bare": round(ours / theirs, 2)}


def purge_rows(count: int, part: int) -> Iterator[list[tuple[bytes, bytes, bool]]]:
    for start in range(0, count, BATCH_ROWS):
        yield [(b"key%012d" % n, b"v" * VALUE_BYTES, n % part == 0) for n in range(start, start + BATCH_ROWS)]


def purge_by_hand(count: int) -> float:
    from rocksdict import Options, Rdict, WriteBatch

    expiry = struct.Struct(">q")
    dead, live = expiry.pack(1), expiry.pack(99)
    with folder() as path:
        database = Rdict(str(path / "db"), Options(raw_mode=True))
        for rows in purge_rows(count, 10):
            batch = WriteBatch(raw_mode=True)
            for key, value, is_dead in rows:
                batch.put(key, (dead if is_dead else live) + value)
            database.write(batch)
        database.flush()
        began = time.process_time()
        batch = WriteBatch(raw_mode=True)
        for key, raw in database.items():
            if expiry.unpack_from(raw)[0] <= 5:
                batch.delete(key)
                if len(batch) >= BATCH_ROWS:
                    database.write(batch)
                    batch = WriteBatch(raw_mode=True)
        database.write(batch)
        worked = time.process_time() - began
        database.close()
        return worked


def purge_share(count: int, part: int, *, within: str | None = None) -> float:
    clock = ManualClock()
    with folder() as path, lapse.kv.open(f"rocksdb:{path / 'db'}", clock=clock) as store:
        for rows in purge_rows(count, part):
            store.put_many([(key, value, "1 hour" if is_dead else "90 days") for key, value, is_dead in rows])
        flush_tables(store)()
        store.purge()
        clock.advance(timedelta(hours=1))
        began = time.process_time()
        result = store.purge(within=within)
        assert result.purged == -(-count // part) and result.complete
        return time.process_time() - began


def disk_bytes(count: int, *, bare: bool) -> float:
    """While the store is open, which is when logs are there: the mean over the second half of the puts, as how much is
    in logs at one moment depends on when the engine flushes."""
    from rocksdict import Options, Rdict, WriteBatch

    source, sizes = random.Random(7), list[int]()
    values = [source.randbytes(VALUE_BYTES // 2) + b"x" * (VALUE_BYTES // 2) for _ in range(BATCH_ROWS)]
    with folder() as path:
        if bare:
            database = Rdict(str(path / "db"), Options(raw_mode=True))
        else:
            store = lapse.kv.open(f"rocksdb:{path / 'db'}", default_ttl="30 days")
        for start in range(0, count, BATCH_ROWS):
            rows = [(b"key%012d" % (start + n), values[n]) for n in range(BATCH_ROWS)]
            if bare:
                batch = WriteBatch(raw_mode=True)
                for key, value in rows:
                    batch.put(key, value)
                database.write(batch)
            else:
                store.put_many(rows)
            if start >= count // 2 and start % (BATCH_ROWS * 10) == 0:
                sizes.append(total_bytes(file for file in path.rglob("*") if file.suffix in (".sst", ".log")))
        database.close() if bare else store.close()
        return statistics.mean(sizes)


def _rounded(table: Table, digits: int) -> Table:
    return {name: {verb: round(figure, digits) for verb, figure in row.items()} for name, row in table.items()}


def medians(taken: Taken) -> Table:
    return {
        name: {operation: statistics.median(rate.wall for rate in rates) for operation, rates in figures.items()}
        for name, figures in taken.items()
    }


def ratios(taken: Taken, seconds: Callable[[Rate], float | None]) -> Table:
    """The median of the ratios within each round: a neighbour on the machine slows both sides of a round
    alike."""
    return {
        f"{name} / {base}": {
            operation: statistics.median(
                (seconds(mine) or 0) / (seconds(theirs) or 1)
                for mine, theirs in zip(taken[name][operation], rates, strict=True)
            )
            for operation, rates in _comparable(taken, name, base)
        }
        for name, base in RATIOS
        if name in taken
    }


def _comparable(taken: Taken, name: str, base: str) -> Iterator[tuple[str, list[Rate]]]:
    """What both did; a `batch()` is compared with the engine's own batch."""
    yield from taken[base].items()
    if "batch()" in taken[name]:
        yield "batch()", taken[base]["batch put"]
