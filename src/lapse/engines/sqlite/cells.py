"""Cells for an archive in files: rows out of SQLite with the type of each value, and back."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from lapse.archive import ArchivedColumn
from lapse.archive.storage import Cell
from lapse.engines.sqlite.names import quote
from lapse.model.table import TableName

ENGINE = "sqlite"
BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20
FETCH_ROWS = 8
"""After so many the size is looked at: a row may be as large as a batch."""


def columns(connection: Connection, table: TableName) -> tuple[ArchivedColumn, ...]:
    """The columns of a table as an archive keeps them."""
    found = connection.exec_driver_sql("SELECT name, type FROM pragma_table_info(?)", (table.name,))
    return tuple(ArchivedColumn(engine=ENGINE, name=name, type=kind or "") for name, kind in found)


def read(
    connection: Connection, table: TableName, named: Sequence[ArchivedColumn], where: str = "true"
) -> Generator[list[Any]]:
    """The rows that match, in batches of bounded size: the cells of each column.

    `where` may end with an order and a limit.
    """
    names = ", ".join(quote(column.name) for column in named)
    with _cells(connection) as raw:
        cursor = raw.execute(f"SELECT {names} FROM {quote(table.name)} WHERE {where}")
        rows: list[Any] = []
        size = 0
        while found := cursor.fetchmany(FETCH_ROWS):
            rows += found
            size += sum(len(cell) for row in found for cell in row if type(cell) in (str, bytes))
            if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
                yield [list(column) for column in zip(*rows, strict=True)]
                rows, size = [], 0
        if rows:
            yield [list(column) for column in zip(*rows, strict=True)]


def insert(
    connection: Connection, table: TableName, named: Sequence[ArchivedColumn], cells: Sequence[Sequence[Cell]]
) -> None:
    """Rows whose cells are given by column."""
    names = ", ".join(quote(column.name) for column in named)
    raw: Any = connection.connection.driver_connection
    for row in zip(*cells, strict=True):
        places = ", ".join("CAST(? AS TEXT)" if _is_broken(cell) else "?" for cell in row)
        values = [cell.encode(errors="surrogateescape") if _is_broken(cell) else cell for cell in row]
        raw.execute(f"INSERT INTO {quote(table.name)} ({names}) VALUES ({places})", values)


def _is_broken(cell: Any) -> bool:
    """Text that is not valid UTF-8, which SQLite holds and the driver would not take."""
    return isinstance(cell, str) and not cell.isascii() and any("\ud800" <= each <= "\udfff" for each in cell)


@contextmanager
def _cells(connection: Connection) -> Iterator[Any]:
    """The driver's connection, with text that is not valid UTF-8 as surrogate escapes."""
    raw: Any = connection.connection.driver_connection
    factory, raw.text_factory = raw.text_factory, lambda text: text.decode(errors="surrogateescape")
    try:
        yield raw
    finally:
        raw.text_factory = factory
