"""What a person should know about a table with TTL: indexes, foreign keys, privileges."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice, Declared
from lapse.engines.postgres import origin
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import ALLOW_POLICY, HIDE_POLICY, own_name, quote, relation
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import MANAGED_COLUMN, FkAction, Table, TableKind

BIG_TABLE_ROWS = 1_000_000
"""From here on an index that nobody reads costs enough to be pointed out."""

_UNUSED = """
    SELECT 1 FROM pg_catalog.pg_stat_user_indexes i JOIN pg_catalog.pg_stat_user_tables t ON t.relid = i.relid
     WHERE i.relid = to_regclass(%(name)s) AND i.indexrelname = %(index)s AND i.idx_scan = 0
       AND t.n_live_tup >= %(rows)s
       AND (SELECT stats_reset < now() - interval '30 days' FROM pg_catalog.pg_stat_database
             WHERE datname = current_database())"""

_PRIVILEGES = """
    SELECT current_user AS role,
           row_security_active(to_regclass(%(name)s)) AND EXISTS (
               SELECT 1 FROM pg_catalog.pg_policy WHERE polrelid = to_regclass(%(name)s) AND polname <> ALL(%(ours)s)
           ) AS secured,
           has_schema_privilege(%(schema)s, 'USAGE') AS schema_usage,
           has_table_privilege(to_regclass(%(name)s), 'SELECT') AS "SELECT",
           has_table_privilege(to_regclass(%(name)s), 'UPDATE')
             OR has_any_column_privilege(to_regclass(%(name)s), 'UPDATE') AS "UPDATE",
           has_table_privilege(to_regclass(%(name)s), 'DELETE') AS "DELETE" """

# Of a leaf and of the table above it, from which it is detached.
_OWNERS = """
    SELECT DISTINCT pg_get_userbyid(c.relowner) AS owner
      FROM pg_catalog.pg_class c
     WHERE (c.oid = to_regclass(%(name)s)
            OR c.oid = (SELECT inhparent FROM pg_catalog.pg_inherits WHERE inhrelid = to_regclass(%(name)s)))
       AND NOT pg_has_role(c.relowner, 'USAGE')"""


def references(table: Table) -> list[Advice]:
    found = []
    for reference in table.referenced_by:
        if not reference.indexed:
            found.append(
                Advice(
                    text=f"foreign key {reference.table}({', '.join(reference.columns)}) to {table.name} has no index: "
                    "every deleted row scans that table",
                    statement=_create_index(relation(reference.table), reference.table.name, reference.columns),
                )
            )
        if reference.action in (FkAction.CASCADE, FkAction.SET_NULL, FkAction.SET_DEFAULT):
            found.append(
                Advice(
                    text=f"foreign key {reference.table}({', '.join(reference.columns)}) is ON DELETE "
                    f"{reference.action}: rows there are changed along, and batches shrink to make up for it"
                )
            )
    return found


def indexes(declared: Declared) -> list[Advice]:
    expiry, table = declared.policy.expiry, declared.table
    if not isinstance(expiry, ColumnExpiry) or table.index_on(expiry.column) or table.kind is TableKind.PARTITIONED:
        return []
    return [
        Advice(
            text=f"no index on {expiry.column}: each run reads the whole table; an index helps when few expire at once",
            statement=_create_index(relation(table.name), table.name.name, (expiry.column,)),
        )
    ]


def unused(connection: Connection, declared: Declared) -> list[Advice]:
    """An index on the expiry column that nobody reads still costs every insert and delete."""
    expiry, table = declared.policy.expiry, declared.table
    index = table.index_on(expiry.column) if isinstance(expiry, ColumnExpiry) else None
    if index is None or index.unique or table.kind is TableKind.PARTITIONED:
        return []
    values = {"name": relation(table.name), "index": index.name, "rows": BIG_TABLE_ROWS}
    if not rows(connection, _UNUSED, values):
        return []
    schema = f"{quote(table.name.schema)}." if table.name.schema else ""
    return [
        Advice(
            text=f"index {index.name} was not read in the last month, neither by jobs nor by anybody else",
            statement=f"DROP INDEX CONCURRENTLY {schema}{quote(index.name)};",
        )
    ]


def privileges(connection: Connection, table: Table, policy: Policy) -> list[Advice]:
    """What the role of this connection lacks for running jobs on the table."""
    target = relation(table.name)
    known = {"name": target, "schema": own_name(table.name).schema, "ours": [HIDE_POLICY, ALLOW_POLICY]}
    state = rows(connection, _PRIVILEGES, known)[0]
    role = quote(str(state["role"]))
    found = []
    if not state["schema_usage"]:
        schema = quote(own_name(table.name).schema or "")
        found.append(_grant(f"role {role} cannot use schema {schema}", f"GRANT USAGE ON SCHEMA {schema} TO {role};"))
    lacking = [name for name in ("SELECT", "UPDATE", "DELETE") if not state[name]]
    if lacking:
        names = ", ".join(lacking)
        found.append(_grant(f"role {role} lacks {names} on {table.name}", f"GRANT {names} ON {target} TO {role};"))
    if state["secured"] and table.kind is not TableKind.PARTITIONED:
        found.append(
            _grant(
                f"row security applies to role {role}: rows that its policies hide are never deleted",
                f"ALTER ROLE {role} BYPASSRLS;",
            )
        )
    found += _reference_privileges(connection, table, role)
    adds_column = policy.expire_after is not None and table.column(MANAGED_COLUMN) is None
    if policy.partition_drop or adds_column:
        found += _ownership(connection, table, role)
    lacking = origin.functions_lacking(connection) if policy.replication_origin is not None else []
    if lacking:
        text = f"role {role} cannot delete under a replication origin, which ttl_replication_origin asks for"
        found.append(_grant(text, f"GRANT EXECUTE ON FUNCTION {', '.join(lacking)} TO {role};"))
    return found


def _ownership(connection: Connection, table: Table, role: str) -> list[Advice]:
    """PostgreSQL has no privilege for changing or dropping a table but to be, or to act for, its owner."""
    found = []
    for state in rows(connection, _OWNERS, {"name": relation(table.name)}):
        text = f"role {role} may not act for the owner of {table.name}: it cannot add a column or drop a partition"
        found.append(_grant(text, f"GRANT {quote(str(state['owner']))} TO {role};"))
    return found


def _reference_privileges(connection: Connection, table: Table, role: str) -> list[Advice]:
    found = []
    for reference in table.holding_references:
        child = relation(reference.table)
        sql = "SELECT has_table_privilege(to_regclass(%(name)s), 'SELECT') AS may"
        if not rows(connection, sql, {"name": child})[0]["may"]:
            text = f"role {role} cannot read {reference.table}, whose foreign key holds rows of {table.name}"
            found.append(_grant(text, f"GRANT SELECT ON {child} TO {role};"))
    return found


def _grant(text: str, statement: str) -> Advice:
    return Advice(text=text, statement=statement)


def _create_index(target: str, table: str, columns: tuple[str, ...]) -> str:
    name = "_".join((table, *columns))[:58] + "_idx"
    return f"CREATE INDEX CONCURRENTLY {quote(name)} ON {target} ({', '.join(quote(column) for column in columns)});"
