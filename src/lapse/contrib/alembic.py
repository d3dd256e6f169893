"""Migrations that set and reset TTL.

    op.set_ttl("events", column="created_at", after="30 days")
    op.reset_ttl("events", schema="app")

Import this module in `env.py`. The operations run on the migration's own connection and inside its transaction. Table
names are taken as they are, as Alembic's own operations take them. With `--sql` the statements are written that
`lapse sql -f` understands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Connection

from lapse.app import Lapse
from lapse.app.policyfile import entry_from_keys
from lapse.catalog import policies
from lapse.ddl import render
from lapse.ddl.names import parse_table_name
from lapse.ddl.render import table_name
from lapse.errors import TableNotFound, UsageError
from lapse.model.policy import PolicyChange
from lapse.model.table import TableName
from lapse.runner.policy_manager import PolicyManager


@Operations.register_operation("set_ttl")
class SetTtl(MigrateOperation):
    """Set the TTL policy of a table, with the keys of `lapse.toml`; what is not named has its default."""

    def __init__(self, table: str, keys: dict[str, Any], schema: str | None = None) -> None:
        self.table = table
        self.keys = keys
        self.schema = schema

    @classmethod
    def set_ttl(cls, operations: Operations, table: str, *, schema: str | None = None, **keys: Any) -> None:
        operations.invoke(cls(table, keys, schema))

    def reverse(self) -> MigrateOperation:
        return ResetTtl(self.table, self.schema)


@Operations.register_operation("reset_ttl")
class ResetTtl(MigrateOperation):
    """Remove the TTL policy of a table; its rows stay."""

    def __init__(self, table: str, schema: str | None = None) -> None:
        self.table = table
        self.schema = schema

    @classmethod
    def reset_ttl(cls, operations: Operations, table: str, *, schema: str | None = None) -> None:
        operations.invoke(cls(table, schema))


@Operations.implementation_for(SetTtl)
def _set_ttl(operations: Operations, operation: SetTtl) -> None:
    entry = entry_from_keys(operation.table, operation.keys, place=f"set_ttl({operation.table!r})")
    if entry.policy is None:
        raise UsageError("exclude has no meaning in a migration")
    if operations.get_context().as_sql:
        _write(operations, render(entry.policy, TableName(operation.table, operation.schema), "lapse"))
        return
    with _declaring(operations) as (database, connection):
        database.catalog.ensure(connection)
        name = _name(database, connection, operation)
        PolicyManager(database.catalog).put(connection, name, entry.policy, policies.STATEMENT)


@Operations.implementation_for(ResetTtl)
def _reset_ttl(operations: Operations, operation: ResetTtl) -> None:
    if operations.get_context().as_sql:
        _write(
            operations, f"ALTER TABLE {table_name(TableName(operation.table, operation.schema), 'lapse')} RESET (ttl)"
        )
        return
    with _declaring(operations) as (database, connection):
        name = _name(database, connection, operation)
        PolicyManager(database.catalog).change(connection, name, PolicyChange(set={}, remove=True))


@contextmanager
def _declaring(operations: Operations) -> Iterator[tuple[Lapse, Connection]]:
    """The migration's own connection, with Lapse's settings and execution options; both are put back."""
    connection = operations.get_bind()
    before = connection.get_execution_options()
    options = {name: before.get(name) for name in ("schema_translate_map", "no_parameters")}
    try:
        with Lapse(connection.engine.url.render_as_string(hide_password=False)) as database:
            bound = database.catalog.bind(connection.execution_options(no_parameters=True))
            with database.engine.atomic(bound), database.engine.bookkeeping(bound):
                yield database, bound
    finally:
        connection.execution_options(**options)


def _name(database: Lapse, connection: Connection, operation: SetTtl | ResetTtl) -> TableName:
    """As it stands; a name that no table has may be written as in SQL: `app.events`."""
    plain = TableName(operation.table, operation.schema)
    try:
        return database.engine.full_name(connection, plain)
    except TableNotFound:
        return plain if operation.schema else parse_table_name(operation.table, database.engine.dialect)


def _write(operations: Operations, statement: str) -> None:
    operations.get_context().impl.static_output(f"-- for lapse sql -f\n{statement};\n")


__all__ = ["ResetTtl", "SetTtl"]
