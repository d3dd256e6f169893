"""A column of an archived table: its name, its type in the database, and how its values are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lapse.archive import mysql_types, postgres_types, sqlite_types
from lapse.archive.loading import arrow
from lapse.archive.storage import Cell, Odd, Storage
from lapse.errors import Unsupported

POSTGRESQL, MYSQL, SQLITE = "postgresql", "mysql", "sqlite"
ENGINES = {POSTGRESQL: postgres_types.storage, MYSQL: mysql_types.storage, SQLITE: sqlite_types.storage}
TYPE_KEY, NOTE_KEY = "lapse.type", "lapse.kept_as"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedColumn:
    """`type` is how the database spells it: `format_type` on PostgreSQL (the base type of a domain), COLUMN_TYPE and
    `character set NAME` on MariaDB and MySQL, the declared type on SQLite.

    `made_of` names the built-in types inside a type of the user's: none for an enum, the subtype of a range, the
    attributes of a composite. None: the type is built in.
    """

    engine: str
    name: str
    type: str
    made_of: tuple[str, ...] | None = None
    storage: Storage = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        found = ENGINES[self.engine](self.type, self.made_of)
        if found is None:
            raise Unsupported(
                f"column {self.name!r}: values of type {self.type} cannot be kept exactly in a file",
                hint="archive this table into a table (ttl_archive = 'table:'), or drop or change the column",
            )
        object.__setattr__(self, "storage", found)

    def encode(self, cells: Any) -> tuple[Any, Odd]:
        """Cells as they come from the database, as an Arrow array, and those that it cannot hold."""
        return self.storage.encode(cells)

    def decode(self, stored: Any, odd: Mapping[int, str]) -> list[Cell]:
        """The cells that `encode` was given."""
        cells = self.storage.decode(stored)
        for row, text in odd.items():
            cells[row] = self.storage.odd(text)
        return cells

    @property
    def arrow_field(self) -> Any:
        told = {TYPE_KEY: self.type} | ({NOTE_KEY: f"text: {self.storage.note}"} if self.storage.note else {})
        return arrow().field(self.name, self.storage.type, metadata=told)

    def as_json(self) -> dict[str, Any]:
        made_of = {} if self.made_of is None else {"made_of": list(self.made_of)}
        return {"name": self.name, "type": self.type} | made_of


def columns_from_json(engine: str, items: Sequence[Mapping[str, Any]]) -> tuple[ArchivedColumn, ...]:
    return tuple(
        ArchivedColumn(
            engine=engine,
            name=item["name"],
            type=item["type"],
            made_of=tuple(item["made_of"]) if "made_of" in item else None,
        )
        for item in items
    )
