"""`CREATE TABLE …` put together from the catalog, which does not keep the text."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import quote, relation
from lapse.model.table import Table

_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull, a.attidentity::text AS identity,
           a.attgenerated::text AS generated, pg_get_expr(d.adbin, d.adrelid) AS value
      FROM pg_catalog.pg_attribute a
      LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum"""

_CONSTRAINTS = """
    SELECT conname, pg_get_constraintdef(oid) AS definition FROM pg_catalog.pg_constraint
     WHERE conrelid = to_regclass(%(name)s) AND contype IN ('p', 'u', 'f', 'c', 'x')
     ORDER BY contype <> 'p', conname"""

_PARTITIONING = """
    SELECT CASE WHEN relkind = 'p' THEN pg_get_partkeydef(oid) END AS key, relpersistence::text AS persistence
      FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s)"""


def create_statement(connection: Connection, table: Table) -> str:
    name = {"name": relation(table.name)}
    lines = []
    for row in rows(connection, _COLUMNS, name):
        line = f"{quote(str(row['attname']))} {row['type']}"
        if row["generated"]:
            line += f" GENERATED ALWAYS AS ({row['value']}) {'STORED' if row['generated'] == 's' else 'VIRTUAL'}"
        elif row["identity"]:
            line += f" GENERATED {'ALWAYS' if row['identity'] == 'a' else 'BY DEFAULT'} AS IDENTITY"
        elif row["value"] is not None:
            line += f" DEFAULT {row['value']}"
        lines.append(line + (" NOT NULL" if row["attnotnull"] else ""))
    for row in rows(connection, _CONSTRAINTS, name):
        lines.append(f"CONSTRAINT {quote(str(row['conname']))} {row['definition']}")
    shape = rows(connection, _PARTITIONING, name)[0]
    kind = "UNLOGGED TABLE" if shape["persistence"] == "u" else "TABLE"
    body = ",\n  ".join(lines)
    partitioned = f" PARTITION BY {shape['key']}" if shape["key"] else ""
    return f"CREATE {kind} {relation(table.name)} (\n  {body}\n){partitioned}"
