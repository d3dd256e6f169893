"""Pieces of a text in memory as an Arrow array, one for each row: taken by their places, never row by row."""

from __future__ import annotations

from array import array
from typing import Any

from lapse.archive.loading import arrow


class Pieces:
    """`data` holds `rows` rows. Places are arrays of 64-bit numbers, in growing order; none may be behind its end."""

    def __init__(self, data: bytes, rows: int) -> None:
        self._data = arrow().py_buffer(data)
        self._rows = rows
        self._even = numbers("int32", array("i", range(0, 2 * rows, 2)))

    def between(self, starts: Any, ends: Any) -> Any:
        """The bytes from each start to its end. What is between an end and the next start is left out."""
        compute, library = arrow("compute"), arrow()
        # Two numbers of 32 bits as one of 64: in memory they are start, end, start, end.
        both = compute.bit_wise_or(starts, compute.shift_left(ends, 32)).buffers()[1]
        pieces = library.Array.from_buffers(library.binary(), 2 * self._rows - 1, [None, both, self._data])
        return pieces.take(self._even)

    def words(self, starts: Any) -> Any:
        """The four bytes at each start, as a number with the least significant one first."""
        _, offsets, data = self.between(starts, arrow("compute").add(starts, 4)).buffers()
        first = memoryview(offsets).cast("i")[0]
        found = arrow().Array.from_buffers(arrow().uint32(), self._rows, [None, data.slice(first, 4 * self._rows)])
        return found.cast(arrow().int64())


def numbers(name: str, values: array[int]) -> Any:
    """An Arrow array of that type, on the memory of `values`."""
    return arrow().Array.from_buffers(getattr(arrow(), name)(), len(values), [None, arrow().py_buffer(values)])
