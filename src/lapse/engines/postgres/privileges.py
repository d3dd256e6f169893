"""What a role lacks for declaring policies and for running jobs, as GRANT statements."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Advice
from lapse.engines.postgres import origin
from lapse.engines.postgres.errors import CATALOG_GRANTS, ROLE
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import (
    ALLOW_POLICY,
    BATCH_FUNCTION,
    CATALOG_SCHEMA,
    HIDE_POLICY,
    quote,
    relation,
)
from lapse.model.archive import archive_table, file_url
from lapse.model.policy import Policy
from lapse.model.table import Table, TableName

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

_ON_OUTBOX = """
    SELECT pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') AS usage,
           pg_catalog.has_table_privilege(c.oid, 'SELECT') AS reads,
           pg_catalog.has_table_privilege(c.oid, 'DELETE') AS removes
      FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass(%(name)s)"""

_OWNERS = """
    SELECT DISTINCT pg_get_userbyid(c.relowner) AS owner
      FROM pg_catalog.pg_class c
     WHERE c.oid = to_regclass(%(name)s) AND NOT pg_has_role(c.relowner, 'USAGE')"""

_DECLARER = """
    SELECT pg_catalog.quote_ident(current_user) AS role, pg_catalog.quote_ident(d.datname) AS database,
           pg_catalog.quote_ident(n.nspname) AS schema, pg_catalog.has_schema_privilege(n.oid, 'CREATE') AS may_create,
           pg_catalog.has_database_privilege(d.oid, 'CREATE') AS may_install, k.oid IS NOT NULL AS is_installed
      FROM pg_catalog.pg_database d
      LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = coalesce(%(schema)s, pg_catalog.current_schema())
      LEFT JOIN pg_catalog.pg_namespace k ON k.nspname = %(catalog)s
     WHERE d.datname = pg_catalog.current_database()"""


def lacking(connection: Connection, table: Table, policy: Policy) -> list[Advice]:
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
    found += _for_outbox(connection, table, policy, role)
    lacking = origin.functions_lacking(connection) if policy.replication_origin is not None else []
    if lacking:
        text = f"role {role} cannot delete under a replication origin, which ttl_replication_origin asks for"
        found.append(_grant(text, f"GRANT EXECUTE ON FUNCTION {', '.join(lacking)} TO {role};"))
    return found


def _for_outbox(connection: Connection, table: Table, policy: Policy, role: str) -> list[Advice]:
    """Rows leave an outbox by the worker's own hand; it can neither put one there nor change it."""
    if policy.archive is None or file_url(policy.archive) is None:
        return []
    outbox = archive_table(policy.archive, table.name.whole)
    found = []
    for state in rows(connection, _ON_OUTBOX, {"name": relation(outbox)}):
        if not state["usage"]:
            schema = quote(str(outbox.schema))
            found.append(
                _grant(f"role {role} cannot use schema {schema}", f"GRANT USAGE ON SCHEMA {schema} TO {role};")
            )
        if not (state["reads"] and state["removes"]):
            text = f"role {role} may not export the rows in {outbox} to {file_url(policy.archive)}"
            found.append(_grant(text, f"GRANT SELECT, DELETE ON {relation(outbox)} TO {role};"))
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


def declarer_grants(connection: Connection, schema: str | None, *, creates: bool) -> str:
    """What a role needs that declares policies on tables of its own, which it may have to create first."""
    (found,) = rows(connection, _DECLARER, {"schema": schema, "catalog": CATALOG_SCHEMA})
    if creates and found["schema"] and not found["may_create"]:
        return f"GRANT CREATE ON SCHEMA {found['schema']} TO {found['role']};"
    if not found["is_installed"] and not found["may_install"]:
        return f"GRANT CREATE ON DATABASE {found['database']} TO {found['role']};"
    return CATALOG_GRANTS.replace(ROLE, str(found["role"]))
