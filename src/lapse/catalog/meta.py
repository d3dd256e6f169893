"""Facts about the catalog itself, by name."""

from __future__ import annotations

from hashlib import sha256

from sqlalchemy import Connection, Insert, delete, insert, select, update

from lapse.catalog.schema import meta
from lapse.model.table import TableName

PLACE = "database_place"
"""Where the database was last seen, and in which ways it was reached."""
CLOCK_AHEAD = "clock_ahead"
"""By how many seconds the database's clock may be ahead of a worker's, as a person has confirmed."""

CLOCK_SEEN = "clock_seen"
"""What the database's clock said when a worker last began, and how long its machine had been up."""

FACTS = (PLACE, CLOCK_AHEAD, CLOCK_SEEN)
"""What a round of the scheduler goes by."""

EVENTS_ROUND = "events_round"
"""Grows with every change of the events: who has looked at what was there before begins again."""

ARCHIVE_OWNER = "archive_owner"
"""By which the archives in files know that they are this database's; a copy of the database gets another."""

_CLIENT = "client_version"
"""Of what people call from the database's own client, which a role that uses the catalog may not be allowed to make."""


def client_version(connection: Connection) -> int:
    found = read_fact(connection, _CLIENT) or ""
    return int(found) if found.isdecimal() else 0


def set_client_version(connection: Connection, version: int) -> None:
    connection.execute(delete(meta).where(meta.c.name == _CLIENT))
    connection.execute(insert(meta).values(name=_CLIENT, value=str(version)))


def read_fact(connection: Connection, name: str) -> str | None:
    value = connection.execute(select(meta.c.value).where(meta.c.name == name)).scalar()
    return None if value is None else str(value)


def forget_fact(connection: Connection, name: str) -> None:
    connection.execute(delete(meta).where(meta.c.name == name))


def replace_fact(connection: Connection, name: str, before: str | None, value: str) -> bool:
    """Write a fact that was read as `before`; False when another worker was faster."""
    if before is not None:
        changed = connection.execute(
            update(meta).where(meta.c.name == name, meta.c.value == before).values(value=value)
        )
        return changed.rowcount == 1
    # Without the option the number of an INSERT's rows is not known on PostgreSQL.
    options = {"preserve_rowcount": True}
    done = connection.execute(_insert_unless_there(connection, name, value), execution_options=options)
    return done.rowcount == 1


def _insert_unless_there(connection: Connection, name: str, value: str) -> Insert:
    """A statement that does not fail, which would end the caller's transaction on PostgreSQL."""
    values = {"name": name, "value": value}
    match connection.dialect.name:
        case "postgresql":
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(meta).values(values).on_conflict_do_nothing()
        case "sqlite":
            from sqlalchemy.dialects import sqlite

            return sqlite.insert(meta).values(values).on_conflict_do_nothing()
        case _:
            return insert(meta).values(values).prefix_with("IGNORE")


def reject_comment(connection: Connection, name: TableName, text: str) -> None:
    """Remember that what this comment on this table declares is not wanted, where the comment itself has to stay."""
    accept_comment(connection, name, text)
    connection.execute(insert(meta).values(name=_rejection(name, text), value=text))


def accept_comment(connection: Connection, name: TableName, text: str) -> None:
    connection.execute(delete(meta).where(meta.c.name == _rejection(name, text)))


def rejections(connection: Connection) -> frozenset[str]:
    return frozenset(connection.execute(select(meta.c.name).where(meta.c.name.like(f"{_REJECTED}%"))).scalars())


def is_rejected(known: frozenset[str], name: TableName, text: str) -> bool:
    return _rejection(name, text) in known


_REJECTED = "rejected:"


def _rejection(name: TableName, text: str) -> str:
    written = "\0".join((name.schema or "", name.name, text))
    return _REJECTED + sha256(written.encode()).hexdigest()[:48]
