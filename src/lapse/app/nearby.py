"""The table that a mistyped name was meant for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection

from lapse.engines.base import Engine
from lapse.errors import LapseError, TableNotFound
from lapse.model.suggestion import suggest
from lapse.model.table import TableName


@contextmanager
def suggesting_tables(engine: Engine, connection: Connection, wanted: TableName) -> Iterator[None]:
    """Inside it, an error about a missing table names the one that comes nearest."""
    try:
        yield
    except TableNotFound as error:
        if error.hint is None:
            with suppress(LapseError), engine.bookkeeping(connection):
                error.hint = nearest(wanted, engine.tables(connection))
        raise


def nearest(wanted: TableName, known: list[TableName]) -> str | None:
    """Compared without the schema where none was given."""
    names = {str(each) if wanted.schema else each.name: each for each in known}
    return suggest(str(wanted), names)
