"""Packs: rows that a batch has deleted, together in one row of the outbox, until they are in a file.

MariaDB sends the rows that a DELETE has deleted (RETURNING). They go into the outbox as they came, in the same
transaction: the table is read once instead of twice, and the outbox has one row instead of thousands to write, to read
and to remove. A pack says by itself which columns it has, whatever becomes of the table and of the outbox.

    PACK  = MAGIC, the size of the content and its CRC-32, then the content, compressed
    content = the size of the head, the head, the length of each row, the rows as packets

A packet is what `packets` reads: four bytes before each row, and its cells. The head is JSON: the columns, and which of
them are text.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from struct import Struct
from typing import Any
from zlib import crc32

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.archive import ArchivedColumn
from lapse.archive.column import columns_from_json
from lapse.archive.loading import arrow
from lapse.archive.pieces import numbers
from lapse.engines.archive import archive_of
from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import archive, cells, inspect, packets
from lapse.engines.mysql.delete import TooLarge
from lapse.engines.mysql.names import qualified
from lapse.errors import ArchiveDamaged, LapseError, MissingExtra, Retryable, Unsupported
from lapse.model.archive import ARCHIVED_AT, JOB, PACK, PACKED_ROWS, SEQUENCE
from lapse.model.table import TableName

PACK_BYTES = 1 << 20
"""Of rows, before they are compressed: what the driver makes of them for the server is several times as large."""
MOST_PACK_BYTES = 8 << 20
"""With its last row. A larger one is not packed."""
MOST_BATCH_BYTES = 16 << 20
"""What a batch holds in memory, compressed, until the server has sent all of its rows."""
STATEMENT_BYTES = 1 << 10
"""Of an INSERT, beside the pack."""
COMPRESSION, LEVEL = "zstd", 1
MAGIC = b"LAP1"
_OPENING = Struct("<4sQI")
_SIZE = Struct("<I")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """Rows that were deleted together: `lengths` are those of the packets in `data`. `job` and `archived_at` are as the
    server writes them."""

    number: int
    rows: int
    columns: tuple[ArchivedColumn, ...]
    is_text: tuple[bool, ...]
    lengths: Any
    data: memoryview
    job: str | None
    archived_at: str | None

    @property
    def bytes(self) -> int:
        return len(self.data)

    @property
    def kind(self) -> object:
        return self.columns, self.is_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Packer:
    """Deletes rows of a table and packs them into its outbox. `most_bytes` are those of a pack that the server takes in
    one statement."""

    outbox: TableName
    columns: tuple[ArchivedColumn, ...]
    job: int
    most_bytes: int

    def take(self, connection: Connection, delete: str) -> int:
        """Executes a DELETE; returns how many rows are in the outbox instead. Raises TooLarge."""
        packed = self._deleted(connection, delete)
        name = qualified(self.outbox).replace("%", "%%")
        own = f"{JOB}, {ARCHIVED_AT}, {PACKED_ROWS}, {PACK}"
        insert = f"INSERT INTO {name} ({own}) VALUES ({int(self.job)}, {archive.NOW}, %s, %s)"
        for rows, pack in packed:
            connection.exec_driver_sql(insert, (rows, pack))
        return sum(rows for rows, _ in packed)

    def _deleted(self, connection: Connection, delete: str) -> list[tuple[int, bytes]]:
        """By the driver alone: what SQLAlchemy makes of a result has read of it already."""
        named = ", ".join(cells.expression(column) for column in self.columns)
        with cells.as_sent(connection) as raw:
            try:
                with cells.streaming(raw) as cursor:
                    cursor.execute(f"{delete} RETURNING {named}")
                    return self._packed(raw, cursor._result)
            except raw.Error as error:
                raise DBAPIError.instance(None, None, error, raw.Error) from error

    def _packed(self, raw: Any, result: Any) -> list[tuple[int, bytes]]:
        found, size, is_text = list[tuple[int, bytes]](), 0, packets.texts(result)
        with closing(packets.whole(raw, result, min(PACK_BYTES, self.most_bytes // 2))) as batches:
            for batch in batches:
                if len(batch.data) > MOST_PACK_BYTES:
                    raise TooLarge(f"a row has about {len(batch.data)} bytes")
                pack = written(self.columns, is_text, batch)
                size += len(pack)
                if len(pack) > self.most_bytes or size > MOST_BATCH_BYTES:
                    raise TooLarge(f"the rows of a batch have {size} bytes, compressed")
                found.append((len(batch.starts), pack))
        return found


def packer(connection: Connection, declared: BoundPolicy, job: int) -> Packer | None:
    """None where the server copies rows into the outbox: because this has no place for packs, or rows could not be
    read, or not be kept exactly."""
    outbox = archive_of(declared)
    if outbox is None or not archive.has_packs(connection, outbox):
        return None
    if inspect.is_versioned(connection, declared.table.name):
        # RETURNING tells of such a row what it became in the history.
        return None
    raw: Any = connection.connection.driver_connection
    if not packets.can_read(raw) or raw.charset != cells.CHARSET:
        return None
    try:
        arrow()
        found = cells.columns(connection, declared.table.name)
    except (MissingExtra, Unsupported):
        return None
    allowed = int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())
    # Each byte may be escaped by another one.
    return Packer(outbox=outbox, columns=found, job=job, most_bytes=(allowed - STATEMENT_BYTES) // 2)


def written(named: Sequence[ArchivedColumn], is_text: Sequence[bool], batch: packets.Batch) -> bytes:
    """Rows as a pack."""
    head = json.dumps({"columns": [column.as_json() for column in named], "text": list(is_text)}).encode()
    starts, ends = numbers("int64", batch.starts), numbers("int64", batch.ends)
    lengths = arrow("compute").subtract(ends, starts).cast(arrow().int32()).buffers()[1]
    packed = memoryview(batch.data)[batch.starts[0] - packets.HEADER.size : batch.ends[-1]]
    content = b"".join((_SIZE.pack(len(head)), head, memoryview(lengths)[: 4 * len(starts)], packed))
    compressed = arrow().Codec(COMPRESSION, compression_level=LEVEL).compress(content, asbytes=True)
    return _OPENING.pack(MAGIC, len(content), crc32(content)) + bytes(compressed)


def read(connection: Connection, table: TableName, chosen: str) -> Generator[Pack]:
    """The packs of an outbox that match. `chosen` may end with an order and a limit."""
    with cells.as_sent(connection) as raw, cells.streaming(raw) as cursor:
        cursor.execute(
            f"SELECT {SEQUENCE}, {JOB}, {ARCHIVED_AT}, {PACKED_ROWS}, {PACK} FROM {qualified(table)}"
            f" WHERE {PACK} IS NOT NULL AND {chosen}"
        )
        while (row := cursor.fetchone()) is not None:
            number, job, at, rows, pack = row
            try:
                yield _read(int(number), int(rows), job, at, pack)
            except (ValueError, OSError, KeyError, LapseError, arrow().ArrowException) as error:
                raise ArchiveDamaged(
                    f"row {number} of outbox {table} is not what Lapse has written there: {error}",
                    hint="none of its rows is lost by that; keep the table, and report it",
                    path=str(table),
                ) from error


def _read(number: int, rows: int, job: str | None, at: str | None, pack: bytes) -> Pack:
    magic, size, check = _OPENING.unpack_from(pack)
    if magic != MAGIC:
        raise ValueError("it is of another version")
    content = memoryview(arrow().Codec(COMPRESSION).decompress(memoryview(pack)[_OPENING.size :], size))
    if crc32(content) != check:
        raise ValueError("its content has another checksum")
    (length,) = _SIZE.unpack_from(content)
    begin = _SIZE.size + length
    head = json.loads(bytes(content[_SIZE.size : begin]))
    until = begin + 4 * rows
    lengths = array("i")
    lengths.frombytes(content[begin:until])
    data = content[until:]
    if len(lengths) != rows or sum(lengths) + packets.HEADER.size * rows != len(data):
        raise ValueError(f"it does not hold {rows} rows")
    return Pack(
        number=number,
        rows=rows,
        columns=columns_from_json(cells.ENGINE, head["columns"]),
        is_text=tuple(head["text"]),
        lengths=numbers("int32", lengths),
        data=data,
        job=job,
        archived_at=at,
    )


def cut(named: Sequence[ArchivedColumn], packs: Sequence[Pack]) -> list[Any]:
    """The cells of packs that have the same columns, by the columns that are `named`: Lapse's own of an outbox, and
    theirs."""
    found = dict(zip((column.name for column in packs[0].columns), _cells(packs), strict=True))
    library, string = arrow(), arrow().string()
    own = {
        SEQUENCE: library.nulls(sum(pack.rows for pack in packs), string),
        JOB: library.concat_arrays([_same(pack.job, pack.rows) for pack in packs]),
        ARCHIVED_AT: library.concat_arrays([_same(pack.archived_at, pack.rows) for pack in packs]),
    }
    return [(own | found)[column.name] for column in named]


def _cells(packs: Sequence[Pack]) -> list[Any]:
    compute, wide = arrow("compute"), arrow().int64()
    lengths = arrow().concat_arrays([pack.lengths for pack in packs]).cast(wide)
    ends = compute.cumulative_sum(compute.add(lengths, packets.HEADER.size))
    data = b"".join([*(pack.data for pack in packs), bytes(packets.HEADER.size)])
    return packets.columns(data, compute.subtract(ends, lengths), ends, packs[0].is_text)


def _same(text: str | None, rows: int) -> Any:
    return arrow().repeat(arrow().scalar(text, arrow().string()), rows)


def unpack(connection: Connection, table: TableName, number: int) -> int:
    """A pack's rows as rows of the outbox, in the caller's transaction; returns how many, 0 for one that is gone."""
    lock = f"SELECT 1 FROM {qualified(table)} WHERE {SEQUENCE} = {int(number)} FOR UPDATE"
    if connection.exec_driver_sql(lock).first() is None:
        return 0
    (pack,) = read(connection, table, f"{SEQUENCE} = {int(number)}")
    own = [column for column in cells.columns(connection, table) if column.name in (JOB, ARCHIVED_AT)]
    named = (*own, *pack.columns)
    cells.insert(connection, table, named, [column.to_pylist() for column in cut(named, [pack])])
    removed = connection.exec_driver_sql(f"DELETE FROM {qualified(table)} WHERE {SEQUENCE} = {int(number)}").rowcount
    if removed != 1:
        raise Retryable(f"another session has taken row {number} of {table}: undone")
    return pack.rows
