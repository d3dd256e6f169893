"""CSV as PostgreSQL's COPY writes and reads it: NULL is nothing, an empty text is in quotes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lapse.archive.loading import arrow
from lapse.archive.storage import Cell

BLOCK_BYTES = 4 << 20
"""How much text becomes one batch, at least."""


def batches(pieces: Iterable[bytes | memoryview], width: int, block_bytes: int = BLOCK_BYTES) -> Iterator[list[Any]]:
    """Whole rows, in pieces of any number, as Arrow arrays of text: one for each of `width` columns."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(bytes(piece))
        size += len(piece)
        if size >= block_bytes:
            yield parse(b"".join(found), width)
            found, size = [], 0
    if found:
        yield parse(b"".join(found), width)


def parse(text: bytes, width: int) -> list[Any]:
    csv, string = arrow("csv"), arrow().string()
    names = _names(width)
    found = csv.read_csv(
        arrow().BufferReader(text),
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, string),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in found.columns]


def write(cells: Sequence[Sequence[Cell]]) -> bytes:
    """Cells by column as CSV."""
    library = arrow()
    sink = library.BufferOutputStream()
    table = library.table([library.array(column, library.string()) for column in cells], names=_names(len(cells)))
    options = arrow("csv").WriteOptions(include_header=False, quoting_style="all_valid")
    arrow("csv").write_csv(table, sink, options)
    return bytes(sink.getvalue())


def _names(width: int) -> list[str]:
    return [str(index) for index in range(width)]
