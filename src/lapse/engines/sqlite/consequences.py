"""Rows that foreign keys tie together, by row id, or by key where there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lapse.engines.consequences import Address, Kin
from lapse.engines.sqlite import forecast
from lapse.engines.sqlite.names import quote, row_address
from lapse.model.job import PathKind
from lapse.model.table import Reference, Table

PARENT, CHILD = "lapse_parent", "lapse_child"
_SPREAD = 2_654_435_761


class SqliteKin(Kin):
    def expired(self, most: int) -> tuple[list[Address], bool]:
        table = self.target.declared.table
        found = self.target.condition.sql
        address = ", ".join(_address(table))
        select = f"SELECT {address} FROM {quote(table.name.name)} WHERE {found}"
        if not table.key:
            low, high = forecast.row_ids(self.connection, table)
            is_large = low is not None and high - low >= max(forecast.SCANNED_ROWS, most)
            if low is not None and is_large and self.target.path.kind is not PathKind.INDEX:
                points, _ = forecast.sample_points(low, high)
                return self._rows(f"{select} AND {address} IN ({points}) LIMIT {most}"), False
        rows = self._rows(f"{select} LIMIT {most + 1}")
        if len(rows) <= most:
            return rows, True
        spread = f" ORDER BY ({address} * {_SPREAD}) % 65536" if not table.key else " ORDER BY random()"
        return self._rows(f"{select}{spread} LIMIT {most}"), False

    def _rows(self, sql: str) -> list[Address]:
        return [tuple(row) for row in self.connection.exec_driver_sql(sql)]

    def children(
        self, parent: Table, child: Table, reference: Reference, addresses: Sequence[Address], most: int
    ) -> list[tuple[Address, Address]]:
        pairs = " AND ".join(
            # In this order: as in a foreign key, the collation of the row referred to decides.
            f"{PARENT}.{quote(referred)} = {CHILD}.{quote(own)}"
            for own, referred in zip(reference.columns, reference.referred, strict=True)
        )
        above, below = _address(parent, PARENT), _address(child, CHILD)
        where, parameters = _among(above, addresses)
        with self.engine.errors():
            rows = self.connection.exec_driver_sql(
                f"SELECT {', '.join((*above, *below))} FROM {quote(parent.name.name)} AS {PARENT}"
                f" JOIN {quote(child.name.name)} AS {CHILD} ON {pairs} WHERE {where} LIMIT {most}",
                parameters,
            ).all()
        return [(tuple(row[: len(above)]), tuple(row[len(above) :])) for row in rows]


def _address(table: Table, alias: str | None = None) -> tuple[str, ...]:
    parts = [quote(column) for column in table.key] or [row_address(table)]
    return tuple(f"{alias}.{part}" if alias else part for part in parts)


def _among(address: Sequence[str], wanted: Sequence[Address]) -> tuple[str, tuple[Any, ...]]:
    """Rows at one of these addresses."""
    if len(address) == 1 and all(isinstance(each[0], int) for each in wanted):
        return f"{address[0]} IN (SELECT value FROM json_each(?))", (json.dumps([each[0] for each in wanted]),)
    marks = ", ".join("(" + ", ".join("?" for _ in address) + ")" for _ in wanted)
    return f"({', '.join(address)}) IN (VALUES {marks})", tuple(part for each in wanted for part in each)
