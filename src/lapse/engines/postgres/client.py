"""What people ask for from psql: the functions and views in the catalog's schema, and the requests that they write.

Who asks is recorded by the server, never by the caller, and asked for again when a worker does what was asked: the
role must own the table at that moment, too. Tables are oids from the first moment on.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection

from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import CATALOG_SCHEMA, literal, relation
from lapse.engines.values import Advice, ClientRequest
from lapse.errors import NotPermitted, TableNotFound
from lapse.model.table import TableName

_TABLE = f"{CATALOG_SCHEMA}.lapse_request"
_SAFE_PATH = "pg_catalog, pg_temp"
_UNUSED = {"unused": None}
"""With a parameter, percent signs are read in the same way on every connection."""

_GRANTS = """
    SELECT pg_catalog.format('GRANT %%s ON %%s TO %%s', a.privilege_type, %(table)s::text,
                             pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee))) AS statement
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
     WHERE n.nspname = %(schema)s AND c.relname = 'lapse_job' AND a.grantee NOT IN (0, c.relowner)
       AND a.privilege_type IN ('SELECT', 'UPDATE', 'DELETE')"""

VERSION = 2
"""Grows with every change of `client.sql`."""
_NAMES = (
    "('check_request', 'set_ttl', 'reset_ttl', 'run', 'pause', 'resume', 'preview', 'hold', 'release', 'keep_ledger',"
    " 'keep_keys')"
)

_OWNED = f"""
    SELECT pg_catalog.format('ALTER %%s %%s OWNER TO %%I', x.kind, x.name, o.rolname) AS statement
      FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner
      CROSS JOIN LATERAL (
           SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS name
             FROM pg_catalog.pg_class c
            WHERE c.relnamespace = n.oid AND c.relowner <> n.nspowner
              AND c.relname IN ('lapse_request', 'requests', 'status', 'jobs', 'history', 'holds')
            UNION ALL
           SELECT 'FUNCTION', p.oid::regprocedure::text
             FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = n.oid AND p.proowner <> n.nspowner
              AND p.proname IN {_NAMES}) x
     WHERE n.nspname = %(schema)s"""

_FUNCTIONS = f"""
    SELECT pg_catalog.format('DROP FUNCTION %%s', p.oid::regprocedure) AS statement
      FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = %(schema)s AND p.proname IN {_NAMES}"""

_FREE = "r.state = 'waiting' OR (r.state = 'working' AND r.claimed_at < clock_timestamp() - interval '5 minutes')"
_HOW_MANY = f"SELECT pg_catalog.count(*) FROM {_TABLE} r WHERE {_FREE}"
_MAY_ASK = f"""
    SELECT pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE')
             AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
      FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass({literal(_TABLE)})"""
_WAITING = f"""
    SELECT r.request_id, r.command, r.relation::bigint AS relation, r.arguments::text AS arguments,
           r.requested_by::bigint AS requested_by, pg_catalog.pg_get_userbyid(r.requested_by) AS requester
      FROM {_TABLE} r
     WHERE {_FREE}
     ORDER BY r.request_id LIMIT 50"""

_ALLOWED = """
    SELECT n.nspname AS schema, c.relname AS name, pg_catalog.pg_get_userbyid(c.relowner) AS owner,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE')
             AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS can_be_locked,
           EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = %(role)s) AS is_there,
           pg_catalog.pg_has_role(%(role)s::oid, c.relowner, 'USAGE') AS may
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = %(relation)s AND c.relkind IN ('r', 'p')"""


_MAY_INSTALL = """
    SELECT NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.pg_has_role(n.nspowner, 'USAGE') AS may,
           pg_catalog.pg_get_userbyid(n.nspowner) AS owner
      FROM pg_catalog.pg_namespace n WHERE n.nspname = %(schema)s"""


def install(connection: Connection) -> bool:
    """Everything that `client.sql` makes, found by no other role's names, and owned by the catalog's owner."""
    if not rows(connection, _MAY_INSTALL, {"schema": CATALOG_SCHEMA})[0]["may"]:
        return False
    before = rows(connection, "SELECT pg_catalog.current_setting('search_path') AS path")[0]["path"]
    _set_path(connection, _SAFE_PATH)
    # One message: psycopg sends a text of several statements only where there are no parameters.
    connection.exec_driver_sql(";\n".join(_statements()), execution_options={"no_parameters": True})
    here = {"schema": CATALOG_SCHEMA, "table": _TABLE}
    for row in (*rows(connection, _OWNED, here), *rows(connection, _GRANTS, here)):
        connection.exec_driver_sql(str(row["statement"]).replace("%", "%%"), _UNUSED)
    _set_path(connection, str(before))
    return True


def advice(connection: Connection) -> Advice:
    owner = rows(connection, _MAY_INSTALL, {"schema": CATALOG_SCHEMA})[0]["owner"]
    return Advice(
        text=f"the functions in schema {CATALOG_SCHEMA} for psql and other clients are those of an older version",
        statement=f"run `lapse doctor URL` as {owner}, which owns the schema",
    )


def remove(connection: Connection) -> None:
    """The table goes first: its trigger calls a function."""
    for statement in _statements():
        made = re.match(r"CREATE (?:OR REPLACE )?VIEW (\S+)", statement)
        if made:
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {made[1]}")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_TABLE}")
    for trigger, table in (("keep_ledger", "ledger"), ("keep_whole_ledger", "ledger"), ("keep_keys", "ledger_key")):
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger} ON {CATALOG_SCHEMA}.lapse_{table}")
    for row in rows(connection, _FUNCTIONS, {"schema": CATALOG_SCHEMA}):
        connection.exec_driver_sql(str(row["statement"]).replace("%", "%%"), _UNUSED)


def _set_path(connection: Connection, path: str) -> None:
    rows(connection, "SELECT pg_catalog.set_config('search_path', %(path)s, true)", {"path": path})


@cache
def _statements() -> tuple[str, ...]:
    text = files("lapse.engines.postgres").joinpath("client.sql").read_text(encoding="utf-8")
    return tuple(re.split(r";\n+(?=(?:CREATE|COMMENT|DROP|ALTER|GRANT) )", text.rstrip().removesuffix(";")))


def requests_sql(connection: Connection) -> str | None:
    return _HOW_MANY if connection.exec_driver_sql(_MAY_ASK).scalar() else None


def waiting(connection: Connection) -> list[ClientRequest]:
    return [
        ClientRequest(
            id=row["request_id"],
            command=row["command"],
            relation=row["relation"],
            arguments=json.loads(row["arguments"]),
            requested_by=row["requested_by"],
            requester=row["requester"],
        )
        for row in rows(connection, _WAITING)
    ]


def claim(connection: Connection, request: ClientRequest) -> bool:
    """False if another worker was faster."""
    changed = connection.exec_driver_sql(
        f"UPDATE {_TABLE} SET state = 'working', claimed_at = clock_timestamp() WHERE request_id = %(id)s"
        " AND (state = 'waiting' OR (state = 'working' AND claimed_at < clock_timestamp() - interval '5 minutes'))",
        {"id": request.id},
    )
    return changed.rowcount == 1


def finish(connection: Connection, request: ClientRequest, state: str, answer: str) -> None:
    connection.exec_driver_sql(
        f"UPDATE {_TABLE} SET state = %(state)s, answer = %(answer)s, finished_at = clock_timestamp()"
        " WHERE request_id = %(id)s",
        {"id": request.id, "state": state, "answer": answer},
    )
    connection.exec_driver_sql(f"DELETE FROM {_TABLE} WHERE finished_at < clock_timestamp() - interval '30 days'")


def requested_table(connection: Connection, request: ClientRequest) -> tuple[TableName, str]:
    """The table and its owner, if the role that asked owns it now.

    Its lock, ACCESS SHARE as every reader's, keeps DDL away until the caller's transaction ends. A worker that may not
    read the table gets none: it declares nothing there.
    """
    values = {"relation": request.relation, "role": request.requested_by}
    for found in rows(connection, _ALLOWED, values):
        name = TableName(str(found["name"]), str(found["schema"]))
        if found["can_be_locked"]:
            connection.exec_driver_sql(f"LOCK TABLE ONLY {relation(name)} IN ACCESS SHARE MODE")
        for again in rows(connection, _ALLOWED, values):
            if (again["schema"], again["name"]) != (name.schema, name.name):
                break
            if not again["is_there"] or not again["may"]:
                raise NotPermitted(f"the role that asked does not own table {name} any more")
            return name, str(again["owner"])
    raise TableNotFound("the table does not exist any more, or was renamed at this very moment")
