"""The digest of a file's rows: SHA-256 over every stored value, in order, and over what the file says of itself.

It is computed from values, not from bytes of the file, so that it can be computed again from what any reader of Parquet
reads. For each row group and each of its columns:

- text and binary: the length of each value in bytes as a 32-bit number, -1 for NULL, then the bytes of all values;
- anything else: a byte for each row, 1 for a value and 0 for NULL, then the values as Arrow lays them out
  (little-endian; a boolean is one byte, a decimal 16), with zeros for NULL.

It ends with the metadata of the file without the digest itself: JSON, keys sorted, no spaces, UTF-8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from lapse.archive.loading import arrow

ALGORITHM = "sha256"


class Digest:
    def __init__(self) -> None:
        self._hash = hashlib.new(ALGORITHM)

    def add(self, batch: Any) -> None:
        """One row group."""
        for array in batch.columns:
            for part in _parts(array):
                self._hash.update(part)

    def finish(self, description: str) -> str:
        whole = self._hash.copy()
        whole.update(description.encode())
        return f"{ALGORITHM}:{whole.hexdigest()}"


def _parts(array: Any) -> Iterable[Any]:
    types = arrow("types")
    if types.is_string(array.type) or types.is_binary(array.type):
        return _lengths_and_bytes(array)
    if types.is_boolean(array.type):
        array = array.cast(arrow().uint8())
    return _flags_and_values(array)


def _lengths_and_bytes(array: Any) -> Iterable[Any]:
    compute = arrow("compute")
    yield _values(compute.fill_null(compute.binary_length(array), -1), 4)
    filled = compute.fill_null(array.cast(arrow().binary()), b"")
    _, offsets, data = filled.buffers()
    if data is not None and len(filled):
        bounds = memoryview(offsets).cast("i")
        yield memoryview(data)[bounds[filled.offset] : bounds[filled.offset + len(filled)]]


def _flags_and_values(array: Any) -> Iterable[Any]:
    compute, library = arrow("compute"), arrow()
    width = array.type.bit_width // 8
    fixed = library.binary(width)
    yield _values(array.is_valid().cast(library.uint8()), 1)
    yield _values(compute.fill_null(array.view(fixed), library.scalar(bytes(width), fixed)), width)


def _values(array: Any, width: int) -> Any:
    buffer = array.buffers()[1]
    if buffer is None:
        return b""
    return memoryview(buffer)[array.offset * width : (array.offset + len(array)) * width]
