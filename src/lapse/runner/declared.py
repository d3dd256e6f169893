"""A stored policy put together with its table as it is now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from sqlalchemy import Connection

from lapse.catalog.policies import StoredPolicy
from lapse.ddl import parse_expression
from lapse.engines.base import Declared, Engine
from lapse.errors import Blocked, InvalidValue, TableNotFound
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.suggestion import suggest_or_list
from lapse.model.table import MANAGED_COLUMN, Table, TableName


def declare(table: Table, policy: Policy) -> Declared:
    """Raises SyntaxProblem or InvalidValue when the policy does not fit the table."""
    names = {column.name for column in table.columns} | policy_columns(policy)
    expression = None
    if policy.expression is not None:
        expression = parse_expression(policy.expression, columns=names)
    declared = Declared(table=table, policy=policy, expression=expression)
    folded = {name.lower() for name in names}
    for column in declared.columns_read:
        if column.lower() not in folded:
            hint = suggest_or_list(column, (each.name for each in table.columns), "its columns are")
            raise InvalidValue("TTL column", column, f"does not exist in table {table.name}", hint=hint)
    return declared


def leaves(engine: Engine, connection: Connection, table: Table, others: Collection[TableName]) -> list[TableName]:
    """The physical tables under one policy: all leaves, but for those that have a policy of their own (`others`)."""
    names = engine.leaf_names(connection, table)
    return [name for name in names if engine.standalone_name(name) not in others]


def load(engine: Engine, connection: Connection, stored: StoredPolicy) -> Declared:
    """Raises Blocked when the table or a column that the policy needs is gone."""
    try:
        table = engine.describe(connection, stored.table)
    except TableNotFound as error:
        raise Blocked(
            BlockCode.TABLE_GONE,
            f"table {stored.table} does not exist any more",
            hint="lapse doctor URL --repair forgets its policy",
        ) from error
    declared = Declared(table=table, policy=stored.policy)
    if stored.policy.expression is not None:
        declared = Declared(
            table=table,
            policy=stored.policy,
            expression=parse_expression(stored.policy.expression, columns=None),
        )
    for name in declared.columns_read:
        if table.column(name) is None and name not in policy_columns(stored.policy):
            raise Blocked(
                BlockCode.COLUMN_CHANGED,
                f"table {stored.table} has no column {name} any more, which its TTL policy needs",
                hint=f"ALTER TABLE {stored.table} RESET (ttl), or declare the policy anew",
            )
    return declared


def policy_columns(policy: Policy) -> set[str]:
    """Columns that the policy itself brings along."""
    return {MANAGED_COLUMN} if policy.expire_after is not None else set()


def fingerprint(declared: Declared) -> str:
    """Changes when a column that the policy or the paging depends on changes its name or type."""
    table = declared.table
    names = [*declared.columns_read, *table.primary_key, *table.key]
    shape = [(name, column.type.lower()) for name in names if (column := table.column(name)) is not None]
    return hashlib.sha256(json.dumps([shape, table.key]).encode()).hexdigest()[:16]
