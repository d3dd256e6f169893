"""What is asked of Django's databases on every start and before every migration, so it loads nothing of Lapse's.

Lapse and its libraries take most of a second to load, which only a migration with TTL has to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapse.model.table import TableName

VENDORS = ("postgresql", "mysql", "sqlite")
_CATALOGS = {
    "postgresql": "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = 'lapse_ttl' AND c.relname = 'lapse_policy'",
    "mysql": "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = 'lapse_policy'",
    "sqlite": "SELECT 1 FROM sqlite_master WHERE name = 'lapse_policy'",
}


def has_catalog(connection: Any) -> bool:
    """Was anything ever declared there? Asked before every migration, so it costs no more than one statement."""
    with connection.cursor() as cursor:
        cursor.execute(_CATALOGS[connection.vendor])
        return cursor.fetchone() is not None


def table_name(db_table: str) -> TableName:
    """Of a model's `db_table`; `"app"."events"` names a schema, too, as is usual with PostgreSQL."""
    from lapse.ddl.names import parse_table_name
    from lapse.model.table import TableName

    return parse_table_name(db_table, "postgres") if db_table.startswith('"') else TableName(db_table)
