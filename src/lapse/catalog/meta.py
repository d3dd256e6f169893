"""Facts about the catalog itself, by name."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from lapse.catalog.schema import meta

DATABASE_IDENTITY = "database_identity"
"""Which database the policies were declared in."""


def read_fact(connection: Connection, name: str) -> str | None:
    value = connection.execute(select(meta.c.value).where(meta.c.name == name)).scalar()
    return None if value is None else str(value)


def write_fact(connection: Connection, name: str, value: str) -> None:
    connection.execute(delete(meta).where(meta.c.name == name))
    connection.execute(insert(meta).values(name=name, value=value))
