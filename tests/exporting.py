"""Processes that export the archive of `events`, or bring a file of it back, and are killed at a step.

`python -m tests.exporting URL FOLDER` reads lines `export STEP` and `back STEP`, begins a process for each, and prints
how it has ended.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import lapse.archive
from lapse.app import Lapse
from lapse.catalog import Catalog, archive_files
from lapse.model.archive import archive_table
from lapse.model.table import TableName
from lapse.runner.exporting import Exporter, Outbox

EXPORT_STEPS = ("begun", "writing", "written", "recorded", "published")
BACK_STEPS = ("withdrawn", "removed")
PAGE_ROWS = 7
FILE_BYTES = 1


class Dying(Exporter):
    step = ""

    def reached(self, step: str) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def exporter(db: Lapse, folder: Path | str, kind: type[Exporter] = Exporter, **options: int) -> Exporter:
    """With pages and files so small that there are several of each."""
    with db.engine.connection() as connection:
        table = db.engine.full_name(connection, TableName("events"))
    text = db.policy("events").policy.archive or "table:"
    place = Outbox(table=table, staging=archive_table(text, table), destination=f"file://{folder}")
    archive = lapse.archive.open(f"file://{folder}", **({"target_bytes": FILE_BYTES} | options))
    return kind(Catalog(db.engine), archive, place, page_rows=PAGE_ROWS)


def work(url: str, folder: str, what: str, step: str) -> None:
    Dying.step = step
    with Lapse(url) as db:
        dying = exporter(db, folder, Dying)
        if what == "export":
            dying.run_once()
            return
        with Catalog(db.engine).reading() as connection:
            (file, *_) = archive_files.list_files(connection, dying.place.outbox)
        dying.bring_back(file)


def main(url: str, folder: str) -> None:
    import pyarrow.csv
    import pyarrow.fs
    import pyarrow.parquet  # noqa: F401 - once for all processes

    for line in sys.stdin:
        process = os.fork()
        if not process:
            try:
                work(url, folder, *line.split())
            finally:
                os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
