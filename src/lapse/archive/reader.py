"""Reads files: what they say of themselves, whether that is true, and their rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lapse.archive import cells
from lapse.archive.digest import Digest
from lapse.archive.files import CHUNK_BYTES, ArchivedFile, Files
from lapse.archive.header import File, describe, read_description
from lapse.archive.loading import arrow
from lapse.archive.storage import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A file whose rows are what its digest says, open for reading."""

    file: File
    reader: Any

    def batches(self) -> Iterator[Any]:
        """Arrow record batches, one per row group."""
        return _row_groups(self.reader)

    def cells(self) -> Iterator[list[list[Cell]]]:
        """The cells of each batch, by column, as the database handed them over."""
        return (cells.decode(self.file.header.columns, batch) for batch in self.batches())


def describe_file(files: Files, entry: ArchivedFile) -> File:
    """By its metadata alone, which is at its end: no row is read."""
    stream = files.open(entry.path)
    with files.errors("read", entry.path), stream, _damage(files, entry.path):
        return _told(arrow("parquet").ParquetFile(stream), entry)


@contextmanager
def verified(files: Files, entry: ArchivedFile, expected: str | None = None) -> Iterator[Verified]:
    """Read once into a local file, compared with its digest and with the one that is expected, and only then given out.

    What is checked is what is read afterwards, whatever happens to the original meanwhile.
    """
    with tempfile.TemporaryFile(prefix="lapse-archive-") as local:
        source = files.open(entry.path)
        with files.errors("read", entry.path), source:
            shutil.copyfileobj(source, local, CHUNK_BYTES)
        local.seek(0)
        with _damage(files, entry.path):
            reader = arrow("parquet").ParquetFile(local)
            file = _told(reader, entry)
            _check(file, reader, expected)
        yield Verified(file=file, reader=reader)


def _told(reader: Any, entry: ArchivedFile) -> File:
    file = read_description(reader.metadata.metadata, entry.path, entry.bytes)
    if entry.path not in (file.header.path, file.header.pending_path):
        raise ValueError(f"it is {file.header.path}, under another name")
    if reader.metadata.num_rows != file.rows:
        raise ValueError(f"it has {reader.metadata.num_rows} rows instead of {file.rows}")
    expected = cells.schema(file.header.columns)
    if not reader.schema_arrow.equals(expected, check_metadata=False):
        raise ValueError("its columns are not those of its metadata")
    return file


def _check(file: File, reader: Any, expected: str | None) -> None:
    digest = Digest()
    for batch in _row_groups(reader):
        digest.add(batch)
    found = digest.finish(describe(file, digest=False))
    if found != file.digest:
        raise ValueError("its rows are not those of its digest")
    if expected not in (None, found):
        raise ValueError("its digest is not the one that was recorded when it was written")


def _row_groups(reader: Any) -> Iterator[Any]:
    """Each as one record batch, as it was written."""
    for index in range(reader.num_row_groups):
        table = reader.read_row_group(index, use_threads=False).combine_chunks()
        yield table.to_batches()[0]


@contextmanager
def _damage(files: Files, path: str) -> Iterator[None]:
    """What cannot be read as what it should be, as ArchiveDamaged. The file system's own errors are not that."""
    try:
        yield
    except (ValueError, KeyError, EOFError, arrow().ArrowInvalid, arrow().ArrowNotImplementedError) as error:
        raise files.damaged(path, str(error)) from error
    except OSError as error:
        # pyarrow has no other word for a file whose pages cannot be decoded.
        if error.errno is None:
            raise files.damaged(path, str(error)) from error
        raise
