"""Rows that are archived as they are deleted: Lapse to a table and to Parquet files, and what pt-archiver does."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import record
from bench.plans import LAPSE, Size
from bench.rivals import ARCHIVER_ROWS
from lapse.app import Lapse
from lapse.bench import BenchTable, Contender, Shape, compare
from lapse.bench.contenders import Timed, declare, timed

TABLE, FILES = "Lapse to a table", "Lapse to Parquet files"
RIVAL_TABLE, RIVAL_FILE = "pt-archiver --dest", "pt-archiver --file"
EXPIRED_PERCENT = 50.0


def archives(engine: str, table: BenchTable, size: Size, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """As results are recorded, with the bytes that each contender has written to its archive."""
    written: dict[str, int] = {}
    contenders = [LAPSE, to_table(written), to_files(written)]
    if engine == "mariadb" and shutil.which("pt-archiver"):
        contenders += [rival_table(written), rival_file(written)]
    shape = Shape(rows=size.rows, expired_percent=EXPIRED_PERCENT)
    results = compare(table, {shape: contenders}, rounds=size.rounds, progress=progress)
    return [row | {"archive_bytes": written.get(row["contender"])} for row in record.results_record(results)]


def _lapse(name: str, destination: Callable[[], Any], written: dict[str, int]) -> Contender:
    def run(table: BenchTable) -> Timed:
        with destination() as text, Lapse(table.lapse_url) as database:
            database.set_setting("lapse_mode", "gentle")
            declare(database, table, f"ttl_archive = '{text}'")
            started = perf_counter()
            jobs = {job.id for job in database.run(table.name).jobs}
            clock = Timed(seconds=perf_counter() - started)
            written[name] = sum(each.bytes or 0 for each in database.archive(table.name) if each.job in jobs)
            database.execute(f"ALTER TABLE {table.name} RESET (ttl)")
            database.execute(f"DROP TABLE {table.name}_{'archive' if text == 'table:' else 'outbox'}")
        return clock

    return Contender(name=name, run=run)


def to_table(written: dict[str, int]) -> Contender:
    @contextmanager
    def destination() -> Iterator[str]:
        yield "table:"

    return _lapse(TABLE, destination, written)


def to_files(written: dict[str, int]) -> Contender:
    """On the disk where temporary files are."""

    @contextmanager
    def destination() -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder:
            before = os.environ.get("LAPSE_ARCHIVES")
            os.environ["LAPSE_ARCHIVES"] = f"file://{folder}"
            try:
                yield f"file://{folder}"
            finally:
                os.environ.pop("LAPSE_ARCHIVES")
                os.environ |= {} if before is None else {"LAPSE_ARCHIVES": before}

    return _lapse(FILES, destination, written)


def _archiver(table: BenchTable, *options: str) -> None:
    source = f"h={table.url.host},P={table.url.port},u={table.url.username},D={table.url.database},t={table.name}"
    command = ["pt-archiver", f"--source={source}", f"--where={table.expired}", "--commit-each", "--bulk-delete"]
    subprocess.run(
        [*command, f"--limit={ARCHIVER_ROWS}", "--no-check-charset", *options], check=True, capture_output=True
    )


def rival_table(written: dict[str, int]) -> Contender:
    def work(table: BenchTable, clock: Timed) -> None:
        _archiver(table, f"--dest=t={table.name}_kept", "--bulk-insert")

    def run(table: BenchTable) -> Timed:
        with table.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table.name}_kept ({table.columns()}, PRIMARY KEY (id))")
            clock = timed(work)(table)
            cursor.execute(f"ANALYZE TABLE {table.name}_kept")
            cursor.fetchall()
            cursor.execute(
                "SELECT data_length FROM information_schema.tables WHERE table_schema = database()"
                f" AND table_name = '{table.name}_kept'"
            )
            written[RIVAL_TABLE] = int(cursor.fetchone()[0])
            cursor.execute(f"DROP TABLE {table.name}_kept")
        return clock

    return Contender(name=RIVAL_TABLE, run=run)


def rival_file(written: dict[str, int]) -> Contender:
    def run(table: BenchTable) -> Timed:
        with tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder:
            path = Path(folder) / "rows"
            clock = timed(lambda each, _: _archiver(each, f"--file={path}"))(table)
            written[RIVAL_FILE] = path.stat().st_size
        return clock

    return Contender(name=RIVAL_FILE, run=run)
