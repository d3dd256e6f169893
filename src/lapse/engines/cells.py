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


class Pack(Protocol):
    """Rows that were deleted together and are one row of an outbox, `number`. `kind`: those of the same kind are cut
    together."""

    @property
    def number(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def columns(self) -> tuple[ArchivedColumn, ...]: ...

    @property
    def kind(self) -> object: ...


class Packs(Protocol):
    """Where an engine's outboxes hold packs, its module `packs` does what this says."""

    def read(self, connection: Connection, table: TableName, chosen: str) -> Generator[Pack]:
        """The packs that match, one after the other. `chosen` may end with an order and a limit. Raises ArchiveDamaged
        for one that is not as it was written."""
        ...

    def cut(self, named: Sequence[ArchivedColumn], packs: Sequence[Any]) -> list[Any]:
        """The cells of packs of one kind, as `Cells.read` gives them: of Lapse's own columns, and of theirs."""
        ...

    def unpack(self, connection: Connection, table: TableName, number: int) -> int:
        """A pack's rows as rows of the outbox, in the caller's transaction; returns how many, 0 for one that is
        gone."""
        ...


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
