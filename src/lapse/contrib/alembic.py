"""Migrations that set and reset TTL.

    op.set_ttl("events", column="created_at", after="30 days")
    op.reset_ttl("events")

Import this module in `env.py`. The operations run on the migration's own connection and inside its transaction.
"""

from __future__ import annotations

from typing import Any

from alembic.operations import MigrateOperation, Operations

from lapse.app import Lapse
from lapse.app.policyfile import entry_from_keys
from lapse.catalog import policies
from lapse.ddl.names import parse_table_name
from lapse.errors import UsageError
from lapse.model.policy import PolicyChange
from lapse.runner.declarer import Declarer


@Operations.register_operation("set_ttl")
class SetTtl(MigrateOperation):
    """Set the TTL policy of a table, with the keys of `lapse.toml`; what is not named has its default."""

    def __init__(self, table: str, keys: dict[str, Any]) -> None:
        self.table = table
        self.keys = keys

    @classmethod
    def set_ttl(cls, operations: Operations, table: str, **keys: Any) -> None:
        operations.invoke(cls(table, keys))

    def reverse(self) -> MigrateOperation:
        return ResetTtl(self.table)


@Operations.register_operation("reset_ttl")
class ResetTtl(MigrateOperation):
    """Remove the TTL policy of a table; its rows stay."""

    def __init__(self, table: str) -> None:
        self.table = table

    @classmethod
    def reset_ttl(cls, operations: Operations, table: str) -> None:
        operations.invoke(cls(table))


@Operations.implementation_for(SetTtl)
def _set_ttl(operations: Operations, operation: SetTtl) -> None:
    entry = entry_from_keys(operation.table, operation.keys, place=f"set_ttl({operation.table!r})")
    if entry.policy is None:
        raise UsageError("exclude has no meaning in a migration")
    with _open(operations) as database:
        connection = database.catalog.bind(operations.get_bind())
        name = parse_table_name(operation.table, database.engine.dialect)
        with database.engine.atomic(connection):
            database.catalog.ensure(connection)
            Declarer(database.catalog).put(connection, name, entry.policy, policies.STATEMENT)


@Operations.implementation_for(ResetTtl)
def _reset_ttl(operations: Operations, operation: ResetTtl) -> None:
    with _open(operations) as database:
        name = parse_table_name(operation.table, database.engine.dialect)
        connection = database.catalog.bind(operations.get_bind())
        with database.engine.atomic(connection):
            Declarer(database.catalog).change(connection, name, PolicyChange(set={}, remove=True))


def _open(operations: Operations) -> Lapse:
    return Lapse(operations.get_bind().engine.url.render_as_string(hide_password=False))


__all__ = ["ResetTtl", "SetTtl"]
