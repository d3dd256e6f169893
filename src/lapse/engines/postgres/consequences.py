"""Rows that foreign keys tie together, by the address of their place in the heap."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.engines.consequences import SCANNED_ROWS, Address, Kin
from lapse.engines.postgres import forecast, inspect, paths
from lapse.engines.postgres.names import quote, relation
from lapse.engines.postgres.session import savepoint
from lapse.engines.postgres.times import operation
from lapse.errors import NotPermitted, Unsupported
from lapse.model.job import PathKind
from lapse.model.table import Reference, Table

PARENT, CHILD = "lapse_parent", "lapse_child"


class PostgresKin(Kin):
    """Inside a transaction. An address is the physical table's oid and the row's ctid, as two texts."""

    def expired(self, most: int) -> tuple[list[Address], bool]:
        table = self.target.declared.table
        self._check_own(table)
        found = self.target.condition.sql
        total = paths.estimate_rows(self.connection, table)
        is_sample = total > max(SCANNED_ROWS, most) and self.target.path.kind is not PathKind.INDEX
        select = f"SELECT tableoid::text, ctid::text FROM ONLY {relation(table.name)}"
        if is_sample:
            sample = forecast.tablesample(total)
            return self._rows(f"{select}{sample} WHERE {found} LIMIT {most}"), False
        rows = self._rows(f"{select} WHERE {found} LIMIT {most + 1}")
        if len(rows) <= most:
            return rows, True
        return self._rows(f"{select} WHERE {found} ORDER BY pg_catalog.md5(ctid::text) LIMIT {most}"), False

    def _check_own(self, table: Table) -> None:
        """What belongs to another role's table is never planned or read with this one's rights."""
        if not inspect.is_own(self.connection, table.name):
            raise NotPermitted(f"table {table.name} belongs to another role")

    def _rows(self, sql: str) -> list[Address]:
        return [tuple(row) for row in self.connection.exec_driver_sql(sql)]

    def children(
        self, parent: Table, child: Table, reference: Reference, addresses: Sequence[Address], most: int
    ) -> list[tuple[Address, Address]]:
        self._check_own(parent)
        self._check_own(child)
        if any(column is None or column.custom for column in map(parent.column, reference.referred)):
            # Which operator compares them is the business of the type's owner, whose code would run here.
            raise Unsupported(f"the foreign key of {reference.table} is of a type that is not the server's own")
        pairs = " AND ".join(
            operation("=", f"{CHILD}.{quote(own)}", f"{PARENT}.{quote(referred)}")
            for own, referred in zip(reference.columns, reference.referred, strict=True)
        )
        wanted = set(addresses)
        places = ", ".join(f'"{place}"' for _, place in wanted)
        with self.engine.errors(), savepoint(self.connection):
            found = self.connection.exec_driver_sql(
                f"SELECT {PARENT}.tableoid::text, {PARENT}.ctid::text, {CHILD}.tableoid::text, {CHILD}.ctid::text"
                f" FROM {relation(parent.name)} AS {PARENT} JOIN {relation(child.name)} AS {CHILD} ON {pairs}"
                f" WHERE {PARENT}.ctid = ANY ('{{{places}}}'::pg_catalog.tid[]) LIMIT {most}"
            ).all()
        return [((row[0], row[1]), (row[2], row[3])) for row in found if (row[0], row[1]) in wanted]
