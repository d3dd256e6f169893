"""Cells for an archive in files: rows out of MariaDB or MySQL as the text protocol sends them, and back."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from lapse.archive import ArchivedColumn
from lapse.archive.storage import Cell
from lapse.engines.mysql import packets
from lapse.engines.mysql.names import qualified, quote
from lapse.errors import Unsupported
from lapse.model.table import TableName

ENGINE = "mysql"
FETCH_ROWS = 10_000
CHARSET = "utf8mb4"
EXACT_MODE = "STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
"""Zero dates are dates, and 0 in an AUTO_INCREMENT column is 0."""

_COLUMNS = """
    SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME FROM information_schema.COLUMNS
     WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s ORDER BY ORDINAL_POSITION"""


def columns(connection: Connection, table: TableName) -> tuple[ArchivedColumn, ...]:
    """The columns of a table as an archive keeps them. Raises Unsupported for a type that it cannot keep exactly."""
    found = connection.exec_driver_sql(_COLUMNS, {"schema": table.schema, "name": table.name})
    return tuple(
        ArchivedColumn(
            engine=ENGINE, name=name, type=f"{_text(kind)} character set {charset}" if charset else _text(kind)
        )
        for name, kind, charset in found
    )


def read(
    connection: Connection, table: TableName, named: Sequence[ArchivedColumn], where: str = "true"
) -> Generator[list[Any]]:
    """The rows that match, in batches of bounded size: the cells of each column, as an Arrow array or a list.

    `where` may end with an order and a limit. The session is in UTC, as all of Lapse's are.
    """
    names = ", ".join(expression(column) for column in named)
    with as_sent(connection) as raw, streaming(raw) as cursor:
        cursor.execute(f"SELECT {names} FROM {qualified(table)} WHERE {where}")
        if packets.can_read(raw):
            yield from packets.batches(raw, cursor._result)
            return
        while found := cursor.fetchmany(FETCH_ROWS):
            yield [list(column) for column in zip(*found, strict=True)]


def insert(
    connection: Connection, table: TableName, named: Sequence[ArchivedColumn], cells: Sequence[Sequence[Cell]]
) -> None:
    """Rows whose cells are given by column."""
    names = ", ".join(quote(column.name) for column in named).replace("%", "%%")
    places = ", ".join(["%s"] * len(named))
    sql = f"INSERT INTO {qualified(table).replace('%', '%%')} ({names}) VALUES ({places})"
    with as_sent(connection) as raw, raw.cursor() as cursor, _exactly(cursor):
        cursor.executemany(sql, list(zip(*cells, strict=True)))


@contextmanager
def _exactly(cursor: Any) -> Iterator[None]:
    """Takes every value that a column of this server can hold, and no other."""
    cursor.execute("SELECT @@SESSION.sql_mode")
    (mode,) = cursor.fetchone()
    cursor.execute(f"SET SESSION sql_mode = '{EXACT_MODE}'")
    try:
        yield
    finally:
        cursor.execute("SET SESSION sql_mode = %s", (mode,))


def expression(column: ArchivedColumn) -> str:
    """What is read of a column."""
    name = quote(column.name)
    # The server writes six digits of a FLOAT; as a DOUBLE it has all of them.
    return f"{name} * 1e0" if column.type.lower().startswith("float") else name


@contextmanager
def as_sent(connection: Connection) -> Iterator[Any]:
    """The driver's connection, with values as the server sent them and not as Python's."""
    raw: Any = connection.connection.driver_connection
    if raw.charset != CHARSET:
        raise Unsupported(
            f"rows are archived in files through connections with charset={CHARSET}, and this one has {raw.charset}",
            hint="leave charset out of the URL",
        )
    decoders, raw.decoders = raw.decoders, {}
    try:
        yield raw
    finally:
        raw.decoders = decoders


@contextmanager
def streaming(raw: Any) -> Iterator[Any]:
    """A cursor that holds one batch in memory, not the whole result."""
    from pymysql.cursors import SSCursor

    with raw.cursor(SSCursor) as cursor:
        yield cursor


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
