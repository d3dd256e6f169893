"""Rows of an archive table go into files: each of them once, and back, whatever is killed between two steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import lapse.archive
from lapse.archive import Header
from lapse.catalog import Catalog, archive_files
from lapse.catalog.archive_files import FileState, StoredFile
from lapse.errors import ArchiveDamaged, ArchiveUnavailable, Retryable
from lapse.model.archive import label
from lapse.model.table import TableName
from lapse.runner import exporting
from lapse.runner.exporting import Exporter
from tests.backends.base import quick_folder
from tests.conformance.harness import Harness
from tests.conformance.test_archive import archived_events
from tests.exporting import BACK_STEPS, EXPORT_STEPS, exporter

ROWS = 30
LARGE_ROWS, LARGE_BYTES = 180, 60_000
"""As many as a page may have rows, by the size of those before them."""


@pytest.fixture
def archived(h: Harness) -> Harness:
    """Thirty rows in the archive table, by two jobs."""
    archived_events(h, expired=20)
    h.run_one()
    h.sql(
        "INSERT INTO events (id, ts, note) VALUES "
        + ", ".join(f"({i}, {h.at(days=-3)}, 'late')" for i in range(50, 60))
    )
    h.sql("DELETE FROM events WHERE id IN (21, 22)")
    h.run_one()
    assert len(staged(h)) == ROWS
    return h


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where it can be: every file is made durable."""
    with TemporaryDirectory(prefix="lapse-archive-", dir=quick_folder()) as name:
        yield Path(name)


def staged(h: Harness) -> list[int]:
    return h.ids("events_archive")


def in_files(folder: Path) -> list[int]:
    """As a reader of the folder finds them."""
    found = lapse.archive.open(f"file://{folder}")
    return sorted(int(number) for batch in found for number in batch.column("id").to_pylist())


def stored(h: Harness) -> list[StoredFile]:
    with Catalog(h.owner.engine).reading() as connection:
        return archive_files.list_files(connection, exporter(h.owner, "/tmp").place.outbox)


def all_ids() -> list[int]:
    return [*range(1, 21), *range(50, 60)]


def test_a_page_holds_no_more_than_its_bytes_when_large_rows_follow_small_ones(
    h: Harness, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by what a page may hold, not by how large rows were before."""
    monkeypatch.setattr(exporting, "MOST_PAGE_BYTES", 1 << 20)
    archived_events(h, expired=20 + LARGE_ROWS)
    h.sql(f"UPDATE events SET note = '{'x' * LARGE_BYTES}' WHERE id BETWEEN 21 AND {20 + LARGE_ROWS}")
    h.run_one()
    sizes: list[int] = []

    class Watched(Exporter):
        def _page(self, header: Header, chosen: str) -> tuple[list[list[Any]], int]:
            found = super()._page(header, chosen)
            sizes.append(found[1])
            return found

    watched = exporter(h.owner, folder, Watched, target_bytes=1 << 30)
    watched._page_rows = 1_000
    done = watched.run_once()
    assert (done.rows, staged(h), in_files(folder)) == (20 + LARGE_ROWS, [], [*range(1, 21 + LARGE_ROWS)])
    # A page ends with the batch that passes its bound.
    assert sum(sizes) > LARGE_ROWS * LARGE_BYTES > 2 * max(sizes), sizes


def test_every_row_is_in_one_file_and_nowhere_else(archived: Harness, folder: Path) -> None:
    done = exporter(archived.owner, folder).run_once()
    assert (done.rows, staged(archived), in_files(folder)) == (ROWS, [], all_ids())
    assert [(file.state, file.digest) for file in stored(archived)] == [
        (FileState.PUBLISHED, file.digest) for file in lapse.archive.open(f"file://{folder}").files()
    ]
    jobs = {file.job for file in done.files}
    assert len(jobs) == 2 and len(done.files) == 5
    assert exporter(archived.owner, folder).run_once().files == ()


def test_a_large_file_takes_many_pages(archived: Harness, folder: Path) -> None:
    done = exporter(archived.owner, folder, target_bytes=1 << 20).run_once()
    assert [file.rows for file in done.files] == [20, 10]
    assert all(file.first is not None and file.first <= (file.last or file.first) for file in done.files)


def test_rows_come_back_and_can_be_restored(archived: Harness, folder: Path) -> None:
    working = exporter(archived.owner, folder)
    working.run_once()
    for file in stored(archived):
        working.bring_back(file)
    assert (staged(archived), in_files(folder), stored(archived)) == (all_ids(), [], [])
    assert archived.owner.restore("events").restored == ROWS
    assert archived.ids() == all_ids()
    assert archived.rows("SELECT note FROM events WHERE id = 7") == [("note 7",)]


def test_a_file_that_was_changed_brings_nothing_back(archived: Harness, folder: Path) -> None:
    working = exporter(archived.owner, folder)
    working.run_once()
    first = stored(archived)[0]
    path = folder / first.path
    path.write_bytes((folder / stored(archived)[1].path).read_bytes())
    with pytest.raises(ArchiveDamaged, match="under another name"):
        working.bring_back(first)
    assert (staged(archived), stored(archived)[0].state) == ([], FileState.PUBLISHED)


def test_two_exporters_write_no_row_twice(archived: Harness, folder: Path) -> None:
    class Overtaken(Exporter):
        done = False

        def reached(self, step: str) -> None:
            if step == "written" and not self.done:
                self.done = True
                exporter(archived.owner, folder).run_once()

    with pytest.raises((Retryable, ArchiveDamaged)):
        exporter(archived.owner, folder, Overtaken).run_once()
    exporter(archived.owner, folder).run_once()
    assert (staged(archived), in_files(folder)) == ([], all_ids())


def test_a_row_that_is_restored_meanwhile_is_in_no_file(archived: Harness, folder: Path) -> None:
    class Late(Exporter):
        done = False

        def reached(self, step: str) -> None:
            if step == "written" and not self.done:
                self.done = True
                archived.sql("DELETE FROM events_archive WHERE id = 3")

    with pytest.raises(Retryable, match="undone"):
        exporter(archived.owner, folder, Late).run_once()
    assert in_files(folder) == []
    exporter(archived.owner, folder).run_once()
    assert in_files(folder) == [number for number in all_ids() if number != 3]


def test_a_row_that_comes_meanwhile_is_in_the_next_file(archived: Harness, folder: Path) -> None:
    """Even one whose number is between those of the file: it was given out before and committed later."""
    archived.sql("UPDATE events_archive SET lapse_seq = lapse_seq * 2 + 1000")

    class Slow(Exporter):
        done = False

        def reached(self, step: str) -> None:
            if step == "written" and not self.done:
                self.done = True
                columns = "lapse_seq, lapse_job, archived_at, id, ts, note"
                archived.sql(
                    f"INSERT INTO events_archive ({columns}) SELECT lapse_seq + 1, lapse_job, archived_at, 99, ts, note"
                    " FROM events_archive WHERE id = 3"
                )

    exporter(archived.owner, folder, Slow).run_once()
    assert (staged(archived), in_files(folder)) == ([], [*all_ids(), 99])


def test_a_file_that_another_table_has_begun_is_left_alone(archived: Harness, folder: Path) -> None:
    """Two tables may have one folder: their names may differ by what a file system does not tell apart."""
    other = exporter(archived.owner, folder)
    with Catalog(archived.owner.engine).writing() as connection:
        number = archive_files.begin(
            connection, TableName("Events", "other"), outbox="x", destination="y", job=7, now=archived.now
        )
    for name in (number, number + 1000):
        path = folder / lapse.archive.pending_path(label(other.place.table), 7, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"begun")
    removed = other.run_once().removed
    assert [lapse.archive.number_of(path) for path in removed] == [number + 1000]


def test_rows_that_no_job_has_archived_are_exported_too(archived: Harness, folder: Path) -> None:
    archived.sql("UPDATE events_archive SET lapse_job = NULL WHERE id = 3")
    exporter(archived.owner, folder).run_once()
    assert (staged(archived), in_files(folder)) == ([], all_ids())


def test_a_destination_that_is_gone_keeps_every_row(archived: Harness, folder: Path) -> None:
    with pytest.raises(ArchiveUnavailable, match="is not there"):
        exporter(archived.owner, folder / "gone").run_once()
    assert staged(archived) == all_ids()
    exporter(archived.owner, folder).run_once()
    assert in_files(folder) == all_ids()


@contextmanager
def killing(h: Harness, folder: Path) -> Iterator[Callable[[str, str], None]]:
    """Begins a process that is killed at a step."""
    command = [sys.executable, "-m", "tests.exporting", h.url, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, told = process.stdin, process.stdout

        def kill(what: str, step: str) -> None:
            asked.write(f"{what} {step}\n")
            asked.flush()
            assert told.readline() == "-9\n", step

        yield kill


def test_killed_between_any_two_steps(archived: Harness, folder: Path) -> None:
    with killing(archived, folder) as kill:
        for step in EXPORT_STEPS:
            kill("export", step)
            assert sorted(in_files(folder) + staged(archived) + pending_rows(archived, folder)) == all_ids(), step
        exporter(archived.owner, folder).run_once()
        assert (staged(archived), in_files(folder)) == ([], all_ids())
        for step in BACK_STEPS:
            kill("back", step)
            exporter(archived.owner, folder).run_once()
            assert (staged(archived), in_files(folder)) == ([], all_ids()), step
    assert {file.state for file in stored(archived)} == {FileState.PUBLISHED}
    assert lapse.archive.open(f"file://{folder}").orphans([file.path for file in stored(archived)]) == []


def pending_rows(h: Harness, folder: Path) -> list[int]:
    """Of files that are recorded and not yet published: no reader sees them, and they are nowhere else."""
    archive, found = lapse.archive.open(f"file://{folder}"), []
    for file in stored(h):
        path = lapse.archive.pending_path(label(exporter(h.owner, folder).place.table), file.job, file.id)
        if file.state is FileState.RECORDED and path in archive.pending():
            with archive.read(path, expected=file.digest) as read:
                found += [int(number) for batch in read.batches() for number in batch.column("id").to_pylist()]
    return found
