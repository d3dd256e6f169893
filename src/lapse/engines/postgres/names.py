"""Quoting, and the names of what Lapse makes in a PostgreSQL database."""

from __future__ import annotations

from lapse.errors import Unsupported
from lapse.model.table import TableName

CATALOG_SCHEMA = "lapse_ttl"
FORMER_CATALOG_SCHEMA = "lapse"
"""Where versions before 4 of the catalog were: a role of that name has it first in its search path."""
STAMP_FUNCTION = f"{CATALOG_SCHEMA}.stamp_expiration"
BATCH_FUNCTION = "lapse_ttl_"
"""The name of a table's batch function is this and the table's oid."""
STAMP_PREFIX = "lapse_ttl_stamp_"
"""The same for the function that stamps a managed column, where the table's owner is not the catalog's."""
SAFE_PATH = "pg_catalog, pg_temp"
"""The search path of every statement of Lapse's: nothing of another role's is found by it. The temporary schema, named
last, is searched last."""
USER_PATH = "lapse.search_path"
"""While a session of the user's works with the safe path, this keeps the user's own."""
UPDATE_TRIGGER = "lapse_ttl_update"
INSERT_TRIGGER = "lapse_ttl_insert"
HIDE_POLICY = "lapse_hide_expired"
ALLOW_POLICY = "lapse_allow_all"
MADE_BY_LAPSE = "made by Lapse"
SEE_EXPIRED = "lapse.see_expired"
"""A session that sets this to `on` is shown expired rows in spite of `ttl_hide_expired = 'policy'`."""
MAX_NAME_BYTES = 63


def quote(name: str) -> str:
    if "\0" in name:
        raise Unsupported(f"the name {name!r} contains a zero byte")
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    if "\0" in text:
        raise Unsupported("a text with a zero byte cannot be written in SQL")
    if "\\" in text:
        # Read the same whatever standard_conforming_strings says.
        return " E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return "'" + text.replace("'", "''") + "'"


def relation(name: TableName) -> str:
    """The physical table as SQL: the leaf itself where `name` has a partition."""
    own = own_name(name)
    return f"{quote(own.schema)}.{quote(own.name)}" if own.schema else quote(own.name)


def own_name(name: TableName) -> TableName:
    """The name of a leaf as the table it is; a name without partition stays as it is."""
    return name if name.partition is None else TableName(name.partition, name.partition_schema or name.schema)


def live_view(table: str) -> str:
    return f"{table}_live"
