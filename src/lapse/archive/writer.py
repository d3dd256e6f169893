"""Writes one pending file: a row group per batch, so that memory is bounded by a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from lapse.archive import cells
from lapse.archive.digest import Digest
from lapse.archive.files import Files
from lapse.archive.header import KEY, File, Header, describe
from lapse.archive.loading import arrow
from lapse.archive.times import time_range
from lapse.errors import ArchiveError, ArchiveUnavailable

TARGET_BYTES = 128 << 20
"""How large a file gets before the next one begins."""
COMPRESSION = "zstd"


class PendingFile:
    """A file that is being written, under a name that readers pass over. Left without `finish`, it is removed."""

    def __init__(self, files: Files, header: Header, target_bytes: int) -> None:
        self.header = header
        self.rows = 0
        self._files = files
        self._path = header.pending_path
        self._target = target_bytes
        self._digest = Digest()
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._sink = files.create(self._path)
        schema = cells.schema(header.columns)
        with files.errors("write", self._path):
            self._writer = arrow("parquet").ParquetWriter(
                self._sink,
                schema,
                compression=COMPRESSION,
                write_statistics=True,
                use_dictionary=_repeating(schema),
            )

    @property
    def bytes(self) -> int:
        """What was written so far."""
        return int(self._sink.tell())

    @property
    def is_full(self) -> bool:
        return self.bytes >= self._target

    def write(self, values: Sequence[Any]) -> None:
        """The cells of one batch, by column: sequences of cells, or Arrow arrays of their texts."""
        batch = cells.encode(self.header.columns, values)
        if not batch.num_rows:
            return
        with self._files.errors("write", self._path):
            self._writer.write_batch(batch, row_group_size=batch.num_rows)
        self._digest.add(batch)
        self.rows += batch.num_rows
        self._note_times(batch)

    def finish(self) -> File:
        """Complete and durable; not yet published."""
        if not self.rows:
            raise ArchiveError(f"{self._path} would have no row")
        file = File(
            header=self.header, rows=self.rows, digest="", path=self._path, bytes=0, first=self._first, last=self._last
        )
        file = replace(file, digest=self._digest.finish(describe(file, digest=False)))
        with self._files.errors("write", self._path):
            self._writer.add_key_value_metadata({KEY.decode(): describe(file, digest=True)})
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        self._files.make_durable(self._path)
        return replace(file, bytes=size)

    def abandon(self) -> None:
        for each in (self._writer, self._sink):
            # It goes anyway, whatever cannot be written of it any more.
            with suppress(OSError, arrow().ArrowException):
                each.close()
        self._files.delete(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._sink.closed:
            # What went wrong before is what the caller has to know; a file that stays is found as an orphan.
            with suppress(ArchiveUnavailable):
                self.abandon()

    def _note_times(self, batch: Any) -> None:
        first, last = time_range(self.header, batch)
        self._first = min(filter(None, (self._first, first)), default=None)
        self._last = max(filter(None, (self._last, last)), default=None)


def _repeating(schema: Any) -> list[str]:
    """Columns whose values are worth a dictionary. Numbers and times that differ get larger by one, and take twice as
    long; where they are the same, compression alone makes as much of it."""
    types = arrow("types")
    return [field.name for field in schema if types.is_string(field.type) or types.is_binary(field.type)]
