"""Rows of a result as the server sends them: by column, as Arrow arrays, for all rows that have come at once.

A row is a packet: three bytes with its length, one with its number, and its cells one after the other. A cell is the
length of its text and the text. Splitting packets into cells one by one is what reading costs most; here a column is
cut out of all of them together.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from struct import Struct
from typing import Any

from lapse.archive.loading import arrow
from lapse.archive.pieces import Pieces, numbers
from lapse.errors import LapseError

BATCH_BYTES = 4 << 20
"""How much text becomes one batch, about."""
CHUNK_BYTES = 1 << 20
HEADER = Struct("<I")
WHOLE_PACKET = 0xFFFFFF
"""The length of a packet whose row goes on in the next one."""
NULL, TWO_BYTES, THREE_BYTES = 0xFB, 0xFC, 0xFD
"""First bytes of a cell: it is NULL, or its length is in the bytes that follow. Smaller ones are the length."""
END, ERROR = 0xFE, 0xFF
"""First bytes of a packet that is no row. A row can begin with END, too, but is longer than MAX_END then."""
MAX_END = 8
LOST = 2013
PACKETS_BEFORE = 3
"""A result's packets are numbered: that of the first row comes after one with the number of columns, one for each of
these, and one that ends them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Bytes, and where rows begin and end in them. Behind the last one there are as many bytes as a header has."""

    data: bytes
    starts: array[int]
    ends: array[int]


def can_read(raw: Any) -> bool:
    """Has PyMySQL's connection what is used of it here, and does this machine lay numbers out as the server does?"""
    return sys.byteorder == "little" and all(hasattr(raw, name) for name in ("_rfile", "_next_seq_id", "_force_close"))


def batches(raw: Any, result: Any) -> Iterator[list[Any]]:
    """All rows of a result that is being read unbuffered: an array for each column, of text or of bytes."""
    is_text = texts(result)
    with closing(whole(raw, result)) as found:
        for batch in found:
            if len(batch.starts) == 1:
                yield _one_row(batch, is_text)
            else:
                yield columns(batch.data, numbers("int64", batch.starts), numbers("int64", batch.ends), is_text)


def texts(result: Any) -> list[bool]:
    """Which columns of a result are text; the others are bytes."""
    return [encoding is not None for encoding, _ in result.converters]


def whole(raw: Any, result: Any, batch_bytes: int = BATCH_BYTES) -> Generator[Batch]:
    """The same rows, not yet cut into cells. A batch ends with the row by which it has `batch_bytes`."""
    rows = _Rows(raw, result, batch_bytes)
    if raw._next_seq_id != (result.field_count + PACKETS_BEFORE) & 0xFF:
        raise LapseError("some of the rows of a result were read already")
    try:
        while (found := rows.next_batch()) is not None:
            yield found
    finally:
        # The connection knows nothing of what was read ahead.
        while rows.next_batch() is not None:
            pass


class _Rows:
    """Reads ahead: after the last packet of a result the server sends nothing until it is asked."""

    def __init__(self, raw: Any, result: Any, batch_bytes: int) -> None:
        self._raw = raw
        self._result = result
        self._batch_bytes = batch_bytes
        self._data = bytearray()

    def next_batch(self) -> Batch | None:
        """None after the last row. One that has several packets comes alone."""
        starts, ends = array("q"), array("q")
        at = self._find(starts, ends)
        if self._result.unbuffered_active and not starts:
            return self._next_large()
        data, self._data = bytes(memoryview(self._data)[:at]) + bytes(HEADER.size), self._data[at:]
        return Batch(data, starts, ends) if starts else None

    def _find(self, starts: array[int], ends: array[int]) -> int:
        """Whole rows, up to about the bytes of a batch; returns where the last one ends."""
        at, number, data = 0, self._raw._next_seq_id, self._data
        while self._result.unbuffered_active and at < self._batch_bytes:
            if len(data) < at + HEADER.size:
                self._read_more()
                continue
            (told,) = HEADER.unpack_from(data, at)
            length, begin = told & WHOLE_PACKET, at + HEADER.size
            if length == WHOLE_PACKET:
                break
            if len(data) < begin + length:
                self._read_more()
                continue
            if told >> 24 != number:
                raise self._lost(f"the server sent packet {told >> 24} instead of {number}")
            number, at = (number + 1) & 0xFF, begin + length
            first = data[begin]
            if first == ERROR or (first == END and length <= MAX_END):
                self._finish(bytes(data[begin:at]))
            else:
                starts.append(begin)
                ends.append(at)
        self._raw._next_seq_id = number
        return at

    def _next_large(self) -> Batch:
        """The packets of one row, as one."""
        found, length = bytearray(), WHOLE_PACKET
        while length == WHOLE_PACKET:
            while len(self._data) < HEADER.size or len(self._data) < HEADER.size + _length(self._data):
                self._read_more()
            length = _length(self._data)
            found += self._data[HEADER.size : HEADER.size + length]
            del self._data[: HEADER.size + length]
            self._raw._next_seq_id = (self._raw._next_seq_id + 1) & 0xFF
        return Batch(bytes(found), array("q", [0]), array("q", [len(found)]))

    def _read_more(self) -> None:
        try:
            more = self._raw._rfile.read1(CHUNK_BYTES)
        except OSError as error:
            raise self._lost(str(error)) from error
        if not more:
            raise self._lost("Lost connection to MySQL server during query")
        self._data += more

    def _finish(self, packet: bytes) -> None:
        """By what is no row: the end of the result, or an error."""
        from pymysql.protocol import MysqlPacket

        self._result.unbuffered_active = False
        told = MysqlPacket(packet, self._raw.encoding)
        if packet[0] == ERROR:
            told.raise_for_error()
        self._result._check_packet_is_eof(told)
        self._result.connection = None

    def _lost(self, reason: str) -> Any:
        from pymysql.err import OperationalError

        self._result.unbuffered_active = False
        self._raw._force_close()
        return OperationalError(LOST, reason)


def _length(data: bytearray) -> int:
    return int(HEADER.unpack_from(data)[0]) & WHOLE_PACKET


def columns(data: bytes, starts: Any, ends: Any, is_text: Sequence[bool]) -> list[Any]:
    """The cells of rows that are in `data` from their starts to their ends, as `Batch` says."""
    compute = arrow("compute")
    pieces, at, until = Pieces(data, len(starts)), starts, ends
    found: list[Any] = []
    for text in is_text:
        begins, at, is_there = _cells(pieces.words(at), at)
        if compute.any(compute.greater(at, until)).as_py():
            raise ValueError("a cell of the server's is longer than its row")
        values = pieces.between(begins, at)
        values = values.cast(arrow().string()) if text else values
        found.append(values if is_there is None else compute.if_else(is_there, values, None))
    if not at.equals(until):
        raise ValueError("a row of the server's has more cells than columns")
    return found


def _cells(words: Any, at: Any) -> tuple[Any, Any, Any]:
    """Where the cells at these places begin and end, and which of them are not NULL: None where all are."""
    compute = arrow("compute")
    first = compute.bit_wise_and(words, 0xFF)
    largest = compute.max(first).as_py()
    if largest < NULL:
        begins = compute.add(at, 1)
        return begins, compute.add(begins, first), None
    if largest > THREE_BYTES:
        raise ValueError("a cell of the server's has no length")
    rest, two, three = compute.shift_right(words, 8), compute.equal(first, TWO_BYTES), compute.equal(first, THREE_BYTES)
    is_there = compute.not_equal(first, NULL)
    short = compute.if_else(is_there, first, 0)
    length = compute.if_else(two, compute.bit_wise_and(rest, 0xFFFF), compute.if_else(three, rest, short))
    begins = compute.add(at, compute.if_else(two, 3, compute.if_else(three, 4, 1)))
    return begins, compute.add(begins, length), is_there


def _one_row(batch: Batch, is_text: Sequence[bool]) -> list[Any]:
    """It may be larger than a packet, and so may each of its cells."""
    from pymysql.protocol import MysqlPacket

    packet, library = MysqlPacket(batch.data[batch.starts[0] : batch.ends[0]], "utf8"), arrow()
    cells = [packet.read_length_coded_string() for _ in is_text]
    return [
        library.array([cell], library.binary()).cast(library.string() if text else library.binary())
        for cell, text in zip(cells, is_text, strict=True)
    ]
