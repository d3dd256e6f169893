"""Where deletes lead by foreign keys with CASCADE: rows that a hold keeps must not go that way either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection

from lapse.catalog import Catalog, holds
from lapse.engines.base import Engine
from lapse.errors import Blocked, TableNotFound
from lapse.model.blocked import BlockCode
from lapse.model.table import FkAction, Table, TableName


def cascades(engine: Engine, connection: Connection, name: TableName) -> set[TableName]:
    """Tables in which rows go when rows of this one do."""
    found: set[TableName] = set()
    wanted = [name]
    while wanted:
        for child in _children(engine, connection, wanted.pop()):
            if child not in found and child != name:
                found.add(child)
                wanted.append(child)
    return found


def _children(engine: Engine, connection: Connection, name: TableName) -> Iterator[TableName]:
    with suppress(TableNotFound):
        yield from _cascading(engine.describe(connection, name))


def _cascading(table: Table) -> list[TableName]:
    return [reference.table for reference in table.referenced_by if reference.action is FkAction.CASCADE]


def refuse_cascade(catalog: Catalog, connection: Connection, table: Table, now: datetime) -> None:
    """Raises Blocked where deleting from this table would delete rows of another that are held."""
    if not _cascading(table):
        return
    for hold in holds.holds_on(catalog.bind(connection), now):
        if hold.table in cascades(catalog.engine, connection, table.name):
            raise Blocked(
                BlockCode.HELD,
                f"deleting from table {table.name} would delete rows of table {hold.table}, of which hold {hold.id}"
                f" keeps {hold.rows}",
                hint=f"it goes on after: lapse release URL {hold.id}",
            )
