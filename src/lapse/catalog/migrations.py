"""Install and upgrade the catalog. A catalog that is newer than this code is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Table, bindparam, inspect, select, text
from sqlalchemy.schema import CreateColumn

from lapse._version import __version__
from lapse.catalog import schema
from lapse.errors import CatalogError, CatalogTooNew

VERSION_KEY = "catalog_version"
WITH_LEDGER = 9
"""The first version that has a ledger."""


def installed_version(connection: Connection, catalog_schema: str | None) -> int | None:
    """None when the catalog was never installed here."""
    if not _is_ours(schema.meta, _columns(connection, [schema.meta.name], catalog_schema)):
        return None
    value = connection.execute(select(schema.meta.c.value).where(schema.meta.c.name == VERSION_KEY)).scalar()
    if value is None:
        return None
    if not str(value).isdigit():
        raise CatalogError(f"the catalog's version is {value!r}, which is no number")
    return int(value)


def check(version: int) -> None:
    if version > schema.VERSION:
        raise CatalogTooNew(
            f"this database has a Lapse catalog of version {version}; Lapse {__version__} knows versions up to "
            f"{schema.VERSION}",
            hint="upgrade Lapse on this machine",
        )


def install(connection: Connection) -> None:
    """Create everything at the current version; inside the caller's transaction."""
    schema.metadata.create_all(connection, tables=_missing_tables(connection), checkfirst=False)
    create_views(connection)
    connection.execute(schema.meta.insert().values(name=VERSION_KEY, value=str(schema.VERSION)))


def _missing_tables(connection: Connection) -> list[Table]:
    """What an interrupted installation has left is completed; what is not Lapse's stays, and nothing is created."""
    where = _catalog_schema(connection)
    found = _columns(connection, [*schema.metadata.tables, *schema.VIEWS], where)
    missing = []
    for table in schema.metadata.sorted_tables:
        if table.name not in found:
            missing.append(table)
        elif not _is_ours(table, found):
            raise _taken(table.name)
    taken = found.keys() & schema.VIEWS.keys()
    views = inspect(connection).get_view_names(schema=where) if taken else []
    for name in taken:
        if name not in views or not _reads_ours(connection, name, where):
            raise _taken(name)
    return missing


_COLUMNS = {
    # Behind a pooler a session may have the role's own search_path, and an operator in it may be another role's.
    "postgresql": "SELECT c.relname, a.attname FROM pg_catalog.pg_class c"
    " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
    " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid"
    " AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped"
    " WHERE n.nspname OPERATOR(pg_catalog.=) CAST(:place AS pg_catalog.name)"
    " AND c.relname OPERATOR(pg_catalog.=) ANY (CAST(:names AS pg_catalog.name[]))",
    "mysql": "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = coalesce(:place, DATABASE()) AND TABLE_NAME IN :names",
    # The columns of a view that is broken cannot be asked for.
    "sqlite": "SELECT lower(m.name), i.name FROM sqlite_master m"
    " LEFT JOIN pragma_table_info(CASE m.type WHEN 'table' THEN m.name ELSE '' END) i"
    " WHERE m.type IN ('table', 'view') AND lower(m.name) IN :names AND :place IS NULL",
}
_COLUMNS["mariadb"] = _COLUMNS["mysql"]


def _columns(connection: Connection, names: Sequence[str], where: str | None) -> dict[str, set[str]]:
    """Of each table or view that is there under one of these names, asked at once."""
    dialect = connection.dialect.name
    asked = text(_COLUMNS[dialect]).bindparams(bindparam("names", expanding=dialect != "postgresql"))
    found: dict[str, set[str]] = {}
    for name, column in connection.execute(asked, {"names": list(names), "place": where}):
        found.setdefault(str(name), set()).add(str(column))
    return found


def _is_ours(table: Table, found: Mapping[str, set[str]]) -> bool:
    return found.get(table.name, set()) >= {column.name for column in table.columns}


def _reads_ours(connection: Connection, view: str, where: str | None) -> bool:
    """By its text: a view has no columns as long as a table that it reads is missing."""
    words = re.findall(r"\w+", inspect(connection).get_view_definition(view, schema=where))
    return not schema.metadata.tables.keys().isdisjoint(words)


def _taken(name: str) -> CatalogError:
    return CatalogError(
        f"there is already something named {name} in this database, which is not Lapse's",
        hint=f"Lapse keeps its catalog under that name: rename {name}",
    )


def create_views(connection: Connection) -> None:
    prefix = _prefix(connection)
    names = {name.removeprefix("lapse_"): f"{prefix}{name}" for name in schema.metadata.tables}
    for name, body in schema.VIEWS.items():
        connection.execute(text(f"DROP VIEW IF EXISTS {prefix}{name}"))
        connection.execute(text(f"CREATE VIEW {prefix}{name} AS {_concatenated(connection, body).format(**names)}"))


def _prefix(connection: Connection) -> str:
    """Where text has to say which schema the catalog is in."""
    where = _catalog_schema(connection)
    return f'"{where}".' if where else ""


def _catalog_schema(connection: Connection) -> str | None:
    translate = connection.get_execution_options().get("schema_translate_map") or {}
    found: str | None = translate.get(None)
    return found


def _concatenated(connection: Connection, body: str) -> str:
    """MySQL reads `||` as OR unless told otherwise."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return body
    return body.replace("'row-level-ttl-' || p.table_name", "concat('row-level-ttl-', p.table_name)").replace(
        "'ttl for ' || j.table_name", "concat('ttl for ', j.table_name)"
    )


def upgrade(connection: Connection, version: int) -> None:
    """Bring an older catalog to this version, one step at a time."""
    for step in range(version, schema.VERSION):
        STEPS[step](connection)
    create_views(connection)
    connection.execute(schema.meta.update().where(schema.meta.c.name == VERSION_KEY).values(value=str(schema.VERSION)))


def _add_columns(connection: Connection, *columns: Column[Any]) -> None:
    prefix = _prefix(connection)
    for column in columns:
        written = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE {prefix}{column.table.name} ADD COLUMN {written}"))


def _guard(connection: Connection) -> None:
    """A policy that has had a job was let pass long ago."""
    policy = schema.policy
    _add_columns(connection, policy.c.cleared_at, policy.c.held)
    ran = select(schema.job.c.policy_id).distinct()
    connection.execute(policy.update().where(policy.c.policy_id.in_(ran)).values(cleared_at=policy.c.changed_at))


def _armed(connection: Connection) -> None:
    """Policies are armed with the table they are found on; leaves have their schema in a column of its own."""
    policy, table, job, task = schema.policy, schema.table, schema.job, schema.task
    _add_columns(
        connection,
        *(policy.c[name] for name in ("armed", "disarmed", "grace_until", "declared_by", "source_text")),
        *(table.c[name] for name in ("partition_schema", "blocked", "blocked_since", "failures")),
        job.c.partition_schema,
        *(task.c[name] for name in ("failures", "not_before")),
    )
    schema.leaving.create(connection)
    if connection.dialect.name == "postgresql":
        # A leaf of another schema was stored as "schema"."leaf"; it is found again under its own name.
        connection.execute(table.delete().where(table.c.partition_name.like('"%"."%"')))
        name = f"{_prefix(connection)}{table.name}"
        connection.execute(text(f"ALTER TABLE {name} DROP CONSTRAINT lapse_table_of_policy"))
        connection.execute(
            text(
                f"ALTER TABLE {name} ADD CONSTRAINT lapse_table_of_policy"
                " UNIQUE (policy_id, partition_schema, partition_name)"
            )
        )


def _events(connection: Connection) -> None:
    _create(connection, schema.event)
    _create(connection, schema.notice)


def _indexes(connection: Connection) -> None:
    """What is due, and what is old, is found without reading everything."""
    where, found = _catalog_schema(connection), inspect(connection)
    for table in (schema.table, schema.job):
        known = {index["name"] for index in found.get_indexes(table.name, schema=where)}
        for index in table.indexes:
            if index.name not in known:
                index.create(connection)


def _client(connection: Connection) -> None:
    """What people call from the database's own client is the engine's: `Engine.install_client`."""


def _clean_leaves(connection: Connection) -> None:
    _add_columns(connection, schema.table.c.clean_at)


def _holds(connection: Connection) -> None:
    _create(connection, schema.hold)
    _add_columns(connection, schema.policy.c.holds, schema.policy.c.hold_version, schema.job.c.hold_version)


def _ledger(connection: Connection) -> None:
    """Its entries begin when the catalog has been upgraded: `ledger.begin`."""
    _create(connection, schema.ledger)
    # Version 8 gave the roles that use the catalog no right on this table's numbers.
    _grant(connection, schema.hold)


def _archive(connection: Connection) -> None:
    _add_columns(connection, schema.job.c.archive, schema.job.c.restored, schema.job.c.ledger_keys)
    for table in (schema.archive_file, schema.ledger_key, schema.secret):
        _create(connection, table)


def _bounds(connection: Connection) -> None:
    _add_columns(connection, schema.table.c.bounds)


def _packs(connection: Connection) -> None:
    """Outboxes may hold packs of rows, which workers of the version before would write into files as they are."""


def _create(connection: Connection, table: Table) -> None:
    """A new table of the catalog, for the roles that use its others."""
    found = _columns(connection, [table.name], _catalog_schema(connection))
    if found:
        if not _is_ours(table, found):
            raise _taken(table.name)
        return
    table.create(connection)
    _grant(connection, table)


def _grant(connection: Connection, table: Table) -> None:
    """What roles may do with jobs and their numbers they may do with this table and its numbers."""
    if connection.dialect.name != "postgresql":
        return
    where = _catalog_schema(connection)
    names = {"schema": where, "model": schema.job.name, "table": table.name}
    for grant in connection.execute(text(_GRANTS), names).scalars().all():
        connection.exec_driver_sql(grant.replace("%", "%%"), {"unused": None})
    key = next(iter(table.primary_key.columns)).name
    pair = {"model": f"{where}.{schema.job.name}", "table": f"{where}.{table.name}", "key": key}
    for grant in connection.execute(text(_SEQUENCE_GRANTS), pair).scalars().all():
        connection.exec_driver_sql(grant.replace("%", "%%"), {"unused": None})


_SEQUENCE_GRANTS = """
    SELECT pg_catalog.format('GRANT %s ON SEQUENCE %s TO %s', a.privilege_type, s.name,
                             CASE a.grantee WHEN 0 THEN 'PUBLIC'
                                            ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
      FROM pg_catalog.pg_class c
      CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
      CROSS JOIN (SELECT pg_catalog.pg_get_serial_sequence(:table, :key) AS name) s
     WHERE c.oid = CAST(pg_catalog.pg_get_serial_sequence(:model, 'job_id') AS pg_catalog.regclass)
       AND s.name IS NOT NULL AND a.grantee <> c.relowner AND a.privilege_type IN ('USAGE', 'SELECT', 'UPDATE')"""

_GRANTS = """
    SELECT pg_catalog.format('GRANT %s ON %I.%I TO %s', a.privilege_type, n.nspname, CAST(:table AS text),
                             CASE a.grantee WHEN 0 THEN 'PUBLIC'
                                            ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
     WHERE n.nspname = :schema AND c.relname = :model AND a.grantee <> c.relowner
       AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')"""

STEPS: dict[int, Callable[[Connection], None]] = {
    1: _guard,
    2: _armed,
    3: _events,
    4: _indexes,
    5: _client,
    6: _clean_leaves,
    7: _holds,
    8: _ledger,
    9: _archive,
    10: _bounds,
    11: _packs,
}
"""Version → what leads to the next one."""
