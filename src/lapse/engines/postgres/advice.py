"""What a person should know about a table with TTL: indexes, foreign keys, privileges."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice, Declared
from lapse.engines.postgres import origin
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import (
    ALLOW_POLICY,
    BATCH_FUNCTION,
    CATALOG_SCHEMA,
    HIDE_POLICY,
    quote,
    relation,
)
from lapse.engines.postgres.session import CATALOG_GRANTS, ROLE
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import FkAction, Table, TableKind, TableName

BIG_TABLE_ROWS = 1_000_000
"""From here on an index that is never read costs enough to be pointed out."""

_UNUSED = """
    SELECT 1 FROM pg_catalog.pg_stat_user_indexes i JOIN pg_catalog.pg_stat_user_tables t ON t.relid = i.relid
     WHERE i.relid = to_regclass(%(name)s) AND i.indexrelname = %(index)s AND i.idx_scan = 0
       AND t.n_live_tup >= %(rows)s
       AND (SELECT stats_reset < now() - interval '30 days' FROM pg_catalog.pg_stat_database
             WHERE datname = current_database())"""

_STATE = """
    SELECT current_user AS role, c.relforcerowsecurity AND NOT o.rolsuper AND NOT o.rolbypassrls AND EXISTS (
               SELECT 1 FROM pg_catalog.pg_policy y WHERE y.polrelid = c.oid AND y.polname <> ALL(%(ours)s)
           ) AS hides, o.rolname AS owner, r.rolsuper AND NOT o.rolsuper AS is_above,
           p.oid IS NOT NULL AS has_function, pg_catalog.quote_ident(n.nspname) AS schema,
           pg_catalog.quote_ident(p.proname) AS function,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS usage, pg_catalog.quote_ident(s.nspname) AS home,
           pg_catalog.has_schema_privilege(s.oid, 'USAGE') AS home_usage,
           pg_catalog.has_function_privilege(p.oid, 'EXECUTE') AS execute
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
      JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
      JOIN pg_catalog.pg_roles r ON r.rolname = current_user
      LEFT JOIN (pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace)
        ON p.proname = %(prefix)s || pg_catalog.to_regclass(%(root)s)::oid AND p.proowner = c.relowner AND p.prosecdef
     WHERE c.oid = pg_catalog.to_regclass(%(name)s)"""

_OWNERS = """
    SELECT DISTINCT pg_get_userbyid(c.relowner) AS owner
      FROM pg_catalog.pg_class c
     WHERE c.oid = to_regclass(%(name)s) AND NOT pg_has_role(c.relowner, 'USAGE')"""


_PARTITIONED = "SELECT relkind = 'p' AS it FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%(name)s)"


def references(connection: Connection, table: Table) -> list[Advice]:
    found = []
    for reference in table.referenced_by:
        if not reference.indexed:
            found.append(
                Advice(
                    text=f"foreign key {reference.table}({', '.join(reference.columns)}) to {table.name.whole} has no"
                    " index: every deleted row scans that table",
                    statement=_create_index(connection, reference.table, reference.columns),
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


def indexes(connection: Connection, declared: Declared) -> list[Advice]:
    expiry, table, policy = declared.policy.expiry, declared.table, declared.policy
    if not isinstance(expiry, ColumnExpiry) or table.index_on(expiry.column) or table.kind is TableKind.PARTITIONED:
        return []
    if policy.partition_drop and table.name.partition is not None:
        # It is dropped whole, for which no index is read.
        return []
    return [
        Advice(
            text=f"no index on {expiry.column}: each run reads the whole table; an index helps when few expire at once",
            statement=_create_index(connection, table.name, (expiry.column,)),
        )
    ]


def unused(connection: Connection, declared: Declared) -> list[Advice]:
    """An index on the expiry column that is never read still costs every insert and delete."""
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
    """What the role of this connection lacks for running jobs on a physical table: no right on the table itself."""
    known = {
        "name": relation(table.name),
        "root": relation(TableName(table.name.name, table.name.schema)),
        "prefix": BATCH_FUNCTION,
        "ours": [HIDE_POLICY, ALLOW_POLICY],
    }
    state = rows(connection, _STATE, known)[0]
    role, owner = quote(str(state["role"])), quote(str(state["owner"]))
    found = []
    if state["is_above"]:
        found.append(
            _grant(
                f"role {role} is a superuser and {table.name} belongs to {owner}: what belongs to the table would run"
                " close to a superuser's rights, so it is left alone",
                f"run workers as {owner}, or as a role with no more than the grants that this command prints for it",
            )
        )
    elif state["has_function"]:
        usage = {state["home"]: state["home_usage"], state["schema"]: state["usage"]}
        for schema in [name for name, may in usage.items() if not may]:
            found.append(
                _grant(f"role {role} cannot use schema {schema}", f"GRANT USAGE ON SCHEMA {schema} TO {role};")
            )
        if not state["execute"]:
            name = f"{state['schema']}.{state['function']}"
            text = f"role {role} may not execute the batch function of {table.name}"
            found.append(_grant(text, f"GRANT EXECUTE ON FUNCTION {name} TO {role};"))
    if state["hides"]:
        found.append(
            _grant(
                f"row security applies to {owner}, the owner of {table.name}: rows that its policies hide are never"
                " deleted",
                f"ALTER TABLE {relation(table.name)} NO FORCE ROW LEVEL SECURITY;",
            )
        )
    if not state["has_function"]:
        found += _ownership(connection, table, role)
    lacking = origin.functions_lacking(connection) if policy.replication_origin is not None else []
    if lacking:
        text = f"role {role} cannot delete under a replication origin, which ttl_replication_origin asks for"
        found.append(_grant(text, f"GRANT EXECUTE ON FUNCTION {', '.join(lacking)} TO {role};"))
    return found


def _ownership(connection: Connection, table: Table, role: str) -> list[Advice]:
    """PostgreSQL has no privilege for changing a table but to be, or to act for, its owner."""
    found = []
    for state in rows(connection, _OWNERS, {"name": relation(table.name)}):
        text = f"role {role} may not act for the owner of {table.name}, who alone can declare a policy for it"
        found.append(_grant(text, f"GRANT {quote(str(state['owner']))} TO {role};"))
    return found


def _grant(text: str, statement: str) -> Advice:
    return Advice(text=text, statement=statement)


def _create_index(connection: Connection, table: TableName, columns: tuple[str, ...]) -> str:
    """Without a name, so that PostgreSQL takes one that is free. A partitioned table has none that is concurrent."""
    is_partitioned = any(row["it"] for row in rows(connection, _PARTITIONED, {"name": relation(table)}))
    concurrently = "" if is_partitioned else " CONCURRENTLY"
    return f"CREATE INDEX{concurrently} ON {relation(table)} ({', '.join(quote(column) for column in columns)});"


_DECLARER = """
    SELECT pg_catalog.quote_ident(current_user) AS role, pg_catalog.quote_ident(d.datname) AS database,
           pg_catalog.quote_ident(n.nspname) AS schema, pg_catalog.has_schema_privilege(n.oid, 'CREATE') AS may_create,
           pg_catalog.has_database_privilege(d.oid, 'CREATE') AS may_install, k.oid IS NOT NULL AS is_installed
      FROM pg_catalog.pg_database d
      LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = coalesce(%(schema)s, pg_catalog.current_schema())
      LEFT JOIN pg_catalog.pg_namespace k ON k.nspname = %(catalog)s
     WHERE d.datname = pg_catalog.current_database()"""


def declarer_grants(connection: Connection, schema: str | None, *, creates: bool) -> str:
    """What a role needs that declares policies on tables of its own, which it may have to create first."""
    (found,) = rows(connection, _DECLARER, {"schema": schema, "catalog": CATALOG_SCHEMA})
    if creates and found["schema"] and not found["may_create"]:
        return f"GRANT CREATE ON SCHEMA {found['schema']} TO {found['role']};"
    if not found["is_installed"] and not found["may_install"]:
        return f"GRANT CREATE ON DATABASE {found['database']} TO {found['role']};"
    return CATALOG_GRANTS.replace(ROLE, str(found["role"]))
