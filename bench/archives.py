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
from bench.quiet import compare
from bench.rivals import ARCHIVER_ROWS
from lapse.app import Lapse
from lapse.bench import BenchTable, Contender, Shape
from lapse.bench.contenders import Timed, declare, timed

TABLE, FILES = "Lapse to a table", "Lapse to Parquet files"
RIVAL_TABLE, RIVAL_FILE = "pt-archiver --dest", "pt-archiver --file"
EXPIRED_PERCENTS = (10.0, 50.0)
"""The shape of all other tables, for which the aims are, and one in which more is archived than read past."""
Written = dict[tuple[str, Shape], int]
"""Contender and shape to the bytes in its archive."""


def archives(engine: str, table: BenchTable, size: Size, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """As results are recorded, with the bytes that each contender has written to its archive."""
    written: Written = {}
    contenders = [LAPSE, to_table(written), to_files(written)]
    if engine == "mariadb" and shutil.which("pt-archiver"):
        contenders += [rival_table(written), rival_file(written)]
    plan = {Shape(rows=size.rows, expired_percent=percent): contenders for percent in EXPIRED_PERCENTS}
    results = compare(table, plan, rounds=size.rounds, progress=progress)
    return [record.row_of(each) | {"archive_bytes": written.get((each.contender, each.shape))} for each in results]


def _lapse(name: str, destination: Callable[[], Any], written: Written) -> Contender:
    def run(table: BenchTable) -> Timed:
        with destination() as text, Lapse(table.lapse_url) as database:
            database.set_setting("lapse_mode", "gentle")
            # The small table's rows are archived, too: a worker loads what writes files once in its life.
            declare(database, table, always=f"ttl_archive = '{text}'")
            database.execute(f"DROP TABLE {table.name}_small_{_suffix(text)}")
            started = perf_counter()
            jobs = {job.id for job in database.run(table.name).jobs}
            clock = Timed(seconds=perf_counter() - started)
            moved_to = f"{table.name}_{_suffix(text)}"
            _settle(table, moved_to)
            found = database.archive(table.name)
            # SQLite does not tell the size of a table.
            if size := sum(each.bytes or 0 for each in found if each.job in jobs):
                written[name, table.shape] = size
            database.execute(f"ALTER TABLE {table.name} RESET (ttl)")
            database.execute(f"DROP TABLE {moved_to}")
        return clock

    return Contender(name=name, run=run)


def _suffix(text: str) -> str:
    return "archive" if text == "table:" else "outbox"


def _settle(table: BenchTable, name: str) -> None:
    """Else a server knows the size of a table as it was before."""
    with table.cursor() as cursor:
        for statement in table.settling:
            cursor.execute(statement.format(table=name))
            if cursor.description is not None:
                cursor.fetchall()


def to_table(written: Written) -> Contender:
    @contextmanager
    def destination() -> Iterator[str]:
        yield "table:"

    return _lapse(TABLE, destination, written)


def to_files(written: Written) -> Contender:
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


def rival_table(written: Written) -> Contender:
    def work(table: BenchTable, clock: Timed) -> None:
        _archiver(table, f"--dest=t={table.name}_kept", "--bulk-insert")

    def run(table: BenchTable) -> Timed:
        with table.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table.name}_kept ({table.columns()}, PRIMARY KEY (id))")
            clock = timed(work)(table)
            _settle(table, f"{table.name}_kept")
            cursor.execute(
                "SELECT data_length FROM information_schema.tables WHERE table_schema = database()"
                f" AND table_name = '{table.name}_kept'"
            )
            written[RIVAL_TABLE, table.shape] = int(cursor.fetchone()[0])
            cursor.execute(f"DROP TABLE {table.name}_kept")
        return clock

    return Contender(name=RIVAL_TABLE, run=run)


def rival_file(written: Written) -> Contender:
    def run(table: BenchTable) -> Timed:
        with tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder:
            path = Path(folder) / "rows"
            clock = timed(lambda each, _: _archiver(each, f"--file={path}"))(table)
            written[RIVAL_FILE, table.shape] = path.stat().st_size
        return clock

    return Contender(name=RIVAL_FILE, run=run)
