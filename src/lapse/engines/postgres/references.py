"""Foreign keys that point at a table: what they cost when its rows are deleted."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice
from lapse.engines.postgres.advice import create_index
from lapse.model.table import FkAction, Table


def advice(connection: Connection, table: Table) -> list[Advice]:
    found = []
    for reference in table.referenced_by:
        if not reference.indexed:
            found.append(
                Advice(
                    text=f"foreign key {reference.table}({', '.join(reference.columns)}) to {table.name.whole} has no"
                    " index: every deleted row scans that table",
                    statement=create_index(connection, reference.table, reference.columns),
                )
            )
        if reference.action in (FkAction.CASCADE, FkAction.SET_NULL, FkAction.SET_DEFAULT):
            found.append(
                Advice(
                    text=f"foreign key {reference.table}({', '.join(reference.columns)}) is ON DELETE "
                    f"{reference.action}: rows there are changed along, and batches shrink to make up for it"
                )
            )
    return found
