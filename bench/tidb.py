"""TiDB: the plan of its own proposal, a table of which a tenth has expired, emptied in every way there is."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from time import perf_counter, sleep

from bench.quiet import compare
from bench.servers import Server
from lapse.bench import STANDARD, BenchTable, Contender, Measurement, Shape, lapse, table_for
from lapse.bench.contenders import Timed, timed
from lapse.bench.measure import Progress

NATIVE, TUNED, OWN, BATCH = "TiDB's own TTL", "TiDB's own TTL, tuned", "Lapse's own job", "BATCH … DELETE"
BATCH_ROWS = 1_000
DEFAULTS = {"tidb_ttl_scan_batch_size": 500, "tidb_ttl_delete_batch_size": 100}
LARGER = {"tidb_ttl_scan_batch_size": 5_000, "tidb_ttl_delete_batch_size": 1_000}
LOOK_SECONDS, PATIENCE_SECONDS = 0.05, 600.0
_DELETED = re.compile(r'^tidb_server_ttl_processed_expired_rows\{result="\w+",sql_type="delete"\} (\S+)', re.MULTILINE)
_FOUND = re.compile(r'^tidb_server_ttl_processed_expired_rows\{result="\w+",sql_type="select"\} (\S+)', re.MULTILINE)


def native(server: Server, rows: int, *, rounds: int, progress: Progress) -> list[Measurement]:
    table = table_for(server.url, "bench_rows", tidb=True)
    contenders = (
        STANDARD[0],
        STANDARD[2],
        Contender(name=BATCH, run=timed(_batch)),
        Contender(name=NATIVE, run=_by_tidb(server.status, DEFAULTS)),
        Contender(name=TUNED, run=_by_tidb(server.status, LARGER)),
        # TiDB knows no crons, so this one is not for its own TTL.
        lapse(OWN, declared="ttl_job_cron = '0 3 * * *'", lapse_mode="gentle"),
    )
    return compare(table, {Shape(rows=rows): contenders}, rounds=rounds, progress=progress)


def _batch(table: BenchTable, clock: Timed) -> None:
    with table.cursor() as cursor:
        cursor.execute(f"BATCH ON id LIMIT {BATCH_ROWS} DELETE FROM {table.name} WHERE {table.expired}")
        cursor.fetchall()


def _by_tidb(status: str, variables: dict[str, int]) -> Callable[[BenchTable], Timed]:
    """The time from TiDB's first look at the table to its last delete, by its own counters: when it begins is a matter
    of its timer, and its history has ticks of ten seconds."""

    def run(table: BenchTable) -> Timed:
        with table.cursor() as cursor:
            for name, value in variables.items():
                cursor.execute(f"SET GLOBAL {name} = {value}")
            cursor.execute(f"SELECT count(*) FROM {table.name} WHERE {table.expired}")
            (expired,) = cursor.fetchone()
            cursor.execute(f"ALTER TABLE {table.name} TTL = expire_at + INTERVAL 0 SECOND TTL_JOB_INTERVAL = '24h'")
        return Timed(seconds=_watched(status, expired))

    return run


def _watched(status: str, expired: int) -> float:
    looked, deleted = _counted(status)
    began, until = perf_counter(), perf_counter() + PATIENCE_SECONDS
    while perf_counter() < until:
        found, gone = _counted(status)
        if found == looked:
            began = perf_counter()
        if gone - deleted >= expired:
            return perf_counter() - began
        sleep(LOOK_SECONDS)
    raise TimeoutError(f"TiDB has not deleted {expired} rows in {PATIENCE_SECONDS:.0f} s")


def _counted(status: str) -> tuple[float, float]:
    """Rows that TiDB has found, and sent to DELETE, since it was started."""
    with urllib.request.urlopen(f"http://{status}/metrics") as answer:
        text = answer.read().decode()
    return sum(map(float, _FOUND.findall(text))), sum(map(float, _DELETED.findall(text)))
