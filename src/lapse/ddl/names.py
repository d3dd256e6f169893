"""A table's name as a person types it on a command line."""

from __future__ import annotations

from lapse.ddl.cursor import TokenCursor
from lapse.ddl.script import split
from lapse.errors import UsageError
from lapse.model.table import TableName


def parse_table_name(text: str, dialect: str) -> TableName:
    """`events`, `app.events`, `"odd ""name"`; a plain word that is no SQL name is taken as it stands."""
    pieces = split(text, dialect)
    cursor = TokenCursor(pieces[0]) if len(pieces) == 1 else None
    name = cursor.table_name() if cursor is not None else None
    if cursor is not None and name is not None and cursor.done:
        return name
    if not text.strip():
        raise UsageError("the table's name is empty")
    return TableName(text)
