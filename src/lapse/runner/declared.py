"""A stored policy put together with its table as it is now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from sqlalchemy import Connection

from lapse.catalog.policies import StoredPolicy
from lapse.ddl import parse_expression
from lapse.engines.base import Declared, Engine
from lapse.errors import Drift, InvalidValue, TableNotFound
from lapse.model.expression import columns as expression_columns
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import MANAGED_COLUMN, Table, TableName


def declare(table: Table, policy: Policy) -> Declared:
    """Raises SyntaxProblem or InvalidValue when the policy does not fit the table."""
    names = {column.name for column in table.columns} | policy_columns(policy)
    expression = None
    if policy.expression is not None:
        expression = parse_expression(policy.expression, columns=names)
    declared = Declared(table=table, policy=policy, expression=expression)
    folded = {name.lower() for name in names}
    for column in needed_columns(declared):
        if column.lower() not in folded:
            raise InvalidValue("TTL column", column, f"does not exist in table {table.name}", hint=_columns_hint(table))
    return declared


def _columns_hint(table: Table) -> str:
    return f"its columns are {', '.join(column.name for column in table.columns)}"


def partitions(engine: Engine, connection: Connection, table: Table, others: Collection[TableName]) -> list[str | None]:
    """The physical tables under one policy: all leaves, but for those that have a policy of their own (`others`)."""
    names = engine.leaf_names(connection, table)
    return [name.partition for name in names if engine.standalone_name(name) not in others]


def load(engine: Engine, connection: Connection, stored: StoredPolicy) -> Declared:
    """Raises Drift when the table or a column that the policy needs is gone."""
    try:
        table = engine.describe(connection, stored.table)
    except TableNotFound as error:
        raise Drift(f"table {stored.table} does not exist any more") from error
    declared = Declared(table=table, policy=stored.policy)
    if stored.policy.expression is not None:
        declared = Declared(
            table=table,
            policy=stored.policy,
            expression=parse_expression(stored.policy.expression, columns=None),
        )
    for name in needed_columns(declared):
        if table.column(name) is None:
            raise Drift(f"table {stored.table} has no column {name} any more, which its TTL policy needs")
    return declared


def needed_columns(declared: Declared) -> tuple[str, ...]:
    """Columns without which the policy means nothing."""
    expiry = declared.policy.expiry
    if isinstance(expiry, ColumnExpiry):
        return (expiry.column,)
    assert declared.expression is not None
    return expression_columns(declared.expression)


def policy_columns(policy: Policy) -> set[str]:
    """Columns that the policy itself brings along."""
    return {MANAGED_COLUMN} if policy.expire_after is not None else set()


def fingerprint(declared: Declared) -> str:
    """Changes when a column that the policy or the paging depends on changes its name or type."""
    table = declared.table
    names = [*needed_columns(declared), *table.primary_key, *table.key]
    shape = [(name, column.type.lower()) for name in names if (column := table.column(name)) is not None]
    return hashlib.sha256(json.dumps([shape, table.key]).encode()).hexdigest()[:16]
