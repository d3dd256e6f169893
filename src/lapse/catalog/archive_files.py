"""Files of archived rows: begun, recorded in the transaction that removes their rows, published, withdrawn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, delete, func, insert, or_, select, update

from lapse.catalog.schema import archive_file
from lapse.model.table import TableName


class FileState(StrEnum):
    WRITING = "writing"
    """Begun, under its pending name; its rows are in the outbox. Where its exporter has died, it is removed."""
    RECORDED = "recorded"
    """Complete under its pending name, and its rows are nowhere else; the next step publishes it."""
    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"
    """Its rows are in the outbox again; the next step removes the file."""
    EXPIRED = "expired"
    """Older than `ttl_archive_keep`; the next step removes the file, and its rows with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """`id` is never given to another file, and part of its name. Its rows are of `table`, under the name that this had,
    and came from `outbox`, as a text. `path` is where it is at the `destination`, or will be, once it is published;
    `first` and `last` are when its rows were archived. All of it is known once it is recorded."""

    id: int
    table: TableName
    outbox: str
    destination: str
    job: int
    state: FileState
    path: str = ""
    rows: int = 0
    bytes: int = 0
    digest: str = ""
    first: datetime | None = None
    last: datetime | None = None


def begin(connection: Connection, table: TableName, *, outbox: str, destination: str, job: int, now: datetime) -> int:
    """Before the first byte of a file is written."""
    values = {
        "schema_name": table.schema or "",
        "table_name": table.name,
        "outbox": outbox,
        "destination": destination,
        "job_id": job,
        "state": FileState.WRITING,
        "begun_at": now,
    }
    result = connection.execute(insert(archive_file), values)
    return int(result.inserted_primary_key[0])  # type: ignore[index]


def record(connection: Connection, file: StoredFile) -> bool:
    """In the transaction that removes its rows; False where another exporter has given the file up."""
    values = {
        "path": file.path,
        "row_count": file.rows,
        "bytes": file.bytes,
        "digest": file.digest,
        "first_at": file.first,
        "last_at": file.last,
        "state": FileState.RECORDED,
    }
    changed = connection.execute(update(archive_file).where(_in_state(file.id, FileState.WRITING)).values(values))
    return changed.rowcount == 1


def change(connection: Connection, file: int, before: FileState, after: FileState) -> bool:
    """False where it was not, or no longer, `before`."""
    changed = connection.execute(update(archive_file).where(_in_state(file, before)).values(state=after))
    return changed.rowcount == 1


def forget(connection: Connection, file: int, state: FileState) -> bool:
    """Of a file that is not written any further, or that is gone; False where it is not in that state any more."""
    return connection.execute(delete(archive_file).where(_in_state(file, state))).rowcount == 1


def _in_state(file: int, state: FileState) -> ColumnElement[bool]:
    return and_(archive_file.c.file_id == file, archive_file.c.state == state)


def known(connection: Connection, numbers: Collection[int]) -> set[int]:
    """Those of the numbers that are a file's, of whatever table."""
    found = connection.execute(select(archive_file.c.file_id).where(archive_file.c.file_id.in_(numbers)))
    return {int(number) for number in found.scalars()}


def list_files(connection: Connection, outbox: str | None = None, *, job: int | None = None) -> list[StoredFile]:
    """In the order in which they were begun: of one outbox, of one job, or all."""
    asked = select(archive_file)
    if outbox is not None:
        asked = asked.where(archive_file.c.outbox == outbox)
    if job is not None:
        asked = asked.where(archive_file.c.job_id == job)
    found = connection.execute(asked.order_by(archive_file.c.file_id)).mappings()
    return [_file(row) for row in found]


def unsettled(connection: Connection, outbox: str, *, old_before: datetime | None = None) -> list[StoredFile]:
    """Files that a step is left for, and published ones that are older than they are kept."""
    is_left = archive_file.c.state != FileState.PUBLISHED
    if old_before is not None:
        is_left = or_(is_left, archive_file.c.last_at < old_before)
    asked = select(archive_file).where(archive_file.c.outbox == outbox, is_left)
    return [_file(row) for row in connection.execute(asked.order_by(archive_file.c.file_id)).mappings()]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFiles:
    """What the published files of one outbox hold together."""

    files: int
    rows: int
    bytes: int


def kept_by_outbox(connection: Connection) -> dict[str, PublishedFiles]:
    counted = select(
        archive_file.c.outbox, func.count(), func.sum(archive_file.c.row_count), func.sum(archive_file.c.bytes)
    ).where(archive_file.c.state.in_((FileState.RECORDED, FileState.PUBLISHED)))
    return {
        outbox: PublishedFiles(files=int(files), rows=int(rows), bytes=int(size))
        for outbox, files, rows, size in connection.execute(counted.group_by(archive_file.c.outbox))
    }


def _file(row: RowMapping) -> StoredFile:
    return StoredFile(
        id=row["file_id"],
        table=TableName(row["table_name"], row["schema_name"] or None),
        outbox=row["outbox"],
        destination=row["destination"],
        job=row["job_id"],
        path=row["path"] or "",
        rows=row["row_count"],
        bytes=row["bytes"],
        digest=row["digest"] or "",
        first=row["first_at"],
        last=row["last_at"],
        state=FileState(row["state"]),
    )
