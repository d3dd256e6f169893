"""Partitions that are tables of their own: two tables may be about the same rows."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Connection

from lapse.engines.base import Engine
from lapse.errors import TableNotFound
from lapse.model.table import TableName


def share_rows(engine: Engine, connection: Connection, one: TableName, other: TableName) -> bool:
    """Is one of them a partition of the other, at whatever level?"""
    return bool(_physical(engine, connection, one) & _physical(engine, connection, other))


def _physical(engine: Engine, connection: Connection, name: TableName) -> set[TableName]:
    """The tables that hold the rows, each under the name that it has by itself."""
    with suppress(TableNotFound):
        leaves = engine.leaf_names(connection, engine.describe(connection, name))
        return {engine.standalone_name(leaf) or name for leaf in leaves}
    return set()
