"""Rows of a real database into a file and back into another table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lapse.archive import ArchivedColumn
from lapse.model.table import TableName
from tests.conformance.harness import Harness
from tests.unit.archive.making import header, open_folder


def move(h: Harness, engine: Any, folder: Path, source: TableName, target: TableName) -> tuple[ArchivedColumn, ...]:
    """By the module `cells` of an engine; returns the columns."""
    archive = open_folder(folder)
    with h.db.engine.transaction() as connection:
        columns: tuple[ArchivedColumn, ...] = engine.columns(connection, source)
        told = header(engine=engine.ENGINE, columns=columns, time_column=None)
        with archive.begin(told) as pending:
            for batch in engine.read(connection, source, columns):
                pending.write(batch)
            file = archive.publish(pending.finish())
        with archive.read(file.path, expected=file.digest) as found:
            for cells in found.cells():
                engine.insert(connection, target, columns, cells)
    return columns
