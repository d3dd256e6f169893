"""Archive tables on PostgreSQL: the table's owner owns them, and the owner's batch function alone moves rows there.

The function knows the archive by a digest of everything that could refuse, change or divert a row, and of the columns
of the table itself. It compares both in the transaction of every batch, under a lock that lets neither be altered.
"""

from __future__ import annotations

from datetime import UTC

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines import archive
from lapse.engines.archive import ArchiveShape, archive_of
from lapse.engines.base import BoundPolicy
from lapse.engines.postgres.errors import sqlstate
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import MAX_NAME_BYTES, SEE_EXPIRED, literal, quote, relation
from lapse.engines.restoring import Dialect
from lapse.errors import Blocked, NotPermitted, Unsupported
from lapse.model.archive import ARCHIVED_AT, JOB, OWN_COLUMNS, SEQUENCE
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.table import TableName

_CASCADING = "'{c,n,d}'::pg_catalog.\"char\"[]"
NUMBERS_AT_ONCE = 100
_UNIQUE_VIOLATION, _CHECK_VIOLATION = "23505", "23514"
_MANAGED_TYPE = "timestamp with time zone"
_OWN = {SEQUENCE: "bigint", JOB: "bigint", ARCHIVED_AT: "timestamp with time zone"}

_COLUMNS = """
    SELECT a.attname AS name, a.attnotnull AS not_null, a.attgenerated <> '' AS generated, a.attidentity AS identity,
           pg_catalog.format_type(a.atttypid, a.atttypmod)
             || CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
                     THEN pg_catalog.format(' COLLATE %%I.%%I', n.nspname, l.collname) ELSE '' END AS type
      FROM pg_catalog.pg_attribute a
      JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
      LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
      LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
     WHERE a.attrelid = pg_catalog.to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum"""

_FLAWS = """
    SELECT c.oid, pg_catalog.pg_get_userbyid(c.relowner) AS owner,
           pg_catalog.pg_get_userbyid(s.relowner) AS wanted_owner,
           CASE c.relkind WHEN 'r' THEN '' WHEN 'v' THEN 'it is a view' WHEN 'f' THEN 'it is a foreign table'
                          WHEN 'p' THEN 'it is partitioned' ELSE 'it is no table' END AS kind,
           CASE c.relpersistence WHEN 'p' THEN '' WHEN 'u' THEN 'it is UNLOGGED: a crash would empty it'
                                 ELSE 'it is temporary' END AS persistence,
           c.relrowsecurity AS secured,
           ARRAY(SELECT g.tgname::pg_catalog.text FROM pg_catalog.pg_trigger g
                  WHERE g.tgrelid = c.oid AND NOT g.tgisinternal ORDER BY 1) AS triggers,
           ARRAY(SELECT r.rulename::pg_catalog.text FROM pg_catalog.pg_rewrite r
                  WHERE r.ev_class = c.oid AND c.relkind = 'r' ORDER BY 1) AS rules,
           ARRAY(SELECT k.conname::pg_catalog.text FROM pg_catalog.pg_constraint k
                  WHERE k.conrelid = c.oid AND k.contype = ANY ('{c,f,u,x}'::"char"[]) ORDER BY 1) AS constraints,
           ARRAY(SELECT x.relname::pg_catalog.text FROM pg_catalog.pg_index i
                   JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
                  WHERE i.indrelid = c.oid AND i.indisunique AND NOT i.indisprimary ORDER BY 1) AS uniques,
           EXISTS (SELECT 1 FROM pg_catalog.pg_inherits h WHERE c.oid IN (h.inhrelid, h.inhparent)) AS inherits,
           EXISTS (SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid
                      AND a.attnum = i.indkey[0] AND i.indnatts = 1
                    WHERE i.indrelid = c.oid AND i.indisprimary AND a.attname = %(sequence)s) AS keyed
      FROM pg_catalog.pg_class c, pg_catalog.pg_class s
     WHERE c.oid = pg_catalog.to_regclass(%(name)s) AND s.oid = pg_catalog.to_regclass(%(table)s)"""

_FOREIGN_GRANTS = """
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC'
                                   ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS grantee
      FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
     WHERE c.oid = pg_catalog.to_regclass(%(name)s) AND a.grantee <> c.relowner"""

_SCHEMA = """
    SELECT pg_catalog.has_schema_privilege(o.rolname, n.oid, 'CREATE') AS may, o.rolname AS owner
      FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
     WHERE n.nspname = %(schema)s AND c.oid = pg_catalog.to_regclass(%(table)s)"""


def check(connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
    """Raises Refused where rows cannot be archived as the policy says."""
    name = archive.to_check(declared, previous)
    if name is None:
        return
    if len(name.name.encode()) > MAX_NAME_BYTES:
        raise Unsupported(
            f"the archive table {name} cannot be made: names have at most {MAX_NAME_BYTES} bytes",
            hint="ttl_archive = 'table:NAME'",
        )
    _check_schema(connection, declared, name)
    source = archive.planned(declared, columns(connection, declared.table.name), _MANAGED_TYPE)
    archive.refuse_foreign(name, declared.table.name, source, shape(connection, name, declared.table.name))


def _check_schema(connection: Connection, declared: BoundPolicy, name: TableName) -> None:
    values = {"schema": name.schema, "table": relation(declared.table.name.whole)}
    found = rows(connection, _SCHEMA, values)
    schema = quote(name.schema or "")
    if not found:
        raise Unsupported(f"there is no schema {name.schema}", hint=f"CREATE SCHEMA {schema};")
    if not found[0]["may"] and shape(connection, name, declared.table.name) is None:
        owner = str(found[0]["owner"])
        raise NotPermitted(
            f"{owner}, the owner of table {declared.table.name}, may not make a table in schema {name.schema}",
            hint=f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {quote(owner)};",
        )


def install(connection: Connection, declared: BoundPolicy) -> None:
    """Make the archive table, or let it follow columns that its table was given since.

    What default privileges would give others is taken back: they may not be allowed to read all rows of the table.
    """
    name = archive_of(declared)
    if name is None:
        return
    table = declared.table.name.whole
    source, found = columns(connection, table), shape(connection, name, table)
    archive.refuse_foreign(name, table, source, found)
    if found is not None:
        for column, kind in archive.added(source, found).items():
            connection.exec_driver_sql(f"ALTER TABLE {relation(name)} ADD COLUMN {quote(column)} {kind}")
        return
    own = (
        # A session takes numbers by the hundred: asking for each of them is a tenth of the cost of a row.
        f"{SEQUENCE} bigint GENERATED BY DEFAULT AS IDENTITY (CACHE {NUMBERS_AT_ONCE}) PRIMARY KEY, {JOB} bigint,"
        f" {ARCHIVED_AT} timestamp with time zone"
    )
    named = ", ".join(f"{quote(column)} {kind}" for column, kind in source.items())
    connection.exec_driver_sql(f"CREATE TABLE {relation(name)} ({own}, {named})")
    (made,) = rows(connection, _FLAWS, _names(name, table))
    if made["owner"] != made["wanted_owner"]:
        connection.exec_driver_sql(f"ALTER TABLE {relation(name)} OWNER TO {quote(str(made['wanted_owner']))}")
    for row in rows(connection, _FOREIGN_GRANTS, {"name": relation(name)}):
        connection.exec_driver_sql(f"REVOKE ALL ON {relation(name)} FROM {row['grantee']}")


def missing(connection: Connection, declared: BoundPolicy) -> list[str]:
    name = archive_of(declared)
    if name is None:
        return []
    table = declared.table.name.whole
    return archive.missing(declared.table, name, columns(connection, table), shape(connection, name, table))


def shape(connection: Connection, name: TableName, table: TableName) -> ArchiveShape | None:
    found = rows(connection, _FLAWS, _names(name, table))
    if not found:
        return None
    found_columns = rows(connection, _COLUMNS, {"name": relation(name)})
    own = frozenset(
        str(row["name"])
        for row in found_columns
        if _OWN.get(row["name"]) == row["type"] and (row["name"] != SEQUENCE or (row["identity"] and found[0]["keyed"]))
    )
    kept = {str(row["name"]): str(row["type"]) for row in found_columns if row["name"] not in OWN_COLUMNS}
    return ArchiveShape(columns=kept, flaws=tuple(_flaws(found[0], found_columns)), own=own, folds=False)


def _flaws(found: dict[str, object], columns: list[dict[str, object]]) -> list[str]:
    flaws = [str(found[part]) for part in ("kind", "persistence") if found[part]]
    if found["owner"] != found["wanted_owner"]:
        flaws.append(f"it belongs to {found['owner']}, and the table to {found['wanted_owner']}")
    if found["secured"]:
        flaws.append("it has row security")
    if found["inherits"]:
        flaws.append("it inherits, or is inherited from")
    for what in ("triggers", "rules", "constraints", "uniques"):
        each = found[what]
        assert isinstance(each, list)
        flaws += [f"it has a {_WORDS[what]} {name}" for name in each]
    for row in columns:
        if row["name"] not in OWN_COLUMNS and (row["not_null"] or row["generated"] or row["identity"]):
            flaws.append(f"its column {row['name']} is {'NOT NULL' if row['not_null'] else 'generated'}")
    return flaws


_WORDS = {"triggers": "trigger", "rules": "rule", "constraints": "constraint", "uniques": "unique index"}


def columns(connection: Connection, name: TableName) -> dict[str, str]:
    return {str(row["name"]): str(row["type"]) for row in rows(connection, _COLUMNS, {"name": relation(name.whole)})}


def _names(name: TableName, table: TableName) -> dict[str, object]:
    return {"name": relation(name), "table": relation(table.whole), "sequence": SEQUENCE}


# Restoring


def _constraint(error: DBAPIError) -> str | None:
    """That of a CHECK has a name; where no partition takes a row, the server names none."""
    return getattr(getattr(error.orig, "diag", None), "constraint_name", None)


DIALECT = Dialect(
    quote=quote,
    relation=relation,
    instant=lambda at: f"{literal(at.astimezone(UTC).isoformat())}::pg_catalog.timestamptz",
    is_duplicate=lambda error: sqlstate(error.orig) == _UNIQUE_VIOLATION,
    lacks_partition=lambda error: sqlstate(error.orig) == _CHECK_VIOLATION and _constraint(error) is None,
    overriding=" OVERRIDING SYSTEM VALUE",
    lock=" FOR UPDATE",
)


def refuse_other_role(connection: Connection, name: TableName) -> None:
    """Triggers of the table run with the rights of the role that inserts."""
    (found,) = rows(
        connection,
        "SELECT pg_catalog.pg_get_userbyid(c.relowner) AS owner, current_user AS role FROM pg_catalog.pg_class c"
        " WHERE c.oid = pg_catalog.to_regclass(%(name)s)",
        {"name": relation(name)},
    )
    if found["owner"] != found["role"]:
        raise NotPermitted(
            f"table {name} belongs to {found['owner']}, and its triggers would run with the rights of {found['role']}",
            hint=f"restore rows as {found['owner']}",
        )


def use_path(connection: Connection, path: str) -> None:
    """Until the transaction ends: triggers of the table may rely on the path that any session of this role has."""
    connection.exec_driver_sql(
        f"SELECT pg_catalog.set_config('search_path', {literal(path)}, true),"
        f" pg_catalog.set_config('{SEE_EXPIRED}', 'on', true)"
    )


# Exporting

_OUTBOX = """
    SELECT c.relkind = 'r' AND NOT c.relrowsecurity AS is_table,
           NOT EXISTS (SELECT 1 FROM pg_catalog.pg_trigger g WHERE g.tgrelid = c.oid) AS has_no_trigger,
           NOT EXISTS (SELECT 1 FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid) AS has_no_rule,
           NOT EXISTS (SELECT 1 FROM pg_catalog.pg_inherits h WHERE c.oid IN (h.inhrelid, h.inhparent)) AS is_alone,
           NOT EXISTS (SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid
                        AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)) AS is_indexed_plainly,
           NOT EXISTS (SELECT 1 FROM pg_catalog.pg_statistic_ext x WHERE x.stxrelid = c.oid) AS is_measured_plainly
      FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass(%(name)s)"""


def lock_outbox(connection: Connection, name: TableName) -> None:
    """The lock keeps every statement away that could give the outbox a trigger, a rule, row security, an index or
    statistics: planning and running a statement on it then calls no function of its owner's."""
    connection.exec_driver_sql(f"LOCK TABLE ONLY {relation(name)} IN SHARE UPDATE EXCLUSIVE MODE")
    found = rows(connection, _OUTBOX, {"name": relation(name)})
    if not found or not all(found[0].values()):
        raise Blocked(
            BlockCode.PARTS_MISSING,
            f"{name} is not a plain table: it has a trigger, a rule, row security, statistics, or an index with an"
            " expression or a condition",
            hint="drop what was added to it",
        )


# In the batch function


def digest(connection: Connection, declared: BoundPolicy) -> str:
    """Of both tables, as the function compares it; empty, which nothing is equal to, where the archive does not fit."""
    name = archive_of(declared)
    if name is None or missing(connection, declared):
        return ""
    (found,) = rows(
        connection,
        "SELECT pg_catalog.to_regclass(%(name)s)::pg_catalog.oid AS archive,"
        " pg_catalog.to_regclass(%(table)s)::pg_catalog.oid AS source",
        _names(name, declared.table.name),
    )
    sql = digest_sql(str(found["archive"]), str(found["source"])).replace("%", "%%")
    (made,) = rows(connection, f"SELECT {sql} AS digest", {"unused": None})
    return f"{found['archive']} {made['digest']}"


def digest_sql(archive_oid: str, source_oid: str) -> str:
    """SQL with every operator qualified: it runs inside the function."""
    eq, neq, gt = ("OPERATOR(pg_catalog.=)", "OPERATOR(pg_catalog.<>)", "OPERATOR(pg_catalog.>)")

    def columns(oid: str) -> str:
        each = "pg_catalog.concat_ws(' ', a.attnum, a.atttypid, a.atttypmod, a.attcollation, a.attnotnull, a.attname)"
        return (
            f"(SELECT pg_catalog.string_agg({each}, ',' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a"
            f" WHERE a.attrelid {eq} {oid} AND a.attnum {gt} 0 AND NOT a.attisdropped)"
        )

    def among(table: str, alias: str, where: str) -> str:
        return f"(SELECT pg_catalog.count(*) FROM pg_catalog.{table} {alias} WHERE {where})"

    parts = (
        "c.relname",
        "c.relnamespace",
        "c.relowner",
        "c.relkind",
        "c.relpersistence",
        "c.relrowsecurity",
        columns(archive_oid),
        columns(source_oid),
        among("pg_trigger", "g", f"g.tgrelid {eq} c.oid AND NOT g.tgisinternal"),
        among("pg_rewrite", "r", f"r.ev_class {eq} c.oid"),
        among(
            "pg_constraint", "k", f"k.conrelid {eq} c.oid AND k.contype {neq} ALL ('{{p,n}}'::pg_catalog.\"char\"[])"
        ),
        among("pg_constraint", "f", f"f.confrelid {eq} {source_oid} AND f.confdeltype {eq} ANY ({_CASCADING})"),
        among("pg_inherits", "h", f"h.inhrelid {eq} c.oid OR h.inhparent {eq} c.oid"),
        among("pg_index", "i", f"i.indrelid {eq} c.oid AND i.indisunique"),
    )
    return (
        f"(SELECT pg_catalog.md5(pg_catalog.concat_ws('/', {', '.join(parts)}))"
        f" FROM pg_catalog.pg_class c WHERE c.oid {eq} {archive_oid})"
    )


def lock_and_check(declared: BoundPolicy, known: str, source: int) -> str:
    """PL/pgSQL for a batch that deletes; nothing where rows are not archived."""
    name = archive_of(declared)
    if name is None:
        return ""
    text = literal(f"archive table {name} is not what it was, or lacks a column of the table")
    refuse = f"        RAISE EXCEPTION USING ERRCODE = 'LT004', MESSAGE = {text};\n"
    if not known:
        return f"    IF locks THEN\n{refuse}    END IF;\n"
    oid, made = known.split()
    return (
        "    IF locks THEN\n"
        f"        LOCK TABLE ONLY {relation(name)} IN ROW EXCLUSIVE MODE;\n"
        f"        IF {digest_sql(oid, str(source))} IS DISTINCT FROM {literal(made)} THEN\n"
        f"    {refuse}"
        "        END IF;\n"
        "    END IF;\n"
    )


def returning(declared: BoundPolicy, row: str) -> str:
    """What a DELETE of a batch returns: the whole row, in the order of `insert`. In a template of `format`."""
    if declared.policy.archive is None:
        return "1"
    return ", ".join(f"{row}.{quote(column.name)}" for column in declared.table.columns).replace("%", "%%")


def insert(declared: BoundPolicy, job: str) -> str:
    """An INSERT of all that `gone` returns, as a template of `format`."""
    name = archive_of(declared)
    assert name is not None
    columns = ", ".join(quote(column.name) for column in declared.table.columns)
    into = f"INSERT INTO {relation(name)} ({columns}, {ARCHIVED_AT}, {JOB})".replace("%", "%%")
    return f"{into} SELECT gone.*, pg_catalog.statement_timestamp(), {job} FROM gone"
