"""Cells for an archive in files: rows out of PostgreSQL by COPY, and back into it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from lapse.archive import ArchivedColumn, csvtext
from lapse.archive.storage import Cell
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import quote, relation
from lapse.model.table import TableName

ENGINE = "postgresql"
SETTINGS = (
    "SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; SET LOCAL IntervalStyle = 'postgres';"
    " SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1; SET LOCAL xmloption = 'content'"
)
"""What the text of a value depends on. With these each text is read back as the same value."""

BY_NUMBER = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off;"
    " SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL jit = off"
)
"""Rows are read in the order of an index, from where the page before has ended. Nothing is known of a table that was
filled a moment ago, and the planner would rather read and sort all of it for each page."""

_COLUMNS = """
    SELECT a.attname AS name, a.atttypid AS type, a.atttypmod AS modifier,
           pg_catalog.format_type(a.atttypid, a.atttypmod) AS words
      FROM pg_catalog.pg_attribute a
     WHERE a.attrelid = pg_catalog.to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum"""

_TYPES = """
    WITH RECURSIVE part (type) AS (
      SELECT a.atttypid FROM pg_catalog.pg_attribute a
       WHERE a.attrelid = pg_catalog.to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped
      UNION
      SELECT inner_type.oid FROM part JOIN pg_catalog.pg_type t ON t.oid = part.type
        CROSS JOIN LATERAL (
          SELECT t.typbasetype AS oid WHERE t.typtype = 'd'
          UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
          UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
          UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                     WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
        ) inner_type
    )
    SELECT t.oid, t.typtype AS kind, t.typcategory = 'A' AS is_array, t.typelem AS element, t.typbasetype AS base,
           pg_catalog.format_type(t.oid, NULL) AS words,
           pg_catalog.format_type(t.typbasetype, t.typtypmod) AS base_words,
           ARRAY(SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
                 UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped) AS inside
      FROM part JOIN pg_catalog.pg_type t ON t.oid = part.type"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Type:
    """`kind` is that of pg_type: b, c, d, e, r, m. `inside` are the types of a composite or of a range's bounds."""

    kind: str
    is_array: bool
    element: int
    base: int
    words: str
    base_words: str
    inside: tuple[int, ...]


def columns(connection: Connection, table: TableName) -> tuple[ArchivedColumn, ...]:
    """The columns of a table as an archive keeps them. Raises Unsupported for a type that it cannot keep exactly."""
    name = {"name": relation(table)}
    types = {int(row["oid"]): _type(row) for row in rows(connection, _TYPES, name)}
    return tuple(
        _column(str(row["name"]), int(row["type"]), str(row["words"]), types)
        for row in rows(connection, _COLUMNS, name)
    )


def read(
    connection: Connection, table: TableName, named: Sequence[ArchivedColumn], where: str = "true"
) -> Generator[list[Any]]:
    """The rows that match, in batches of bounded size: an Arrow array of texts for each column.

    `where` may end with an order and a limit. The settings last until the transaction ends.
    """
    connection.exec_driver_sql(f"{SETTINGS}; {BY_NUMBER}; SAVEPOINT lapse_read")
    names = ", ".join(quote(column.name) for column in named)
    sql = f"COPY (SELECT {names} FROM ONLY {relation(table)} WHERE {where}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
    raw: Any = connection.connection.driver_connection
    try:
        with raw.cursor() as cursor, cursor.copy(sql) as copy:
            yield from csvtext.batches(copy, len(named))
    except GeneratorExit:
        # What was not wanted any more was cancelled; the transaction goes on.
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT lapse_read")
        raise


def insert(
    connection: Connection, table: TableName, named: Sequence[ArchivedColumn], cells: Sequence[Sequence[Cell]]
) -> None:
    """Rows whose cells are given by column; every cell is read by the input function of the column's own type."""
    connection.exec_driver_sql(SETTINGS)
    names = ", ".join(quote(column.name) for column in named)
    sql = f"COPY {relation(table)} ({names}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
    raw: Any = connection.connection.driver_connection
    with raw.cursor() as cursor, cursor.copy(sql) as copy:
        copy.write(csvtext.write(cells))


def _type(row: Mapping[str, Any]) -> Type:
    return Type(
        kind=str(row["kind"]),
        is_array=bool(row["is_array"]),
        element=int(row["element"]),
        base=int(row["base"]),
        words=str(row["words"]),
        base_words=str(row["base_words"]),
        inside=tuple(int(each) for each in row["inside"]),
    )


def _column(name: str, oid: int, words: str, types: Mapping[int, Type]) -> ArchivedColumn:
    found = types[oid]
    while found.kind == "d":
        words, found = found.base_words, types[found.base]
    built_in = found.kind == "b" and not (found.is_array and types[found.element].kind != "b")
    made_of = None if built_in else tuple(sorted(_leaves(found, types)))
    return ArchivedColumn(engine=ENGINE, name=name, type=words, made_of=made_of)


def _leaves(found: Type, types: Mapping[int, Type]) -> set[str]:
    """The built-in types that a type is made of, by name; of an enum, none."""
    inside = (found.base,) if found.kind == "d" else (found.element,) if found.is_array else found.inside
    if found.kind == "b" and not found.is_array:
        return {found.words}
    return {leaf for oid in inside for leaf in _leaves(types[oid], types)}
