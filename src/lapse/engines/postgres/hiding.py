"""`ttl_hide_expired`: expired rows out of sight at once, through a view or by row security on the table itself."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.postgres import condition
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import (
    ALLOW_POLICY,
    HIDE_POLICY,
    MADE_BY_LAPSE,
    MAX_NAME_BYTES,
    SEE_EXPIRED,
    literal,
    live_view,
    quote,
    relation,
)
from lapse.errors import PolicyConflict, Unsupported
from lapse.model.table import MANAGED_COLUMN, TableName


def install(connection: Connection, declared: BoundPolicy) -> None:
    name, wanted = declared.table.name, declared.policy.hide_expired
    drop_view(connection, name)
    drop_policy(connection, name)
    if wanted == "view":
        _create_view(connection, declared)
    elif wanted == "policy":
        _create_policy(connection, declared)


def missing_parts(connection: Connection, declared: BoundPolicy) -> list[str]:
    wanted, name = declared.policy.hide_expired, declared.table.name
    if wanted == "view" and not _is_our_view(connection, name):
        return [f"view {live_view(name.name)}"]
    if wanted == "policy":
        missing = [] if HIDE_POLICY in _policies(connection, name) else [f"row-security policy {HIDE_POLICY}"]
        if _allows_everything(connection, name):
            missing.append(f"the condition of row-security policy {ALLOW_POLICY}, which voids those of other policies")
        return missing if _is_secured(connection, name) else [*missing, "row security"]
    return []


def drop_view(connection: Connection, name: TableName) -> None:
    if _is_our_view(connection, name):
        connection.exec_driver_sql(f"DROP VIEW {_view(name)}")


def drop_policy(connection: Connection, name: TableName) -> None:
    found = _policies(connection, name)
    target = relation(name)
    for policy in (HIDE_POLICY, ALLOW_POLICY):
        if policy in found:
            connection.exec_driver_sql(f"DROP POLICY {policy} ON {target}")
    if ALLOW_POLICY in found and not found - {HIDE_POLICY, ALLOW_POLICY}:
        # Row security was switched on for Lapse's policy, and without any policy no role would see a row.
        connection.exec_driver_sql(f"ALTER TABLE {target} DISABLE ROW LEVEL SECURITY")


def _create_view(connection: Connection, declared: BoundPolicy) -> None:
    name = declared.table.name
    view = _view(name)
    if _is_too_long(name):
        raise Unsupported(
            f"the view {live_view(name.name)} would have a name longer than {MAX_NAME_BYTES} bytes",
            hint="ttl_hide_expired = 'policy' hides expired rows without a view",
        )
    if rows(connection, "SELECT to_regclass(%(view)s) AS taken", {"view": view})[0]["taken"] is not None:
        raise PolicyConflict(
            f"there is already a relation named {live_view(name.name)}, so the view of live rows cannot be made",
            hint="rename it, or leave ttl_hide_expired off",
        )
    columns = ", ".join(quote(c.name) for c in declared.table.columns if c.name != MANAGED_COLUMN)
    invoker = "WITH (security_invoker = true) " if _version(connection) >= 150000 else ""
    connection.exec_driver_sql(
        f"CREATE VIEW {view} {invoker}AS SELECT {columns} FROM {relation(name)}"
        f" WHERE ({condition.expired_now(declared)}) IS NOT TRUE"
    )
    connection.exec_driver_sql(f"COMMENT ON VIEW {view} IS {literal(MADE_BY_LAPSE)}")


def _create_policy(connection: Connection, declared: BoundPolicy) -> None:
    name = declared.table.name
    target = relation(name)
    if not _policies(connection, name) and not _is_secured(connection, name):
        # Without a policy that permits, row security would hide everything. It stands back as soon as there is a policy
        # of the user's that permits something: one that permits everything beside it would void that.
        alone = (
            "NOT EXISTS (SELECT FROM pg_catalog.pg_policy"
            f" WHERE polrelid OPERATOR(pg_catalog.=) {literal(target)}::pg_catalog.regclass AND polpermissive"
            f" AND polname OPERATOR(pg_catalog.<>) {literal(ALLOW_POLICY)})"
        )
        connection.exec_driver_sql(f"CREATE POLICY {ALLOW_POLICY} ON {target} USING ({alone}) WITH CHECK ({alone})")
    connection.exec_driver_sql(
        f"CREATE POLICY {HIDE_POLICY} ON {target} AS RESTRICTIVE FOR SELECT"
        f" USING (({condition.expired_now(declared)}) IS NOT TRUE OR current_setting('{SEE_EXPIRED}', true) = 'on')"
    )
    connection.exec_driver_sql(f"ALTER TABLE {target} ENABLE ROW LEVEL SECURITY")


def _view(name: TableName) -> str:
    return relation(TableName(live_view(name.name), name.schema))


def _is_too_long(name: TableName) -> bool:
    return len(live_view(name.name).encode()) > MAX_NAME_BYTES


def _is_our_view(connection: Connection, name: TableName) -> bool:
    if _is_too_long(name):
        # PostgreSQL would cut the name short, and find the table itself.
        return False
    found = rows(
        connection,
        "SELECT obj_description(to_regclass(%(view)s), 'pg_class') AS comment",
        {"view": _view(name)},
    )
    return bool(found and found[0]["comment"] == MADE_BY_LAPSE)


def _policies(connection: Connection, name: TableName) -> set[str]:
    sql = "SELECT polname FROM pg_catalog.pg_policy WHERE polrelid = to_regclass(%(name)s)"
    return {str(row["polname"]) for row in rows(connection, sql, {"name": relation(name)})}


def _allows_everything(connection: Connection, name: TableName) -> bool:
    """As versions of Lapse before this one made it."""
    sql = (
        "SELECT pg_get_expr(polqual, polrelid) = 'true' AS everything FROM pg_catalog.pg_policy"
        " WHERE polrelid = to_regclass(%(name)s) AND polname = %(policy)s"
    )
    return any(row["everything"] for row in rows(connection, sql, {"name": relation(name), "policy": ALLOW_POLICY}))


def _is_secured(connection: Connection, name: TableName) -> bool:
    sql = "SELECT relrowsecurity FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s)"
    return any(row["relrowsecurity"] for row in rows(connection, sql, {"name": relation(name)}))


def _version(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT current_setting('server_version_num')").scalar_one())
