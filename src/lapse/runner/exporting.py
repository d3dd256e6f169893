"""Exporting: rows of an outbox go into files, each of them once whatever is killed when.

    one transaction: begin the file in the catalog, which gives it a number that no other file gets
    read a page in a short transaction, write it; again, until the file is full or no row of the job is left
    finish the pending file and read it back
    one transaction: record the file, unless another exporter has given it up; remove exactly the rows that are in it
    publish the file, and note it

No file is written inside a transaction. A pending file that was not recorded is given up and removed by the next run;
one that was is published. So a row is in the outbox or in one file, and a reader of the folder sees none twice.
Bringing a file back is the same in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Thread
from typing import Any

from sqlalchemy import Connection

from lapse.archive import Archive, ArchivedColumn, File, Header, number_of, pending_path
from lapse.archive.loading import arrow
from lapse.catalog import Catalog, archive_files, jobs, ledger
from lapse.catalog.archive_files import FileState, StoredFile
from lapse.engines.cells import Pack
from lapse.engines.restoring import Oldest
from lapse.errors import ArchiveDamaged, NotFound, Retryable
from lapse.model.archive import (
    ARCHIVED_AT,
    JOB,
    OWN_COLUMNS,
    PACK,
    PACKED_ROWS,
    SEQUENCE,
    archive_table,
    file_url,
    label,
)
from lapse.model.ledger import EntryKind
from lapse.model.table import TableName

FIRST_PAGE_ROWS, PAGE_ROWS = 20, 20_000
"""Rows that one transaction reads: few at first, as they may be large, then as many as have the bytes of a page."""
PAGE_BYTES = 8 << 20
"""What is in memory until it is written."""
PACKED_PAGE_BYTES = 4 << 20
"""The same of packs, which are twice in memory while they are cut into cells."""
FILE_ROWS = 200_000
"""Rows of a file: they leave the outbox in one transaction."""
MOST_GROWTH = 10
SAMPLED = 16

MOST_PAGE_BYTES = 32 << 20
"""Where rows that follow small ones are large: no more is read, whatever the number of rows was to be."""
Range = tuple[int, int]
"""First and last of consecutive numbers."""
Page = tuple[list[Range], list[Any]]
"""Numbers of rows, and their cells by column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbox:
    """The rows of `table` that wait in `staging`, its outbox, and the destination of their files."""

    table: TableName
    staging: TableName
    destination: str
    policy_version: int = 0

    @classmethod
    def of(cls, table: TableName, text: str, policy_version: int = 0) -> Outbox:
        """By what a policy says."""
        return cls(
            table=table,
            staging=archive_table(text, table),
            destination=file_url(text) or text,
            policy_version=policy_version,
        )

    @property
    def outbox(self) -> str:
        """As the catalog knows it."""
        return label(self.staging)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What one run has done. `removed` are orphans, files whose rows came back, and files that were kept long
    enough."""

    files: tuple[StoredFile, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def _nothing() -> None:
    pass


class Exporter:
    """A second one for the same table gives up what the first has begun and not recorded: no row is lost or written
    twice, and the first has to begin again. `alive` is called between pages: it renews a lease, or raises."""

    def __init__(
        self,
        catalog: Catalog,
        archive: Archive,
        place: Outbox,
        *,
        page_rows: int = PAGE_ROWS,
        alive: Callable[[], None] = _nothing,
    ) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._cells = catalog.engine.cells
        self._archive = archive
        self.place = place
        self._page_rows = page_rows
        self._alive = alive

    def run_once(self, *, keep_after: datetime | None = None, least: int = 1) -> Exported:
        """Finishes what was begun before, removes files that were archived before `keep_after`, then exports
        everything that is there; after the first file only while `least` rows wait."""
        removed = self.settle(keep_after=keep_after)
        files: list[StoredFile] = []
        while (oldest := self._oldest()) is not None:
            files.append(self._export(oldest))
            if least > 1 and self._waiting() < least:
                break
        return Exported(files=tuple(files), removed=removed)

    def settle(self, *, keep_after: datetime | None = None) -> tuple[str, ...]:
        """Publishes what was recorded, removes what came back, what was kept long enough and what was never
        recorded."""
        # First what is there, then what is known: each of these files was begun in the catalog before it was made.
        pending = self._archive.pending(label(self.place.table))
        removed: list[str] = []
        for file in self._unsettled(keep_after):
            self._alive()
            if file.destination != self.place.destination:
                # What is left there needs that destination, which is not this one.
                continue
            if file.state is FileState.WRITING:
                self._give_up(file)
            elif file.state is FileState.RECORDED:
                self._publish(file)
            elif file.state is FileState.PUBLISHED:
                removed.append(self._expire(file))
            else:
                removed.append(self._remove(file, file.state))
        return (*removed, *self._remove_unknown(pending))

    def _remove_unknown(self, pending: Sequence[str]) -> Iterator[str]:
        """Files that no table's record is about: numbers are unique in the catalog, whatever a folder is called."""
        with self._catalog.writing() as connection:
            known = archive_files.known(connection, [number_of(path) for path in pending])
        for path in pending:
            if number_of(path) not in known:
                self._archive.remove(path)
                yield path

    def bring_back(self, file: StoredFile) -> None:
        """The rows of a published file into the outbox, from where they are restored. Raises ArchiveDamaged, with
        nothing inserted, where the file is not the one that was recorded."""
        with self._archive.read(file.path, expected=file.digest) as found:
            columns = found.file.header.columns
            with self._catalog.writing() as connection:
                if not archive_files.change(connection, file.id, FileState.PUBLISHED, FileState.WITHDRAWN):
                    raise Retryable(f"{file.path} was brought back by another session: undone")
                for cells in found.cells():
                    self._cells.insert(connection, self.place.staging, columns, cells)
        self.reached("withdrawn")
        self._remove(file, FileState.WITHDRAWN)

    def reached(self, step: str) -> None:
        """Between two steps: where a test kills the process."""

    # One file

    def _export(self, oldest: Oldest) -> StoredFile:
        header, pages = self._begin(oldest)
        self.reached("begun")
        with self._archive.begin(header) as pending:
            written: list[Range] = []
            for ranges, cells in _ahead(pages):
                pending.write(cells)
                written = _joined(written, ranges)
                self.reached("writing")
                if pending.is_full or pending.rows >= FILE_ROWS:
                    break
                self._alive()
            file = pending.finish()
        self.reached("written")
        self._read_back(file)
        stored = self._record(file, written)
        self.reached("recorded")
        self._publish(stored)
        return stored

    def _begin(self, oldest: Oldest) -> tuple[Header, Iterator[Page]]:
        """A file has the rows of one job, out of packs of one kind or out of none."""
        first = self._first_pack(oldest.job) if oldest.is_pack else None
        with self._catalog.writing() as connection:
            found = self._cells.columns(connection, self.place.staging)
            if first is not None:
                # It has its own, whatever the outbox has become.
                own = (column for column in found if column.name in OWN_COLUMNS)
                header = self._header(connection, oldest.job, (*own, *first.columns))
                return header, self._packed_pages(header, first.kind)
            has_packs = self._engine.archive_table(connection, self.place.staging).has_packs
            columns = (column for column in found if not has_packs or column.name not in (PACKED_ROWS, PACK))
            header = self._header(connection, oldest.job, tuple(columns))
            return header, self._pages(header, f"{PACK} IS NULL AND " if has_packs else "")

    def _header(self, connection: Connection, job: int, columns: tuple[ArchivedColumn, ...]) -> Header:
        now = self._engine.now(connection).astimezone(UTC)
        try:
            known = jobs.get_job(connection, job)
            version, cutoff = known.policy_version, known.cutoff
        except NotFound:
            # The history has forgotten the job, or a person put the rows there.
            version, cutoff = self.place.policy_version, now
        return Header(
            engine=self._cells.ENGINE,
            table=label(self.place.table),
            policy_version=version,
            job=job,
            sequence=archive_files.begin(
                connection,
                self.place.table,
                outbox=self.place.outbox,
                destination=self.place.destination,
                job=job,
                now=now,
            ),
            cutoff=cutoff,
            written_at=now,
            columns=columns,
            time_column=ARCHIVED_AT,
        )

    def _pages(self, header: Header, alone: str) -> Iterator[Page]:
        """Rows that stand `alone`, in the order in which they came; each page is read by a transaction of its own."""
        place = next(index for index, column in enumerate(header.columns) if column.name == SEQUENCE)
        after, rows = 0, min(FIRST_PAGE_ROWS, self._page_rows)
        while True:
            batches, size = self._page(header, alone + _after(header.job, after, rows))
            if not batches:
                return
            found = 0
            for batch in batches:
                ranges = _ranges(batch[place])
                yield ranges, batch
                after, found = ranges[-1][1], found + len(batch[place])
            fitting = max(1, found * PAGE_BYTES // max(size, 1))
            rows = min(fitting, rows * MOST_GROWTH, self._page_rows)

    def _page(self, header: Header, chosen: str) -> tuple[list[list[Any]], int]:
        """Batches of rows, and about how many bytes they have. What is too much for a page is left to the next."""
        batches: list[list[Any]] = []
        size = 0
        with (
            self._engine.outbox(self.place.staging) as connection,
            closing(self._cells.read(connection, self.place.staging, header.columns, chosen)) as reading,
        ):
            for batch in reading:
                batches.append(batch)
                size += sum(map(_bytes, batch))
                if size >= MOST_PAGE_BYTES:
                    break
        return batches, size

    def _first_pack(self, job: int) -> Pack:
        with closing(self._packs(_after(job, 0, 1))) as reading:
            for pack in reading:
                return pack
        raise Retryable(f"the rows of job {job} were taken out of {self.place.outbox} by another session")

    def _packed_pages(self, header: Header, kind: object) -> Iterator[Page]:
        """The same of packs, up to the first one of another kind: that begins the next file."""
        after, most = 0, 1
        while True:
            numbers, cells, size = self._packed_page(header, kind, _after(header.job, after, most))
            if not numbers:
                return
            yield _ranges(numbers), cells
            after = numbers[-1]
            most = min(max(1, len(numbers) * PACKED_PAGE_BYTES // max(size, 1)), most * MOST_GROWTH, self._page_rows)

    def _packed_page(self, header: Header, kind: object, chosen: str) -> tuple[list[int], list[Any], int]:
        """Numbers of packs, the cells of their rows, and how many bytes these have. Only cells stay in memory."""
        packs, size = list[Pack](), 0
        with closing(self._packs(chosen)) as reading:
            for pack in reading:
                if pack.kind != kind or (packs and size + pack.bytes > MOST_PAGE_BYTES):
                    break
                packs.append(pack)
                size += pack.bytes
        cells = self._engine.packs.cut(header.columns, packs) if packs else []
        return [pack.number for pack in packs], cells, size

    def _packs(self, chosen: str) -> Generator[Pack]:
        with (
            self._engine.outbox(self.place.staging) as connection,
            closing(self._engine.packs.read(connection, self.place.staging, chosen)) as reading,
        ):
            yield from reading

    def _read_back(self, file: File) -> None:
        """What is at the destination now is what was written: only then do its rows go."""
        with self._archive.read(file.path, expected=file.digest) as found:
            if found.file.rows != file.rows:
                raise ArchiveDamaged(f"{file.path} was read back with {found.file.rows} rows", hint="", path=file.path)

    def _record(self, file: File, written: Sequence[Range]) -> StoredFile:
        """Exactly the rows of the file go, or nothing is recorded: no other row can have one of their numbers."""
        stored = StoredFile(
            id=file.header.sequence,
            table=self.place.table,
            outbox=self.place.outbox,
            destination=self.place.destination,
            job=file.header.job,
            state=FileState.RECORDED,
            path=file.header.path,
            rows=file.rows,
            bytes=file.bytes,
            digest=file.digest,
            first=file.first,
            last=file.last,
        )
        with self._catalog.writing() as connection:
            if not archive_files.record(connection, stored):
                raise Retryable(f"{stored.path} was given up by another session, which exports the same rows")
            self._engine.lock_outbox(connection, self.place.staging)
            removed = self._engine.archive_table(connection, self.place.staging).remove_ranges(connection, written)
            exported = sum(last - first + 1 for first, last in written)
            if removed != exported:
                raise Retryable(f"{exported} rows were exported, of which only {removed} were still there: undone")
            self._note(connection, EntryKind.ARCHIVED, stored)
        return stored

    def _note(self, connection: Connection, kind: EntryKind, file: StoredFile) -> None:
        """In the ledger."""
        told = {
            "archive": file.destination,
            "file": file.path,
            "job": file.job,
            "rows": file.rows,
            "bytes": file.bytes,
            "digest": file.digest,
        }
        ledger.record(connection, kind, now=self._engine.now(connection), table=file.table, after=told)

    # Between the steps

    def _publish(self, file: StoredFile) -> None:
        self._archive.publish_recorded(self._pending_path(file), file.path, file.digest)
        self.reached("published")
        with self._catalog.writing() as connection:
            archive_files.change(connection, file.id, FileState.RECORDED, FileState.PUBLISHED)

    def _expire(self, file: StoredFile) -> str:
        """A file that was kept for as long as `ttl_archive_keep` says."""
        with self._catalog.writing() as connection:
            if archive_files.change(connection, file.id, FileState.PUBLISHED, FileState.EXPIRED):
                self._note(connection, EntryKind.ARCHIVE_REMOVED, file)
        self.reached("expired")
        return self._remove(file, FileState.EXPIRED)

    def _remove(self, file: StoredFile, state: FileState) -> str:
        self._archive.remove(file.path)
        self.reached("removed")
        with self._catalog.writing() as connection:
            archive_files.forget(connection, file.id, state)
        return file.path

    def _give_up(self, file: StoredFile) -> bool:
        with self._catalog.writing() as connection:
            return archive_files.forget(connection, file.id, FileState.WRITING)

    def _pending_path(self, file: StoredFile) -> str:
        return pending_path(label(file.table), file.job, file.id)

    def _unsettled(self, keep_after: datetime | None) -> list[StoredFile]:
        with self._catalog.reading() as connection:
            return archive_files.unsettled(connection, self.place.outbox, old_before=keep_after)

    def _waiting(self) -> int:
        with self._engine.outbox(self.place.staging) as connection:
            return self._engine.archive_table(connection, self.place.staging).waiting(connection)

    def _oldest(self) -> Oldest | None:
        self._alive()
        with self._engine.outbox(self.place.staging) as connection:
            return self._engine.archive_table(connection, self.place.staging).oldest(connection)


def _ahead(pages: Iterator[Page]) -> Generator[Page]:
    """The same pages, each read while the one before is written."""
    reading = _started(pages)
    try:
        while (page := reading.result()) is not None:
            reading = _started(pages)
            yield page
    finally:
        reading.exception()


def _started(pages: Iterator[Page]) -> Future[Page | None]:
    """Reads one page, in a thread that a process does not wait for when it ends: the server may never answer."""
    found: Future[Page | None] = Future()
    context = copy_context()

    def read() -> None:
        try:
            found.set_result(context.run(lambda: next(pages, None)))
        except BaseException as error:
            found.set_exception(error)

    Thread(target=read, name="lapse-export-page", daemon=True).start()
    return found


def _after(job: int, number: int, limit: int) -> str:
    """Rows of a job behind that number, in order. Those that a person put there have none."""
    return f"COALESCE({JOB}, 0) = {job} AND {SEQUENCE} > {number} ORDER BY {SEQUENCE} LIMIT {limit}"


def _ranges(column: Any) -> list[Range]:
    """Of a page's growing numbers, which are an Arrow array of texts or a list of cells."""
    compute, kind = arrow("compute"), arrow().int64()
    numbers = column.cast(kind) if hasattr(column, "cast") else arrow().array(map(int, column), kind)
    steps = compute.subtract(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
    breaks = compute.indices_nonzero(compute.not_equal(steps, 1)).to_pylist()
    firsts, lasts = [0, *(each + 1 for each in breaks)], [*breaks, len(numbers) - 1]
    return [(numbers[first].as_py(), numbers[last].as_py()) for first, last in zip(firsts, lasts, strict=True)]


def _bytes(column: Any) -> int:
    """About: of a list one cell in sixteen is looked at."""
    if hasattr(column, "nbytes"):
        return int(column.nbytes)
    looked = column[::SAMPLED]
    size = sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in looked)
    return size * len(column) // max(len(looked), 1)


def _joined(ranges: list[Range], more: Sequence[Range]) -> list[Range]:
    """Growing ranges, those that touch each other as one."""
    found = list(ranges)
    for first, last in more:
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found
