"""The catalog's schema: made, moved from where it was, and trusted only if nothing in it is another role's."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import CATALOG_SCHEMA, FORMER_CATALOG_SCHEMA, quote
from lapse.engines.postgres.session import savepoint
from lapse.errors import CatalogError

_META = "lapse_meta"

_SCHEMA = """
    SELECT n.oid, pg_catalog.pg_get_userbyid(n.nspowner) AS owner, r.oid = n.nspowner AS is_own, o.rolsuper AS is_high,
           r.rolsuper AS am_high, r.rolname AS me, pg_catalog.pg_has_role(n.nspowner, 'USAGE') AS acts_for_it,
           EXISTS (SELECT 1 FROM pg_catalog.aclexplode(n.nspacl) a
                    WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) AS is_open,
           (SELECT min(c.relname::text) FROM pg_catalog.pg_class c
             WHERE c.relnamespace = n.oid AND c.relowner <> n.nspowner) AS stranger,
           pg_catalog.to_regclass(%(meta)s) IS NOT NULL AS has_catalog
      FROM pg_catalog.pg_namespace n
      JOIN pg_catalog.pg_roles r ON r.rolname = current_user
      JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner
     WHERE n.nspname = %(schema)s"""

_OBJECTS = """
    SELECT c.relname AS name, c.relkind::text AS kind
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'v') AND c.relname LIKE 'lapse\\_%%'
       AND c.relowner = n.nspowner
     ORDER BY c.relkind = 'r'"""

_FUNCTION = """
    SELECT 1 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = %(schema)s AND p.proname = 'stamp_expiration' AND p.pronargs = 0 AND p.proowner = n.nspowner"""

_USERS = """
    SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) AS role
      FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) a
     WHERE n.nspname = %(schema)s AND a.privilege_type = 'USAGE' AND a.grantee NOT IN (0, n.nspowner)"""


def check(connection: Connection) -> None:
    """A superuser uses no catalog of a role that is none: a trigger or an index there would run with its rights."""
    found = _schema(connection, CATALOG_SCHEMA)
    if found is None or not found["has_catalog"]:
        return
    _refuse_strangers(found)
    if found["am_high"] and not found["is_high"]:
        raise CatalogError(
            f"Lapse's catalog belongs to {found['owner']}, and {found['me']} is a superuser, whose rights what is in it"
            " must not come near",
            hint=f"connect as {found['owner']}, or as a role of its own for workers; docs/security.md has the grants",
        )


def prepare(connection: Connection) -> None:
    """Make the schema, or take over the one that is there if it is ours, and move an older catalog into it."""
    former = _schema(connection, FORMER_CATALOG_SCHEMA)
    if former is not None and not former["has_catalog"]:
        former = None
    if former is not None and not _is_trusted(former):
        raise CatalogError(
            f"there is a catalog of an earlier version in schema {FORMER_CATALOG_SCHEMA}, which belongs to"
            f" {former['owner']}",
            hint=f"run `lapse doctor` once as {former['owner']}, which moves it to schema {CATALOG_SCHEMA}; or drop it",
        )
    found = _schema(connection, CATALOG_SCHEMA)
    if found is None:
        owner = "" if former is None else f" AUTHORIZATION {quote(str(former['owner']))}"
        connection.exec_driver_sql(f"CREATE SCHEMA {CATALOG_SCHEMA}{owner}")
    else:
        _refuse_strangers(found)
        if not _is_trusted(found):
            raise CatalogError(
                f"there is already a schema {CATALOG_SCHEMA}, which belongs to {found['owner']}",
                hint=f"drop it, or install the catalog as {found['owner']}",
            )
    if former is not None:
        _move(connection)


def has_former_catalog(connection: Connection) -> bool:
    """Is there a catalog where earlier versions had it?"""
    found = _schema(connection, FORMER_CATALOG_SCHEMA)
    return found is not None and bool(found["has_catalog"])


def _is_trusted(found: dict[str, Any]) -> bool:
    """May this role take the schema for its own? A superuser acts for every role and trusts superusers alone."""
    return bool(found["is_own"] or found["is_high"] or (found["acts_for_it"] and not found["am_high"]))


def _move(connection: Connection) -> None:
    """Table by table: whatever else is in the schema, as that of a role with its name, stays there."""
    here = {"schema": FORMER_CATALOG_SCHEMA}
    for row in rows(connection, _OBJECTS, here):
        name = f"{FORMER_CATALOG_SCHEMA}.{quote(str(row['name']))}"
        # Views are made anew with the tables in their place.
        move = f"DROP VIEW {name}" if row["kind"] == "v" else f"ALTER TABLE {name} SET SCHEMA {CATALOG_SCHEMA}"
        connection.exec_driver_sql(move)
    if rows(connection, _FUNCTION, here):
        connection.exec_driver_sql(
            f"ALTER FUNCTION {FORMER_CATALOG_SCHEMA}.stamp_expiration() SET SCHEMA {CATALOG_SCHEMA}"
        )
    for row in rows(connection, _USERS, here):
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {CATALOG_SCHEMA} TO {row['role']}")
    try:
        with savepoint(connection):
            connection.exec_driver_sql(f"DROP SCHEMA {FORMER_CATALOG_SCHEMA}")
    except DBAPIError:
        # It is not empty, or not this role's.
        return


def _schema(connection: Connection, schema: str) -> dict[str, Any] | None:
    values = {"schema": schema, "meta": f"{schema}.{_META}"}
    return next(iter(rows(connection, _SCHEMA, values)), None)


def _refuse_strangers(found: dict[str, Any]) -> None:
    if found["stranger"] is not None:
        raise CatalogError(
            f"schema {CATALOG_SCHEMA} belongs to {found['owner']}, and {found['stranger']} in it does not",
            hint=f"ALTER TABLE {CATALOG_SCHEMA}.{quote(found['stranger'])} OWNER TO {quote(found['owner'])}",
        )
    if found["is_open"]:
        raise CatalogError(
            f"other roles than {found['owner']} may create things in schema {CATALOG_SCHEMA}",
            hint=f"REVOKE CREATE ON SCHEMA {CATALOG_SCHEMA} FROM PUBLIC and every other role that has it",
        )
