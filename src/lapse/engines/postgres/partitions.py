"""Partitions: the leaves of a table, and whether the whole range of a leaf has expired."""

from __future__ import annotations

import re
from dataclasses import replace

from sqlalchemy import Connection

from lapse.engines.postgres import inspect, leaving
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


def leaves(connection: Connection, table: Table) -> list[Table]:
    if table.kind is not TableKind.PARTITIONED:
        return [table]
    return [inspect.describe(connection, name) for name in leaf_names(connection, table)]


def leaf_names(connection: Connection, table: Table) -> list[TableName]:
    if table.kind is not TableKind.PARTITIONED:
        return [table.name]
    attached = inspect.leaf_names(connection, table.name)
    # Those that a job has detached and not yet dropped are still the table's.
    left = [own for own in leaving.detached_from(connection, table.name) if own not in attached]
    return [
        replace(table.name, partition=partition_label(own.name, own.schema or "", table.name.schema or ""))
        for own in (*attached, *left)
    ]


def leaf(connection: Connection, table: Table, partition: str) -> Table | None:
    """Described alone: a table may have thousands of them."""
    name = replace(table.name, partition=partition)
    return inspect.describe(connection, name) if name in leaf_names(connection, table) else None


def has_expired(connection: Connection, leaf: TableName, found: Condition) -> bool:
    """Is the upper bound of the leaf, on the expiry column, not above the threshold?"""
    if found.column is None or found.threshold is None:
        return False
    for step in inspect.rows(connection, _STEPS, {"leaf": relation(leaf)}):
        bound = _BOUND.fullmatch(step["bound"] or "")
        if step["strategy"] != "r" or step["columns"] != 1 or step["column"] != found.column or bound is None:
            continue
        if bound["high"] in ("MAXVALUE", "NULL"):
            continue
        kind = found.threshold.split(" ", 1)[0]
        if connection.exec_driver_sql(f"SELECT {kind} {bound['high']} <= {found.threshold}").scalar_one():
            return True
    return False


def is_leaf(connection: Connection, name: TableName) -> bool:
    return leaving.place(connection, own_name(name)).parent is not None
