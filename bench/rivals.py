"""Contenders from other packages, each set up as its documentation says. One that is not installed is reported so."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep

import diskcache

from lapse.app import Lapse
from lapse.bench import BenchTable, Contender
from lapse.bench.contenders import Timed, timed
from tests.backends.mariadb import has_rocksdb
from tests.backends.postgres import DebianPostgres

ARCHIVER_ROWS = 1_000
NATIVE_ROWS = 20_000
CRON_PATIENCE_SECONDS = 150.0


def postgres_rivals() -> tuple[list[Contender], list[str]]:
    """Those that are installed, and the names of those that are not."""
    binaries = DebianPostgres.binaries()
    extensions = [] if binaries is None else list(_extensions(str(binaries).split("/")[-2]))
    found = [Contender(name="pg_partman drop", run=partman)] if "pg_partman" in extensions else []
    return found, [] if found else ["pg_partman"]


def cron_rival() -> list[Contender]:
    """It starts a job at a full minute only, so it takes minutes to measure a second of work."""
    binaries = DebianPostgres.binaries()
    installed = binaries is not None and "pg_cron" in _extensions(str(binaries).split("/")[-2])
    return [Contender(name="pg_cron", run=cron)] if installed else []


def _extensions(version: str) -> set[str]:
    return {path.stem for path in Path(f"/usr/share/postgresql/{version}/extension").glob("pg_*.control")}


def partman(table: BenchTable) -> Timed:
    """The same rows in yearly partitions: expired ones are alone in theirs, which is what the method needs."""
    name = table.name
    with table.cursor() as cursor:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS partman")
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_partman SCHEMA partman")
        cursor.execute(f"ALTER TABLE {name} RENAME TO {name}_whole")
        cursor.execute(f"CREATE TABLE {name} (LIKE {name}_whole) PARTITION BY RANGE (expire_at)")
        cursor.execute(f"ALTER TABLE {name} ALTER expire_at SET NOT NULL")
        cursor.execute(
            f"SELECT partman.create_parent('public.{name}', 'expire_at', 'native', 'yearly', p_premake => 12,"
            " p_start_partition => '2019-01-01')"
        )
        cursor.execute(f"CREATE INDEX ON {name} (r1)")
        cursor.execute(f"INSERT INTO {name} SELECT * FROM {name}_whole")
        cursor.execute(f"DROP TABLE {name}_whole")
        cursor.execute(
            "UPDATE partman.part_config SET retention = '1 year', retention_keep_table = false,"
            f" infinite_time_partitions = true WHERE parent_table = 'public.{name}'"
        )
        clock = Timed()
        started = perf_counter()
        clock.statement(cursor, f"SELECT partman.run_maintenance('public.{name}')")
        clock.seconds = perf_counter() - started
        cursor.execute(f"DELETE FROM partman.part_config WHERE parent_table = 'public.{name}'")
        cursor.execute(f"DROP TABLE IF EXISTS partman.template_public_{name}")
    return clock


def cron(table: BenchTable) -> Timed:
    """The statement of its documentation; the wait for the full minute is not counted."""
    with table.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_cron")
        cursor.execute("SELECT cron.schedule('* * * * *', %s)", (f"DELETE FROM {table.name} WHERE {table.expired}",))
        (job,) = cursor.fetchone()
        until = perf_counter() + CRON_PATIENCE_SECONDS
        seconds = None
        while seconds is None and perf_counter() < until:
            sleep(0.5)
            cursor.execute(
                "SELECT extract(epoch FROM end_time - start_time)::float FROM cron.job_run_details"
                " WHERE jobid = %s AND status = 'succeeded' LIMIT 1",
                (job,),
            )
            row = cursor.fetchone()
            seconds = row[0] if row else None
        cursor.execute("SELECT cron.unschedule(%s)", (job,))
    assert seconds is not None, "pg_cron did not run the job"
    return Timed(seconds=seconds, holds=[seconds])


def sqlite_rivals() -> list[Contender]:
    return [Contender(name="diskcache expire", run=disk_cache)]


def disk_cache(table: BenchTable) -> Timed:
    """The same rows as entries of a cache, with their expiry in its indexed column; what it leaves is left here.

    Each expires a moment after the one before: of entries that expire together it removes a hundred and skips the rest.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder,
        diskcache.Cache(folder, size_limit=1 << 40, eviction_policy="none", cull_limit=0) as cache,
        table.cursor() as cursor,
    ):
        cursor.execute("ATTACH ? AS cache", (str(Path(folder) / "cache.db"),))
        cursor.execute(
            "INSERT INTO cache.Cache (key, raw, store_time, expire_time, access_time, size, mode, value)"
            f" SELECT id, 1, 0, strftime('%s', expire_at) + id / 1e6, 0, 0, 1, body FROM {table.name}"
        )
        cursor.execute("PRAGMA cache.wal_checkpoint(TRUNCATE)")
        started = perf_counter()
        cache.expire()
        seconds = perf_counter() - started
        cursor.execute(f"DELETE FROM {table.name} WHERE id NOT IN (SELECT key FROM cache.Cache)")
        cursor.execute("DETACH cache")
    return Timed(seconds=seconds)


def mariadb_rivals() -> tuple[list[Contender], list[str]]:
    found: list[Contender] = []
    missing: list[str] = []
    if shutil.which("pt-archiver"):
        found.append(Contender(name="pt-archiver bulk", run=timed(_archiver("--bulk-delete"))))
        found.append(Contender(name="pt-archiver", run=timed(_archiver())))
    else:
        missing.append("pt-archiver")
    if has_rocksdb():
        found.append(Contender(name="MyRocks native", run=myrocks))
    else:
        missing.append("MyRocks")
    return found, missing


def _archiver(*options: str) -> Callable[[BenchTable, Timed], None]:
    def work(table: BenchTable, clock: Timed) -> None:
        source = f"h={table.url.host},P={table.url.port},u={table.url.username},D={table.url.database},t={table.name}"
        command = ["pt-archiver", f"--source={source}", f"--where={table.expired}", "--purge", "--commit-each"]
        limits = [f"--limit={ARCHIVER_ROWS}", "--no-check-charset", *options]
        subprocess.run([*command, *limits], check=True, capture_output=True)

    return work


def myrocks(table: BenchTable) -> Timed:
    """The same rows in an engine that drops them while it compacts; Lapse only says when."""
    native = f"{table.name}_native"
    with Lapse(table.lapse_url) as database, table.cursor() as cursor:
        database.execute(
            f"CREATE TABLE {native} ({table.columns()}, ts BIGINT UNSIGNED NOT NULL, PRIMARY KEY (id), KEY (r1))"
            " ENGINE=ROCKSDB COMMENT='ttl_duration=3600;ttl_col=ts;'"
        )
        # One statement for all rows gets slower with every row that it has written.
        for start in range(0, table.shape.rows, NATIVE_ROWS):
            cursor.execute(
                f"INSERT INTO {native} SELECT *, unix_timestamp(expire_at) FROM {table.name}"
                f" WHERE id > {start} AND id <= {start + NATIVE_ROWS}"
            )
        started = perf_counter()
        database.run(native)
        seconds = perf_counter() - started
        database.execute(f"ALTER TABLE {native} COMMENT=''")
        cursor.execute(f"DROP TABLE {table.name}")
        cursor.execute(f"RENAME TABLE {native} TO {table.name}")
    return Timed(seconds=seconds)
