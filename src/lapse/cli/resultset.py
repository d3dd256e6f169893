"""The rows of a statement, as a table, JSON or CSV, written as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice
from textwrap import indent
from typing import TypeVar

from lapse.app import Stream
from lapse.cli.output import Output, as_json, plain, printable, rows

DRAWN_ROWS = 500
"""Of more, the widths of the first decide: to measure them all takes long, and all of them would have to be kept."""
CHUNK_ROWS = 500

T = TypeVar("T")


class ResultFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def write(output: Output, form: ResultFormat, result: Stream) -> None:
    if not result.columns:
        if form is ResultFormat.TABLE:
            output.line(f"{rows(result.rowcount)} affected" if result.rowcount > 0 else "OK", "dim")
    elif form is ResultFormat.JSON:
        _write_json(output, result)
    elif form is ResultFormat.CSV:
        _write_csv(output, result)
    else:
        _write_table(output, result)


def _write_json(output: Output, result: Stream) -> None:
    names = _distinct(result.columns)
    records = (indent(as_json(dict(zip(names, row, strict=True))), "  ") for row in result.rows)
    first = next(records, None)
    if first is None:
        output.raw("[]\n")
        return
    output.raw(f"[\n{first}")
    for chunk in _chunks(records):
        output.raw("".join(f",\n{record}" for record in chunk))
    output.raw("\n]\n")


def _write_csv(output: Output, result: Stream) -> None:
    lines = (",".join(_field(value) for value in row) for row in chain((result.columns,), result.rows))
    for chunk in _chunks(lines):
        text = "".join(f"{line}\n" for line in chunk)
        # What the encoding of the output has no character for is an error, not another text.
        text.encode(output.encoding)
        output.raw(text)


def _field(value: object) -> str:
    """As PostgreSQL's COPY writes it: nothing at all is NULL, an empty text is in quotes."""
    if value is None:
        return ""
    text = plain(value)
    if text and text.isprintable() and not any(mark in text for mark in ',"') and text == text.strip():
        return text
    return '"' + text.replace('"', '""') + '"'


def _write_table(output: Output, result: Stream) -> None:
    first = list(islice(result.rows, DRAWN_ROWS + 1))
    is_number = [_is_number(value) for value in first[0]] if first else [False] * len(result.columns)
    if len(first) <= DRAWN_ROWS:
        numbers = [name for name, right in zip(result.columns, is_number, strict=True) if right]
        output.table(result.columns, first, right=numbers)
        output.line(f"({rows(len(first))})", "dim")
        return
    cells = [_cells(row) for row in first]
    widths = [max(map(len, column)) for column in zip(result.columns, *cells, strict=True)]
    output.raw(_aligned([printable(name) for name in result.columns], widths, is_number))
    output.raw("-+-".join("-" * width for width in widths) + "\n")
    count = 0
    for chunk in _chunks(chain(cells, map(_cells, result.rows))):
        output.raw("".join(_aligned(row, widths, is_number) for row in chunk))
        count += len(chunk)
    output.line(f"({rows(count)})", "dim")


def _cells(row: Sequence[object]) -> list[str]:
    return ["NULL" if value is None else printable(plain(value)).replace("\n", "\\n") for value in row]


def _aligned(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    line = " | ".join(
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, is_number, strict=True)
    )
    return f"{line.rstrip()}\n"


def _chunks(values: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(values)
    while chunk := list(islice(iterator, CHUNK_ROWS)):
        yield chunk


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _distinct(columns: Sequence[str]) -> list[str]:
    """Two columns may have one name, two members of an object may not."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names
