"""An archive: files of rows that were deleted, at one destination."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from lapse.archive import layout
from lapse.archive.files import ArchivedFile, Files
from lapse.archive.header import File, Header
from lapse.archive.reader import Verified, describe_file, verified
from lapse.archive.times import within
from lapse.archive.writer import TARGET_BYTES, PendingFile
from lapse.errors import ArchiveConflict, ArchiveDamaged, ArchiveUnavailable, InvalidValue


@dataclass(frozen=True, kw_only=True, slots=True)
class FileVerification:
    """What was read of one file; `problem` is None where it is as it was written."""

    path: str
    rows: int
    bytes: int
    problem: str | None = None


class Archive:
    """Published files are complete and are never changed. Iterating gives all rows as Arrow record batches.

    An archive belongs to one database: `claim` says so in the archive, and refuses what is another's.
    """

    def __init__(self, files: Files, *, target_bytes: int = TARGET_BYTES) -> None:
        if target_bytes < 1:
            raise InvalidValue("target_bytes", target_bytes, "at least 1")
        self._files = files
        self._target_bytes = target_bytes

    def __str__(self) -> str:
        """Without secrets."""
        return str(self._files.address)

    # --- reading

    def tables(self) -> list[str]:
        """The tables of which there are files."""
        self._files.check_root()
        return [layout.table_of(name) for name in self._files.folders() if not name.startswith(("_", "."))]

    def files(
        self,
        table: str | None = None,
        *,
        job: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[File]:
        """Published files with rows that were archived in [since, until), by table and time."""
        for entry in self._published(table):
            file = describe_file(self._files, entry)
            if job in (None, file.header.job) and _overlaps(file, since, until):
                yield file

    def batches(
        self,
        table: str | None = None,
        *,
        job: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[Any]:
        """The rows of these files as Arrow record batches. Each file is verified before its first row is given out."""
        for file in self.files(table, job=job, since=since, until=until):
            with self.read(file.path) as found:
                for batch in found.batches():
                    chosen = within(file.header, batch, since, until)
                    if chosen.num_rows:
                        yield chosen

    def __iter__(self) -> Iterator[Any]:
        return self.batches()

    def read(self, path: str, *, expected: str | None = None) -> AbstractContextManager[Verified]:
        """A file, verified before anything of it is given out. `expected` is the digest that was recorded elsewhere."""
        return verified(self._files, self._entry(path), expected)

    def verify(
        self, table: str | None = None, *, expected: Mapping[str, str] | None = None
    ) -> Iterator[FileVerification]:
        """Reads every published file, or those whose digests by path are `expected`; each is found good or bad."""
        found = {entry.path: entry for entry in self._published(table)}
        for path in sorted(found if expected is None else expected):
            if path in found:
                yield self._verify(found[path], (expected or {}).get(path))
            else:
                yield FileVerification(path=path, rows=0, bytes=0, problem=f"{self._shown(path)} is not there")

    # --- writing

    def probe(self) -> None:
        """Writes, reads and removes a file: raises ArchiveUnavailable where that cannot be done."""
        # Two that try at the same time do not meet.
        name = f"{layout.PROBE}-{uuid4().hex[:12]}"
        content = f"{name}: written by Lapse to see whether it can\n".encode()
        self._files.write(name, content)
        found = self._files.read(name)
        self._files.delete(name)
        if found != content:
            hint = "Lapse archives only where a file that was written is read as it is"
            raise ArchiveUnavailable(f"a file that was written to {self} was read back as another", hint=hint)

    def claim(self, owner: str) -> None:
        """Makes an archive the one of a database, by the identity of that; refused where it has another's already. One
        without a file in it can be claimed again: what claimed it may have been undone."""
        self._files.check_root()
        is_empty = not self._files.folders()
        if self._files.find(layout.OWNER) is None and not is_empty:
            raise ArchiveConflict(f"{self} has folders in it already", hint="give the archive an empty folder")
        if is_empty:
            self._files.write(layout.OWNER, f"{owner}\n".encode())
        self.check_owner(owner)

    def check_owner(self, owner: str) -> None:
        """Raises where this is not the archive that was claimed: another's, or an empty folder instead of its disk."""
        self._files.check_root()
        if self._files.find(layout.OWNER) is None:
            hint = "is its disk mounted? Nothing more is deleted until the archive is there"
            raise ArchiveUnavailable(f"{self} does not hold the archive that was there", hint=hint)
        if self._files.read(layout.OWNER).decode(errors="replace").strip() != owner:
            hint = "give every database a prefix of its own: s3://bucket/NAME"
            raise ArchiveConflict(f"{self} is the archive of another database", hint=hint)

    def begin(self, header: Header) -> PendingFile:
        """A new pending file; one with the same job and sequence, which was left by a crash, is written anew."""
        return PendingFile(self._files, header, self._target_bytes)

    def publish(self, file: File) -> File:
        """Makes a pending file visible under its final name. Doing it again changes nothing."""
        self.publish_recorded(file.header.pending_path, file.header.path, file.digest)
        return describe_file(self._files, self._entry(file.header.path))

    def publish_recorded(self, pending: str, final: str, digest: str) -> None:
        """The same for a file of which two paths and the digest were recorded. No other file is published, and none is
        overwritten."""
        there = self._files.find(final)
        if there is not None:
            if describe_file(self._files, there).digest != digest:
                hint = "move that file away; it was not written for this job"
                raise ArchiveConflict(f"{self._shown(final)} is another file", hint=hint)
            self._files.delete(pending)
            return
        if describe_file(self._files, self._entry(pending)).digest != digest:
            raise ArchiveConflict(
                f"{self._shown(pending)} is not the file that was recorded", hint="verify the archive"
            )
        self._files.move(pending, final)

    def pending(self, table: str | None = None) -> list[str]:
        """Files that are not published: being written, waiting to be published, or left by a crash."""
        return [entry.path for entry in self._walk(table) if layout.is_pending(entry.path)]

    def paths(self, table: str | None = None) -> list[str]:
        """Of all files, pending and published."""
        found = (entry.path for entry in self._walk(table))
        return [path for path in found if layout.is_pending(path) or layout.is_published(path)]

    def orphans(self, recorded: Collection[str], table: str | None = None) -> list[str]:
        """Files, pending and published, whose paths are not among those that were recorded."""
        return [path for path in self.paths(table) if path not in recorded]

    def remove(self, path: str) -> None:
        """A file that is not there is as good as removed."""
        if not (layout.is_pending(path) or layout.is_published(path)) or ".." in path.split("/"):
            raise InvalidValue("path", path, "the path of a file in this archive")
        self._files.delete(path)

    # --- within

    def _shown(self, path: str) -> str:
        return self._files.address.at(path)

    def _walk(self, table: str | None) -> list[ArchivedFile]:
        self._files.check_root()
        return self._files.walk("" if table is None else layout.table_folder(table))

    def _published(self, table: str | None) -> list[ArchivedFile]:
        return [entry for entry in self._walk(table) if layout.is_published(entry.path)]

    def _entry(self, path: str) -> ArchivedFile:
        found = self._files.find(path)
        if found is None:
            self._files.check_root()
            hint = "restore it from a backup of the archive"
            raise ArchiveDamaged(f"{self._shown(path)} is not there", hint=hint, path=path)
        return found

    def _verify(self, entry: ArchivedFile, expected: str | None) -> FileVerification:
        try:
            with verified(self._files, entry, expected) as found:
                return FileVerification(path=entry.path, rows=found.file.rows, bytes=entry.bytes)
        except ArchiveDamaged as error:
            return FileVerification(path=entry.path, rows=0, bytes=entry.bytes, problem=error.message)


def _overlaps(file: File, since: datetime | None, until: datetime | None) -> bool:
    after = since is None or (file.last or file.header.written_at) >= since
    return after and (until is None or (file.first or file.header.written_at) < until)
