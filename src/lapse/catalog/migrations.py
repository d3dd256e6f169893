"""Install and upgrade the catalog. A catalog that is newer than this code is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Connection, inspect, select, text
from sqlalchemy.schema import CreateColumn

from lapse._version import __version__
from lapse.catalog import schema
from lapse.errors import CatalogError, CatalogFromTheFuture

_VERSION_KEY = "catalog_version"


def installed_version(connection: Connection, catalog_schema: str | None) -> int | None:
    """None when the catalog was never installed here."""
    if not inspect(connection).has_table(schema.meta.name, schema=catalog_schema):
        return None
    value = connection.execute(select(schema.meta.c.value).where(schema.meta.c.name == _VERSION_KEY)).scalar()
    if value is None:
        return None
    if not str(value).isdigit():
        raise CatalogError(f"the catalog's version is {value!r}, which is no number")
    return int(value)


def check(version: int) -> None:
    if version > schema.VERSION:
        raise CatalogFromTheFuture(
            f"this database has a Lapse catalog of version {version}; Lapse {__version__} knows versions up to "
            f"{schema.VERSION}",
            hint="upgrade Lapse on this machine",
        )


def install(connection: Connection, concatenate: str = "||") -> None:
    """Create everything at the current version; inside the caller's transaction."""
    schema.metadata.create_all(connection)
    create_views(connection)
    connection.execute(schema.meta.insert().values(name=_VERSION_KEY, value=str(schema.VERSION)))


def create_views(connection: Connection) -> None:
    prefix = _prefix(connection)
    names = {name.removeprefix("lapse_"): f"{prefix}{name}" for name in schema.metadata.tables}
    for name, body in schema.VIEWS.items():
        connection.execute(text(f"DROP VIEW IF EXISTS {prefix}{name}"))
        connection.execute(text(f"CREATE VIEW {prefix}{name} AS {_concatenated(connection, body).format(**names)}"))


def _prefix(connection: Connection) -> str:
    """Where text has to say which schema the catalog is in."""
    translate = connection.get_execution_options().get("schema_translate_map") or {}
    return f'"{translate[None]}".' if translate.get(None) else ""


def _concatenated(connection: Connection, body: str) -> str:
    """MySQL reads `||` as OR unless told otherwise."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return body
    return body.replace("'row-level-ttl-' || p.table_name", "concat('row-level-ttl-', p.table_name)").replace(
        "'ttl for ' || j.table_name", "concat('ttl for ', j.table_name)"
    )


def upgrade(connection: Connection, version: int) -> None:
    """Bring an older catalog to this version, one step at a time."""
    for step in range(version, schema.VERSION):
        STEPS[step](connection)
    create_views(connection)
    connection.execute(schema.meta.update().where(schema.meta.c.name == _VERSION_KEY).values(value=str(schema.VERSION)))


def _add_columns(connection: Connection, *columns: Column[Any]) -> None:
    prefix = _prefix(connection)
    for column in columns:
        written = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE {prefix}{column.table.name} ADD COLUMN {written}"))


def _guard(connection: Connection) -> None:
    """A policy that has had a job was let pass long ago."""
    policy = schema.policy
    _add_columns(connection, policy.c.cleared_at, policy.c.held)
    ran = select(schema.job.c.policy_id).distinct()
    connection.execute(policy.update().where(policy.c.policy_id.in_(ran)).values(cleared_at=policy.c.changed_at))


STEPS: dict[int, Callable[[Connection], None]] = {1: _guard}
"""Version → what leads to the next one."""
