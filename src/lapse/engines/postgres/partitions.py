"""Partitions: the leaves of a table, and whether the whole range of a leaf has expired."""

from __future__ import annotations

import re
from dataclasses import replace

from sqlalchemy import Connection

from lapse.engines.base import Declared
from lapse.engines.postgres import inspect
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.names import own_name, partition_label, relation
from lapse.model.table import Table, TableKind, TableName

_BOUND = re.compile(r"FOR VALUES FROM \((?P<low>.*)\) TO \((?P<high>.*)\)", re.DOTALL)

# Every step from the leaf up to the root: what the part above is partitioned by, and what is set for the part below.
_STEPS = """
    SELECT p.partstrat::text AS strategy, p.partnatts AS columns, a.attname AS column,
           pg_get_expr(c.relpartbound, c.oid) AS bound, i.inhparent::regclass::text AS parent
      FROM (SELECT to_regclass(%(leaf)s)::oid AS relid
             UNION SELECT relid::oid FROM pg_partition_ancestors(to_regclass(%(leaf)s))) step
      JOIN pg_catalog.pg_class c ON c.oid = step.relid AND c.relispartition
      JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
      JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = i.inhparent
      LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhparent AND a.attnum = p.partattrs[0]"""

_PARENT = """
    SELECT n.nspname, c.relname FROM pg_catalog.pg_inherits i
      JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE i.inhrelid = to_regclass(%(leaf)s)"""


def leaves(connection: Connection, table: Table) -> list[Table]:
    if table.kind is not TableKind.PARTITIONED:
        return [table]
    return [inspect.describe(connection, name) for name in leaf_names(connection, table)]


def leaf_names(connection: Connection, table: Table) -> list[TableName]:
    if table.kind is not TableKind.PARTITIONED:
        return [table.name]
    return [
        replace(table.name, partition=partition_label(own.name, own.schema or "", table.name.schema or ""))
        for own in inspect.leaf_names(connection, table.name)
    ]


def leaf(connection: Connection, table: Table, partition: str) -> Table | None:
    """Described alone: a table may have thousands of them."""
    name = replace(table.name, partition=partition)
    return inspect.describe(connection, name) if name in leaf_names(connection, table) else None


def has_expired(connection: Connection, declared: Declared, found: Condition) -> bool:
    """Is the upper bound of the leaf, on the expiry column, not above the threshold?"""
    if found.column is None or found.threshold is None:
        return False
    leaf = {"leaf": relation(declared.table.name)}
    for step in inspect.rows(connection, _STEPS, leaf):
        bound = _BOUND.fullmatch(step["bound"] or "")
        if step["strategy"] != "r" or step["columns"] != 1 or step["column"] != found.column or bound is None:
            continue
        if bound["high"] in ("MAXVALUE", "NULL"):
            continue
        kind = found.threshold.split(" ", 1)[0]
        if connection.exec_driver_sql(f"SELECT {kind} {bound['high']} <= {found.threshold}").scalar_one():
            return True
    return False


def parent(connection: Connection, leaf: TableName) -> str | None:
    """The table directly above a leaf, as SQL."""
    rows = inspect.rows(connection, _PARENT, {"leaf": relation(leaf)})
    return relation(TableName(str(rows[0]["relname"]), str(rows[0]["nspname"]))) if rows else None


def is_leaf(connection: Connection, name: TableName) -> bool:
    return parent(connection, own_name(name)) is not None
