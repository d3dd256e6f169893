"""What is in the archives, job by job, and whether it is all there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection

from lapse.archive import number_of
from lapse.catalog import Catalog, archive_files, jobs, policies
from lapse.catalog.archive_files import FileState, StoredFile
from lapse.engines.restoring import ArchivedRows
from lapse.errors import LapseError
from lapse.model.archive import archive_table, file_url, label
from lapse.model.interval import Interval
from lapse.model.job import Job
from lapse.model.table import TableName
from lapse.runner.destination import open_claimed


class ArchiveState(StrEnum):
    COMPLETE = "complete"
    """As many rows as the job has moved there, those that were restored left out."""
    REMOVED = "removed"
    """Fewer, and `ttl_archive_keep` may have removed them."""
    WRONG = "wrong"
    """Fewer, or more, and nothing of Lapse's explains it; or a file is not what was recorded."""
    RUNNING = "running"
    UNKNOWN = "unknown"
    """The history has forgotten the job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedJob:
    """`rows` are in the archive now, those that wait in its outbox included; `moved` is what the job has moved there,
    `restored` what came back of it. `archive` is the archive table, or the destination of `files`; `problems` are files
    that were read and found to be wrong."""

    job: int
    table: TableName
    archive: str
    rows: int
    bytes: int | None
    first: datetime | None
    last: datetime | None
    moved: int | None
    restored: int
    verdict: ArchiveState
    files: int = 0
    waiting: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A file without a record, or a record without its file; `problem` says which, or why that cannot be told, and
    `fix` what to do. A record without a file `is_loss` of rows."""

    destination: str
    path: str
    problem: str
    fix: str
    is_loss: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """An archive table or outbox, with every text of `ttl_archive` that has led to it: one outbox may have had several
    destinations. `text` is what the policy says now, or the last job went by."""

    table: TableName
    archive: TableName
    text: str
    texts: tuple[str, ...]
    keep: Interval | None
    is_named: bool

    @property
    def shown(self) -> str:
        return file_url(self.text) or str(self.archive)


def archived(catalog: Catalog, name: TableName | None = None, *, verify: bool = False) -> list[ArchivedJob]:
    """Of one table, or of all, the oldest job first; reads the archive tables and, to `verify`, every file."""
    with catalog.reading() as connection:
        places = [place for place in _places(connection) if name is None or place.table == name]
        files = {place.archive: archive_files.list_files(connection, label(place.archive)) for place in places}
    found: list[ArchivedJob] = []
    for place in places:
        # Not inside a transaction: files are read.
        wrong = _damaged(catalog, files[place.archive]) if verify else {}
        with catalog.reading() as connection:
            found += _look(catalog, connection, place, files[place.archive], wrong)
    return found


def _places(connection: Connection) -> list[_Place]:
    """The archives of policies, and those that jobs have filled and no policy names any more."""
    known: dict[TableName, _Place] = {}
    for each in policies.list_policies(connection):
        if (text := each.policy.archive) is not None:
            archive, keep = archive_table(text, each.table), each.policy.archive_keep
            known[archive] = _Place(
                table=each.table, archive=archive, text=text, texts=(text,), keep=keep, is_named=True
            )
    for table, text in jobs.archives(connection):
        archive = archive_table(text, table)
        place = known.get(archive)
        if place is None:
            known[archive] = _Place(table=table, archive=archive, text=text, texts=(text,), keep=None, is_named=False)
        elif text not in place.texts:
            known[archive] = replace(place, texts=(*place.texts, text))
    return sorted(known.values(), key=lambda place: place.text)


def orphans(catalog: Catalog, connection: Connection) -> list[tuple[TableName, TableName]]:
    """Archive tables that jobs have filled and no policy names any more, each with the table that its rows are of."""
    return [
        (place.archive, place.table)
        for place in _places(connection)
        if not place.is_named
        and (shape := catalog.engine.archive_shape(connection, place.archive, place.table))
        and shape.is_archive
    ]


def file_orphans(catalog: Catalog) -> list[Orphan]:
    """At every destination that a file was recorded at, or that a policy names; no file is read."""
    with catalog.reading() as connection:
        recorded = archive_files.list_files(connection)
        named = {file_url(stored.policy.archive or "") for stored in policies.policies_with_files(connection)}
    found: list[Orphan] = []
    for destination in sorted({file.destination for file in recorded} | {url for url in named if url}):
        there = [file for file in recorded if file.destination == destination]
        found += _orphans_at(catalog, destination, there)
    return found


def _orphans_at(catalog: Catalog, destination: str, recorded: list[StoredFile]) -> list[Orphan]:
    try:
        with catalog.reading() as connection:
            archive = open_claimed(connection, destination)
        paths = set(archive.paths())
    except LapseError as error:
        fix = error.hint or "correct the destination"
        return [Orphan(destination=destination, path="", problem=error.message, fix=fix)]
    numbers = {file.id for file in recorded}
    unknown = sorted(path for path in paths if number_of(path) not in numbers)
    gone = [file for file in recorded if file.state is FileState.PUBLISHED and file.path not in paths]
    return [
        *(
            Orphan(
                destination=destination,
                path=path,
                problem="no record is about this file",
                fix="move it away, or remove it",
                is_loss=False,
            )
            for path in unknown
        ),
        *(
            Orphan(
                destination=destination,
                path=file.path,
                problem=f"the file is gone, and {file.rows} rows with it",
                fix="restore it from a backup of the archive",
            )
            for file in gone
        ),
    ]


def _damaged(catalog: Catalog, files: Iterable[StoredFile]) -> dict[int, str]:
    """Files that are not what was recorded, or that cannot be read, by their numbers: every published one is read."""
    wrong: dict[int, str] = {}
    published = [file for file in files if file.state is FileState.PUBLISHED]
    for destination in sorted({file.destination for file in published}):
        there = {file.path: file for file in published if file.destination == destination}
        try:
            with catalog.reading() as connection:
                archive = open_claimed(connection, destination)
            for each in archive.verify(expected={path: file.digest for path, file in there.items()}):
                if each.problem is not None:
                    wrong[there[each.path].id] = each.problem
        except LapseError as error:
            wrong |= {file.id: error.message for file in there.values()}
    return wrong


def _look(
    catalog: Catalog, connection: Connection, place: _Place, files: list[StoredFile], wrong: dict[int, str]
) -> list[ArchivedJob]:
    engine = catalog.engine
    shape = engine.archive_shape(connection, place.archive, place.table)
    there = shape is not None and shape.is_archive
    is_outbox = file_url(place.text) is not None
    rows: list[ArchivedRows] = []
    if there:
        with engine.outbox(place.archive) if is_outbox else nullcontext(connection) as reading:
            rows = engine.archive_table(reading, place.archive).by_job(reading)
    by_job = {each.job: each for each in rows}
    known = {each.id: each for text in place.texts for each in jobs.archiving_jobs(connection, text)}
    kept = [file for file in files if file.state in (FileState.RECORDED, FileState.PUBLISHED)]
    total = sum(each.rows for each in rows)
    size = engine.footprints(connection, [place.archive]).get(place.archive) if there and not is_outbox else None
    now = engine.now(connection)
    return [
        _job(
            place,
            job,
            by_job.get(job),
            [file for file in kept if file.job == job],
            known.get(job),
            None if size is None or size.bytes is None or not total else size.bytes / total,
            wrong,
            now,
        )
        for job in sorted(by_job.keys() | known.keys() | {file.job for file in kept})
    ]


def _job(
    place: _Place,
    job: int,
    found: ArchivedRows | None,
    files: list[StoredFile],
    stored: Job | None,
    row_bytes: float | None,
    wrong: dict[int, str],
    now: datetime,
) -> ArchivedJob:
    waiting = found.rows if found else 0
    rows = waiting + sum(file.rows for file in files)
    firsts = [at for at in (found and found.first, *(file.first for file in files)) if at]
    lasts = [at for at in (found and found.last, *(file.last for file in files)) if at]
    problems = tuple(wrong[file.id] for file in files if file.id in wrong)
    is_outbox = file_url(place.text) is not None
    return ArchivedJob(
        job=job,
        table=place.table,
        archive=", ".join(sorted({file.destination for file in files})) or place.shown,
        rows=rows,
        bytes=sum(file.bytes for file in files)
        if is_outbox
        else (None if row_bytes is None else int(row_bytes * rows)),
        first=min(firsts, default=None),
        last=max(lasts, default=None),
        moved=stored.counts.deleted if stored else None,
        restored=stored.restored if stored else 0,
        verdict=ArchiveState.WRONG if problems else _verdict(place, rows, stored, now),
        files=len(files),
        waiting=waiting if is_outbox else 0,
        problems=problems,
    )


def _verdict(place: _Place, rows: int, stored: Job | None, now: datetime) -> ArchiveState:
    if stored is None:
        return ArchiveState.UNKNOWN
    if stored.status.is_active:
        return ArchiveState.RUNNING
    expected = stored.counts.deleted - stored.restored
    if rows == expected:
        return ArchiveState.COMPLETE
    # Rows were archived after the job was created: before that, none of them can be old enough.
    may_be_old = place.keep is not None and place.keep.added_to(stored.created_at) <= now
    return ArchiveState.REMOVED if may_be_old and rows < expected else ArchiveState.WRONG
