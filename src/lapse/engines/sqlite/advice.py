"""Indexes that a table with TTL lacks, and free space that stays in the file."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice, BoundPolicy
from lapse.engines.sqlite.names import quote
from lapse.model.policy import ColumnExpiry

MUCH_FREE = 0.2
"""Share of the file's pages."""


def indexes(connection: Connection, declared: BoundPolicy) -> list[Advice]:
    expiry = declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry) or declared.table.key or declared.table.index_on(expiry.column):
        return []
    return [
        Advice(
            text=f"no index on {expiry.column}: each run reads the whole table; an index helps when few expire at once",
            statement=create_index(connection, declared.table.name.name, (expiry.column,)),
        )
    ]


def space(connection: Connection) -> list[Advice]:
    mode = int(connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one())
    free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
    pages = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
    if mode == 0 and pages and free / pages > MUCH_FREE:
        return [
            Advice(
                text=f"{free} of {pages} pages are free but stay in the file: auto_vacuum is off",
                statement="PRAGMA auto_vacuum = INCREMENTAL; VACUUM;",
            )
        ]
    return []


def create_index(connection: Connection, table: str, columns: tuple[str, ...]) -> str:
    """Under a name that nothing in the file has."""
    taken = {str(name).lower() for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master")}
    name = wanted = "_".join((table, *columns))
    number = 1
    while name.lower() in taken:
        number += 1
        name = f"{wanted}_{number}"
    return f"CREATE INDEX {quote(name)} ON {quote(table)} ({', '.join(quote(column) for column in columns)});"
