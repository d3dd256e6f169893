"""Foreign keys that point at a table: what they cost when its rows are deleted."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice
from lapse.engines.sqlite.advice import create_index
from lapse.model.table import Table


def advice(connection: Connection, table: Table) -> list[Advice]:
    return [
        Advice(
            text=f"foreign key {reference.table.name}({', '.join(reference.columns)}) to {table.name} has no index: "
            "every deleted row scans that table",
            statement=create_index(connection, reference.table.name, reference.columns),
        )
        for reference in table.referenced_by
        if not reference.indexed
    ]
