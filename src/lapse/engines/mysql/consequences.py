"""Rows that foreign keys tie together, by their key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from sqlalchemy import Connection

from lapse.engines.base import Engine, Target
from lapse.engines.consequences import SCANNED_ROWS, Address, Kin
from lapse.engines.mysql import forecast, inspect, keys, paths
from lapse.engines.mysql.keys import Walk
from lapse.engines.mysql.names import qualified, quote, source
from lapse.model.job import PathKind
from lapse.model.table import Reference, Table, TableName

PARENT, CHILD = "lapse_parent", "lapse_child"
END_ROWS = 10_000
"""Rows that are looked at on each end of a large table whose key is no whole number."""


class MysqlKin(Kin):
    """A row of a table without a key gets a number of its own: nothing else tells it from others."""

    held_by_itself = True  # InnoDB checks the key before the row is gone.

    def __init__(self, engine: Engine, connection: Connection, target: Target) -> None:
        super().__init__(engine, connection, target)
        self._numbers = count()
        self._walks: dict[TableName, Walk | None] = {}

    def expired(self, most: int) -> tuple[list[Address], bool]:
        table = self.target.declared.table
        found = self.target.condition.sql
        walk = keys.load(self.connection, table.name, inspect.key_index(table))
        total = paths.estimate_rows(self.connection, table.name)
        if total > max(SCANNED_ROWS, most) and self.target.path.kind is not PathKind.INDEX:
            return self._sampled(table, walk, found, most), False
        select = f"SELECT {walk.selected} FROM {source(table.name)} WHERE {found}"
        rows = self._rows(f"{select} LIMIT {most + 1}")
        return (rows, True) if len(rows) <= most else (self._rows(f"{select} ORDER BY rand(1) LIMIT {most}"), False)

    def _sampled(self, table: Table, walk: Walk, found: str, most: int) -> list[Address]:
        points = forecast.sample_points(self.connection, table)
        if points is not None:
            return self._rows(f"SELECT STRAIGHT_JOIN {walk.selected} FROM {points[0]} WHERE {found} LIMIT {most}")
        columns = ", ".join(quote(column.name) for column in table.columns)
        some = f"SELECT {columns} FROM {source(table.name)}{walk.hint()} ORDER BY"
        return [
            row
            for order in (walk.order, walk.backwards)
            for row in self._rows(
                f"SELECT {walk.selected} FROM ({some} {order} LIMIT {END_ROWS}) AS lapse_end WHERE {found}"
            )
        ][:most]

    def _rows(self, sql: str) -> list[Address]:
        return [tuple(row) for row in self.connection.exec_driver_sql(sql)]

    def children(
        self, parent: Table, child: Table, reference: Reference, addresses: Sequence[Address], most: int
    ) -> list[tuple[Address, Address]]:
        above, below = self._walk(parent), self._walk(child)
        if above is None:
            return []
        pairs = " AND ".join(
            f"{CHILD}.{quote(own)} = {PARENT}.{quote(referred)}"
            for own, referred in zip(reference.columns, reference.referred, strict=True)
        )
        at, width = above.of(PARENT), len(above.parts)
        selected = at.selected if below is None else f"{at.selected}, {below.of(CHILD).selected}"
        with self.engine.errors():
            rows = self.connection.exec_driver_sql(
                f"SELECT STRAIGHT_JOIN {selected} FROM {qualified(parent.name)} AS {PARENT}"
                f" JOIN {qualified(child.name)} AS {CHILD} ON {pairs} WHERE {at.equal(addresses)} LIMIT {most}"
            ).all()
        return [(tuple(row[:width]), tuple(row[width:]) or (next(self._numbers),)) for row in rows]

    def _walk(self, table: Table) -> Walk | None:
        name = table.name
        if name not in self._walks:
            has_key = bool(table.key)
            self._walks[name] = keys.load(self.connection, name, inspect.key_index(table)) if has_key else None
        return self._walks[name]
