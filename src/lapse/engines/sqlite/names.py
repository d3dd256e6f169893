"""Quoting, and the names of what Lapse makes in a SQLite file."""

from __future__ import annotations

from collections.abc import Collection

from lapse.errors import Unsupported
from lapse.model.table import Table

MARK_PREFIX = "lapse_armed_"
_ROW_ADDRESSES = ("rowid", "_rowid_", "oid")


def quote(name: str) -> str:
    if "\0" in name:
        raise Unsupported(f"the name {name!r} contains a zero byte")
    return '"' + name.replace('"', '""') + '"'


def column(name: str) -> str:
    """A column in an expression. SQLite reads a name in double quotes as text where there is no such column."""
    if "\0" in name:
        raise Unsupported(f"the name {name!r} contains a zero byte")
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    if "\0" in text:
        raise Unsupported("a text with a zero byte cannot be written in SQL")
    return "'" + text.replace("'", "''") + "'"


def row_address(table: Table) -> str:
    """The name under which a rowid table shows its row id: the first that no column has taken."""
    found = free_address({column.name.lower() for column in table.columns})
    if found is not None:
        return found
    raise Unsupported(
        f"table {table.name} has columns named rowid, _rowid_ and oid, which hide its row id",
        hint="declare the table WITHOUT ROWID, or rename one of these columns",
    )


def free_address(columns: Collection[str]) -> str | None:
    """The same, by the names of all columns in lower case; None where they have taken every name."""
    return next((name for name in _ROW_ADDRESSES if name not in columns), None)


def live_view(table: str) -> str:
    return f"{table}_live"


def insert_trigger(table: str) -> str:
    return f"lapse_{table}_insert"


def update_trigger(table: str) -> str:
    return f"lapse_{table}_update"
