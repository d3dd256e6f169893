"""Migrations that set and reset TTL, and autogenerate that sees it and leaves Lapse's own tables alone.

    op.set_ttl("events", column="created_at", after="30 days")
    op.reset_ttl("events", schema="app")

Import this module in `env.py`. The operations run on the migration's own connection and inside its transaction. Table
names are taken as they are, as Alembic's own operations take them. With `--sql` the statements are written that
`lapse sql -f` understands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.ddl.sqlite import SQLiteImpl
from alembic.operations import MigrateOperation, Operations, ops, toimpl
from alembic.util import DispatchPriority
from sqlalchemy import Column, Connection, Index, Table

from lapse.app import Lapse
from lapse.app.migration import Migration
from lapse.app.policyfile import entry_from_keys
from lapse.app.policyfile.reading import file_keys
from lapse.catalog.policies import ARCHIVE, COMMENT, StoredPolicy
from lapse.contrib.sqlalchemy import INFO_KEY, entry_of
from lapse.ddl.names import parse_table_name
from lapse.ddl.render import render, table_name
from lapse.engines.postgres.names import CATALOG_SCHEMA
from lapse.errors import TableNotFound, UsageError
from lapse.model.archive import OWN_COLUMNS
from lapse.model.table import CATALOG_TABLES, MANAGED_COLUMN, REQUEST_TABLE, TableName
from lapse.runner.policy_manager import as_stored


@Operations.register_operation("set_ttl")
class SetTtl(MigrateOperation):
    """Set the TTL policy of a table, with the keys of `lapse.toml`; what is not named has its default.

    `before` are the keys of the policy that it replaces, which a downgrade sets again.
    """

    def __init__(
        self, table: str, keys: dict[str, Any], schema: str | None = None, before: dict[str, Any] | None = None
    ) -> None:
        self.table = table
        self.keys = keys
        self.schema = schema
        self.before = before

    @classmethod
    def set_ttl(cls, operations: Operations, table: str, *, schema: str | None = None, **keys: Any) -> None:
        operations.invoke(cls(table, keys, schema))

    def reverse(self) -> MigrateOperation:
        if self.before is not None:
            return SetTtl(self.table, self.before, self.schema, self.keys)
        return ResetTtl(self.table, self.schema, self.keys)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("set_ttl", self.schema, self.table, self.keys)


@Operations.register_operation("reset_ttl")
class ResetTtl(MigrateOperation):
    """Remove the TTL policy of a table, which need not have one; its rows stay."""

    def __init__(self, table: str, schema: str | None = None, before: dict[str, Any] | None = None) -> None:
        self.table = table
        self.schema = schema
        self.before = before

    @classmethod
    def reset_ttl(cls, operations: Operations, table: str, *, schema: str | None = None) -> None:
        operations.invoke(cls(table, schema))

    def reverse(self) -> MigrateOperation:
        if self.before is None:
            raise NotImplementedError(f"what the TTL of {self.table} was is not known")
        return SetTtl(self.table, self.before, self.schema)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("reset_ttl", self.schema, self.table)


@Operations.implementation_for(SetTtl)
def _set_ttl(operations: Operations, operation: SetTtl) -> None:
    entry = entry_from_keys(operation.table, operation.keys, place=f"set_ttl({operation.table!r})")
    if entry.policy is None:
        raise UsageError("exclude has no meaning in a migration")
    if operations.get_context().as_sql:
        _write(operations, render(entry.policy, TableName(operation.table, operation.schema), "lapse"))
        return
    with _migrating(operations.get_bind()) as (database, migration):
        name = _name(database, migration, operation)
        migration.put(name, entry.policy, keeps_pause=entry.keeps_pause)


@Operations.implementation_for(ResetTtl)
def _reset_ttl(operations: Operations, operation: ResetTtl) -> None:
    if operations.get_context().as_sql:
        _write(
            operations, f"ALTER TABLE {table_name(TableName(operation.table, operation.schema), 'lapse')} RESET (ttl)"
        )
        return
    with _migrating(operations.get_bind()) as (database, migration):
        migration.remove(_name(database, migration, operation))


@Operations.implementation_for(ops.RenameTableOp, replace=True)
def _rename_table(operations: Operations, operation: ops.RenameTableOp) -> None:
    old, new = (TableName(str(name), operation.schema) for name in (operation.table_name, operation.new_table_name))
    with _following(operations, lambda migration: migration.renaming(old, new)):
        toimpl.rename_table(operations, operation)


@Operations.implementation_for(ops.DropTableOp, replace=True)
def _drop_table(operations: Operations, operation: ops.DropTableOp) -> None:
    name = TableName(str(operation.table_name), operation.schema)
    with _following(operations, lambda migration: migration.dropping(name)):
        toimpl.drop_table(operations, operation)


class _LapseSQLiteImpl(SQLiteImpl):
    """Batch mode makes tables anew; their policies stay with them."""

    __dialect__ = "sqlite"
    _rebuilding: AbstractContextManager[None] | None = None

    def prep_table_for_batch(self, batch_impl: Any, table: Table) -> None:
        super().prep_table_for_batch(batch_impl, table)
        if self.connection is not None and not self.as_sql:
            self._rebuilding = _rebuilding(self.connection, TableName(str(table.name)))
            self._rebuilding.__enter__()

    def rename_table(self, old_table_name: Any, new_table_name: Any, schema: Any = None) -> None:
        super().rename_table(old_table_name, new_table_name, schema)
        done, self._rebuilding = self._rebuilding, None
        if done is not None:
            done.__exit__(None, None, None)


@contextmanager
def _rebuilding(connection: Connection, name: TableName) -> Iterator[None]:
    with _migrating(connection) as (_, migration), migration.rebuilding(name):
        yield


@contextmanager
def _following(operations: Operations, doing: Any) -> Iterator[None]:
    if operations.get_context().as_sql:
        yield
        return
    with _migrating(operations.get_bind()) as (_, migration), doing(migration):
        yield


@contextmanager
def _migrating(connection: Connection) -> Iterator[tuple[Lapse, Migration]]:
    """On the migration's own connection."""
    with Lapse(connection.engine.url.render_as_string(hide_password=False)) as database:
        yield database, Migration(database.catalog, connection)


def _name(database: Lapse, migration: Migration, operation: SetTtl | ResetTtl) -> TableName:
    """As it stands; a name that no table has may be written as in SQL: `app.events`."""
    plain = TableName(operation.table, operation.schema)
    try:
        return migration.full_name(plain)
    except TableNotFound:
        return plain if operation.schema else parse_table_name(operation.table, database.engine.dialect)


def _write(operations: Operations, statement: str) -> None:
    operations.get_context().impl.static_output(f"-- for lapse sql -f\n{statement};\n")


# Autogenerate


@comparators.dispatch_for("autogenerate", priority=DispatchPriority.FIRST)
def _leave_lapses_alone(context: AutogenContext, upgrade_ops: ops.UpgradeOps) -> None:
    declared = {(table.schema, table.name): set(table.columns.keys()) for table in context.sorted_tables}

    def include_name(name: str | None, kind: str, parents: Any) -> bool:
        schema = parents.get("schema_name")
        if kind == "schema":
            return name != CATALOG_SCHEMA
        if kind == "table":
            ours = name in CATALOG_TABLES or (name == REQUEST_TABLE and context.dialect.name != "sqlite")
            return not (ours and context.dialect.name != "postgresql")
        if kind == "column" and name == MANAGED_COLUMN:
            return name in declared.get((schema, parents.get("table_name")), ())
        return True

    def include_object(item: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        if kind == "table" and isinstance(item, Table) and reflected and compare_to is None:
            # An archive table, which Lapse has made.
            return not set(OWN_COLUMNS) <= set(item.columns.keys())
        if kind == "column" and isinstance(item, Column) and reflected and compare_to is None:
            return name != MANAGED_COLUMN
        if kind == "index" and isinstance(item, Index) and reflected and compare_to is None:
            return MANAGED_COLUMN not in item.columns
        return True

    context._name_filters.append(include_name)
    context._object_filters.append(include_object)


@comparators.dispatch_for("autogenerate", priority=DispatchPriority.LAST)
def _compare_policies(context: AutogenContext, upgrade_ops: ops.UpgradeOps) -> None:
    """Where no table says a word about TTL, policies are declared in another way and left alone."""
    tables = context.sorted_tables
    if context.connection is None or not any(INFO_KEY in table.info for table in tables):
        return
    for operation in upgrade_ops.ops:
        if isinstance(operation, ops.CreateTableOp):
            # Alembic would write it into the script, beside the operation that says the same.
            operation.info = {name: value for name, value in operation.info.items() if name != INFO_KEY}
    with _migrating(context.connection) as (_, migration):
        known = {stored.table: stored for stored in migration.all_policies()}
        for table in tables:
            name = TableName(table.name, table.schema)
            try:
                stored = known.get(migration.full_name(name))
            except TableNotFound:
                stored = None
            change = _difference(table, stored)
            if change is not None:
                upgrade_ops.ops.append(change)


def _difference(table: Table, stored: StoredPolicy | None) -> MigrateOperation | None:
    entry = entry_of(table)
    wanted = None if entry is None else entry.policy
    before = None if stored is None else file_keys(stored.policy)
    if entry is None or wanted is None:
        is_declared_elsewhere = stored is not None and stored.source in (ARCHIVE, COMMENT)
        return None if stored is None or is_declared_elsewhere else ResetTtl(table.name, table.schema, before)
    if stored is not None and entry.keeps_pause:
        wanted = replace(wanted, pause=stored.policy.pause)
    if stored is not None and stored.policy == as_stored(wanted, stored.table):
        return None
    assert entry.policy is not None
    return SetTtl(table.name, dict(file_keys(entry.policy)), table.schema, before)


@renderers.dispatch_for(SetTtl)
def _render_set(context: AutogenContext, operation: SetTtl) -> str:
    schema = {} if operation.schema is None else {"schema": operation.schema}
    said = ", ".join(f"{name}={value!r}" for name, value in (schema | operation.keys).items())
    return f"{_prefix(context)}set_ttl({operation.table!r}, {said})"


@renderers.dispatch_for(ResetTtl)
def _render_reset(context: AutogenContext, operation: ResetTtl) -> str:
    schema = "" if operation.schema is None else f", schema={operation.schema!r}"
    return f"{_prefix(context)}reset_ttl({operation.table!r}{schema})"


def _prefix(context: AutogenContext) -> str:
    return str(context.opts["alembic_module_prefix"] or "")


__all__ = ["ResetTtl", "SetTtl"]
