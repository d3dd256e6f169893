"""Facts about the catalog itself, by name."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from lapse.catalog.schema import meta
from lapse.errors import Retryable

DATABASE_IDENTITY = "database_identity"
"""Which database the policies were declared in."""


def read_fact(connection: Connection, name: str) -> str | None:
    value = connection.execute(select(meta.c.value).where(meta.c.name == name)).scalar()
    return None if value is None else str(value)


def replace_fact(connection: Connection, name: str, before: str | None, value: str) -> bool:
    """Write a fact that was read as `before`; False, or Retryable for a new one, when another worker was faster."""
    if before is not None:
        changed = connection.execute(
            update(meta).where(meta.c.name == name, meta.c.value == before).values(value=value)
        )
        return changed.rowcount == 1
    try:
        connection.execute(insert(meta).values(name=name, value=value))
    except IntegrityError as error:
        raise Retryable(f"another worker was first to write {name}") from error
    return True
