"""Rows out of a database and back as cells: each engine's module `cells` does what this says.

A cell is a value as the database writes it; `lapse.archive.storage` has the forms.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection

from lapse.model.table import TableName

if TYPE_CHECKING:
    from lapse.archive import ArchivedColumn
    from lapse.archive.storage import Cell


class Cells(Protocol):
    ENGINE: str
    """The name under which the archive knows the engine's types."""

    def columns(self, connection: Connection, table: TableName) -> tuple[ArchivedColumn, ...]:
        """The columns of a table as an archive keeps them. Raises Unsupported for one that cannot be kept exactly."""
        ...

    def read(
        self, connection: Connection, table: TableName, named: Sequence[ArchivedColumn], where: str = "true"
    ) -> Generator[list[Any]]:
        """The rows that match, in batches of bounded size, by column. `where` may end with an order and a limit."""
        ...

    def insert(
        self, connection: Connection, table: TableName, named: Sequence[ArchivedColumn], cells: Sequence[Sequence[Cell]]
    ) -> None:
        """Rows whose cells are given by column, with the very values that `read` has read."""
        ...
