"""The batch function of a table: everything that jobs read or delete there, with the rights of the table's owner.

The owner of the table owns the function, which is SECURITY DEFINER. A worker may execute it and needs no right on the
table. What it is given can only narrow what the function does: rows are deleted if they have expired by the policy that
was declared, at the earlier of the cutoff and the server's clock, and if the table is the one that was armed. Triggers
and whatever else belongs to the table run with the owner's rights, deferred ones included.

The body uses PostgreSQL's own operators, functions and types by name, and sets no search path, which the owner's
triggers would see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection

from lapse.engines import keep_last
from lapse.engines.action import Delete, Rows
from lapse.engines.base import BoundPolicy
from lapse.engines.postgres import archive, condition, ledger_keys, reads, session
from lapse.engines.postgres.inspect import rows, together
from lapse.engines.postgres.names import (
    ALLOW_POLICY,
    BATCH_FUNCTION,
    CATALOG_SCHEMA,
    HIDE_POLICY,
    INSERT_TRIGGER,
    UPDATE_TRIGGER,
    literal,
    quote,
    relation,
)
from lapse.engines.postgres.reads import Parts, Read
from lapse.engines.values import Stray
from lapse.errors import Drift, NotPermitted
from lapse.model.table import MANAGED_COLUMN, Table, TableName

ROW = "lapse_row"
ARGUMENTS = "text, oid, timestamptz[], text[], bigint[], text[], oid[]"
_SIGNATURE = (
    "op pg_catalog.text, part pg_catalog.oid, cutoffs pg_catalog.timestamptz[], thresholds pg_catalog.text[],"
    " numbers pg_catalog.int8[], places pg_catalog.text[], holding pg_catalog.oid[]"
)


def _stamping(table: str) -> str:
    """SQL: a digest of what stamps the managed column of a table: its default and Lapse's triggers, enabled or not."""
    equal = "OPERATOR(pg_catalog.=)"
    names = f"ARRAY[{literal(INSERT_TRIGGER)}, {literal(UPDATE_TRIGGER)}]::pg_catalog.name[]"
    each = "pg_catalog.concat_ws('/', t.tgname, t.tgenabled, t.tgfoid, t.tgqual, pg_catalog.encode(t.tgargs, 'hex'))"
    triggers = (
        f"SELECT pg_catalog.string_agg({each}, ',' ORDER BY t.tgname) FROM pg_catalog.pg_trigger t"
        f" WHERE t.tgrelid {equal} {table} AND t.tgname {equal} ANY ({names})"
    )
    default = (
        "SELECT d.adbin::pg_catalog.text FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_attribute a"
        f" ON a.attrelid {equal} d.adrelid AND a.attnum {equal} d.adnum"
        f" WHERE d.adrelid {equal} {table} AND a.attname {equal} {literal(MANAGED_COLUMN)}::pg_catalog.name"
    )
    return f"pg_catalog.md5(pg_catalog.concat_ws(',', ({triggers}), ({default})))"


_SHAPE = """
    SELECT c.oid, {stamping} AS stamping, pg_catalog.pg_get_userbyid(c.relowner) AS owner,
           n.nspname AS schema, c.relname AS table,
           c.relowner = k.nspowner AS keeps_catalog,
           pg_catalog.pg_get_userbyid(c.relowner) = current_user AS is_mine,
           ARRAY(SELECT pg_catalog.format('%%s %%s %%s', a.attnum, a.atttypid, a.attname)
                   FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attname = ANY (%(columns)s::text[]) AND NOT a.attisdropped
                  ORDER BY a.attnum) AS columns,
           p.oid AS function, f.nspname AS function_schema, pg_catalog.pg_get_userbyid(p.proowner) AS function_owner,
           p.prosrc AS source, p.prosecdef AS definer,
           pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE') AS is_open
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_catalog.pg_namespace k ON k.nspname = %(catalog)s
      LEFT JOIN (pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace f ON f.oid = p.pronamespace)
        ON p.proname = %(prefix)s || c.oid AND p.pronargs = 7
       AND (p.proowner = c.relowner OR f.oid = c.relnamespace OR f.nspname = %(catalog)s)
     WHERE c.oid = pg_catalog.to_regclass(%(name)s)
     ORDER BY p.proowner = c.relowner DESC, p.oid LIMIT 1"""

_ORPHANS = """
    SELECT p.oid::regprocedure::text AS name
      FROM pg_catalog.pg_proc p
     WHERE p.proname ~ '^lapse_ttl_(stamp_)?[0-9]{1,10}$' AND p.pronargs IN (0, 7)
       AND (p.prosrc LIKE '-- lapse: %%' OR p.prosrc = %(stamping)s)
       AND pg_catalog.pg_has_role(p.proowner, 'USAGE')
       AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class c
                        WHERE c.oid = pg_catalog.regexp_replace(p.proname, '^.*_', '')::bigint)"""


_LEFT = f"""
    SELECT p.oid, p.oid::regprocedure::text AS name, c.relname AS table, n.nspname AS schema
      FROM pg_catalog.pg_proc p
      JOIN pg_catalog.pg_class c ON p.proname = '{BATCH_FUNCTION}' || c.oid AND c.relowner = p.proowner
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE p.prosecdef AND p.pronargs = 7 AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
       AND NOT EXISTS (SELECT 1 FROM {CATALOG_SCHEMA}.lapse_policy y
                        WHERE y.schema_name = n.nspname AND y.table_name = c.relname)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmedTable:
    """A table as the function knows it, and the function that is there. `columns` are `number type name`, by oids;
    `stamping` is a digest of what stamps the managed column, where a policy has one; `archive` of where its rows go,
    where they go anywhere; `is_mine` where the table is this role's own."""

    oid: int
    owner: str
    schema: str
    table: str
    keeps_catalog: bool
    is_mine: bool
    columns: tuple[str, ...]
    stamping: str
    archive: str
    function: int | None
    function_schema: str | None
    function_owner: str | None
    source: str | None
    definer: bool | None
    is_open: bool | None

    @property
    def name(self) -> str:
        """Where the function is, or would be made: the owner of the catalog keeps it there, any other owner beside the
        table, as a schema in which every owner may create things is one in which names can be taken."""
        schema = self.function_schema or (CATALOG_SCHEMA if self.keeps_catalog else self.schema)
        return f"{quote(schema)}.{quote(f'{BATCH_FUNCTION}{self.oid}')}"

    @property
    def is_sound(self) -> bool:
        return self.function is not None and self.function_owner == self.owner and bool(self.definer)


def shape(connection: Connection, declared: BoundPolicy) -> ArmedTable:
    columns = {name for each in _by_partition(declared).values() for name in each.columns_read}
    columns |= set(ledger_keys.columns(declared))
    managed = declared.policy.expire_after is not None
    found = shape_of(connection, declared.table.name, sorted(columns), managed=managed)
    if declared.policy.archive is None:
        return found
    return replace(found, archive=archive.digest(connection, declared))


def shape_of(
    connection: Connection, name: TableName, columns: Sequence[str] = (), *, managed: bool = False
) -> ArmedTable:
    whole = replace(name, partition=None, partition_schema=None)
    values = {
        "columns": list(columns),
        "catalog": CATALOG_SCHEMA,
        "prefix": BATCH_FUNCTION,
        "name": relation(whole),
    }
    query = _SHAPE.format(stamping=_stamping("c.oid") if managed else "''")
    (found,) = together(connection, (query, values))
    for row in found:
        return ArmedTable(**{**row, "columns": tuple(row["columns"]), "archive": ""})
    raise Drift(f"table {whole} does not exist any more")


def install(connection: Connection, declared: BoundPolicy) -> None:
    """Make the function what the policy needs, owned by the table's owner; nothing where it is."""
    found = shape(connection, declared)
    wanted = source(declared, found)
    if not is_missing(found, wanted):
        return
    name, owner = found.name, quote(found.owner)
    # What its owner has not made itself is made anew: its ACL would be another's.
    if found.function is not None and not found.is_sound:
        connection.exec_driver_sql(f"DROP FUNCTION {name}({ARGUMENTS})")
    session.send(
        connection,
        f"CREATE OR REPLACE FUNCTION {name}({_SIGNATURE}) RETURNS pg_catalog.jsonb LANGUAGE plpgsql"
        f" SECURITY DEFINER AS {literal(wanted)};"
        f"REVOKE ALL ON FUNCTION {name}({ARGUMENTS}) FROM PUBLIC",
    )
    if not found.is_mine:
        connection.exec_driver_sql(f"ALTER FUNCTION {name}({ARGUMENTS}) OWNER TO {owner}")


def explained(error: NotPermitted, declared: BoundPolicy) -> NotPermitted:
    """Why the function of a table could not be made."""
    return NotPermitted(
        f"the batch function of table {declared.table.name} cannot be made: {error.message}",
        hint="declare the policy as the table's owner, who needs CREATE on the table's schema",
    )


def drop(connection: Connection, table: Table) -> None:
    found = shape_of(connection, table.name)
    if found.function is not None:
        connection.exec_driver_sql(f"DROP FUNCTION {found.name}({ARGUMENTS})")


def drop_orphans(connection: Connection, stamping: str) -> None:
    """Functions of tables that are gone, as far as this role may act for their owners; `stamping` is the source of
    those that stamp a managed column."""
    for row in rows(connection, _ORPHANS, {"stamping": stamping}):
        connection.exec_driver_sql(f"DROP FUNCTION {row['name']}")


def strays(connection: Connection) -> list[Stray]:
    """Functions of tables that have no policy any more, which their owners drop."""
    if connection.exec_driver_sql(f"SELECT pg_catalog.to_regclass('{CATALOG_SCHEMA}.lapse_policy')").scalar() is None:
        return []
    return [
        Stray(
            id=row["oid"],
            table=TableName(str(row["table"]), str(row["schema"])),
            text=f"the batch function {row['name']} is still there, and the table has no policy any more",
            fix=f"DROP FUNCTION {row['name']};",
        )
        for row in rows(connection, _LEFT, {})
    ]


def missing_parts(connection: Connection, declared: BoundPolicy) -> list[str]:
    found = shape(connection, declared)
    if not is_missing(found, source(declared, found)):
        return []
    return [f"batch function {found.name}"]


def is_missing(found: ArmedTable, wanted: str) -> bool:
    return not found.is_sound or found.source != wanted or bool(found.is_open)


def _by_partition(declared: BoundPolicy) -> dict[str | None, BoundPolicy]:
    """The policy as it holds for partitions with rules of their own, and for the rest."""
    policy = declared.policy
    found: dict[str | None, BoundPolicy] = {}
    for rule in policy.partitions:
        found[rule.partition] = replace(declared, policy=policy.for_partition(rule.partition))
    return found | {None: declared}


def source(declared: BoundPolicy, found: ArmedTable) -> str:
    parts = Parts(
        table="%1$s", expired="%2$s", expiry="%3$s", column="%4$s", buckets="%5$s", limit="%6$s", sample="%7$s"
    )
    statements = "".join(
        f"    {'IF' if number == 0 else 'ELSIF'} op OPERATOR(pg_catalog.=) {literal(read)} THEN\n"
        f"        template := {literal(reads.statement(read, parts))};\n"
        for number, read in enumerate(Read)
    )
    moves = declared.policy.archive is not None
    job = "%7$s" if moves else ""
    sweep = _delete(f"ctid {_op('>=')} %3$L::{_TID} AND {ROW}.ctid {_op('<')} %4$L::{_TID}")
    drops = declared.policy.partition_drop and declared.is_time_alone
    keyed = declared.policy.ledger_keys
    hashes = ledger_keys.packed(declared) if keyed else ""
    beside = ledger_keys.beside(declared, found.schema, found.table) if keyed else ""
    secret = ledger_keys.secret_id(found.schema, found.table) if keyed else ""
    if keyed:
        kept = f", kept AS ({archive.insert(declared, job)} RETURNING 1)" if moves else ""
        count = f"(SELECT pg_catalog.count(*) FROM {'kept' if moves else 'gone'})"
        sweep = f"WITH gone AS ({sweep} RETURNING {_returned(declared)}){kept}{beside} SELECT {count}, {hashes}"
    elif moves:
        sweep = f"WITH gone AS ({sweep} RETURNING {_returned(declared)}) {archive.insert(declared, job)}"
    return _text("batch.sql").format(
        archived=archive.lock_and_check(declared, found.archive, found.oid)
        + ledger_keys.check(declared, found.schema, found.table),
        swept=" INTO STRICT gone, listed" if keyed else "",
        tallied="" if keyed else "        GET DIAGNOSTICS gone = ROW_COUNT;\n",
        noted=f", 'keys', listed, 'secret', {secret.replace('%%', '%')}" if keyed else "",
        keyed=_inside(f", 'keys', {hashes}, 'secret', {secret}") if keyed else "",
        beside=_inside(beside),
        job=f", {_JOB}" if moves else "",
        kept=", kept AS (%s)" if moves else "",
        counted="kept" if moves else "gone",
        insert=f", pg_catalog.format({literal(archive.insert(declared, '%1$s') + ' RETURNING 1')}, {_JOB})"
        if moves
        else "",
        marks=" ".join(_marks(declared)),
        root=found.oid,
        name=f"{quote(found.schema)}.{quote(found.table)}",
        armed=_armed(declared, found),
        ours=f"ARRAY[{literal(HIDE_POLICY)}, {literal(ALLOW_POLICY)}]::pg_catalog.name[]",
        served=_served(declared, found),
        rules=_rules(declared),
        reads=statements,
        sweep=literal(sweep),
        delete=literal(_delete(f"ctid {_op('=')} ANY (%3$s)") + f" RETURNING {_returned(declared)}"),
        sample=literal(reads.tablesample("%s")),
        judged=_judged(declared),
        unjudged=" AND FALSE" if declared.policy.keep_last else "",
        unswept=" AND FALSE" if declared.policy.keep_last else "",
        drops="true" if drops else "false",
        empty=_text("empty.sql") if drops and declared.policy.row_by_row else "",
        emptied=_EMPTIED if drops and declared.policy.row_by_row else "",
    )


_EMPTIED = """\
        -- Counted again where no other session can write to it any more, and every row that was committed is seen.
        EXECUTE pg_catalog.format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', target);
        EXECUTE pg_catalog.format('SELECT pg_catalog.count(*) FROM ONLY %s', target) INTO STRICT gone;
        IF gone OPERATOR(pg_catalog.<>) 0 OR pg_catalog.row_security_active(part) THEN
            RAISE EXCEPTION USING ERRCODE = '2BP01',
                MESSAGE = pg_catalog.format('%s has %s rows, which are to go one by one', target, gone);
        END IF;
"""
"""Before the DROP, where each row is needed when it goes; see `empty.sql`."""


def _returned(declared: BoundPolicy) -> str:
    """What a DELETE tells about the rows that are gone: all that an archive or the ledger keeps of them."""
    if declared.policy.ledger_keys and declared.policy.archive is None:
        return ledger_keys.returning(declared, ROW)
    return archive.returning(declared, ROW)


def _inside(sql: str) -> str:
    """A part of a text that is itself quoted."""
    return sql.replace("'", "''")


def _marks(declared: BoundPolicy) -> list[str]:
    """What rows expire by: in the whole table, and in partitions with rules of their own."""
    return [
        condition.mark(each) if name is None else f"{condition.partition_mark(name)}={condition.mark(each)}"
        for name, each in _by_partition(declared).items()
    ]


def _judged(declared: BoundPolicy) -> str:
    """What a batch with `ttl_keep_last` does before it deletes; nothing for any other policy."""
    if declared.policy.keep_last is None:
        return ""
    return _text("keep_last.sql").format(surplus=literal(condition.lasting_surplus(declared, ROW)))


@cache
def _text(name: str) -> str:
    return files("lapse.engines.postgres").joinpath(name).read_text(encoding="utf-8")


def _delete(bound: str) -> str:
    """A template: %1$s the table, %2$s the condition, %5$s the table's oid, %6$s what else must hold.

    A table that has taken this name since has another oid, and loses no row.
    """
    extra = f"({ROW}.tableoid {_op('=')} %5$s) %6$s"
    rows = Rows(table=f"ONLY %1$s AS {ROW}", condition="(%2$s) IS TRUE", bound=f"{ROW}.{bound}", extra=extra)
    # One statement: a batch lists, deletes and counts in the same one.
    (statement,) = Delete().statements(rows)
    return statement


def _armed(declared: BoundPolicy, found: ArmedTable) -> str:
    """SQL: has the table its name, and the table and its partition `part` the columns that the policy reads, of the
    same number and type, and is a managed column stamped as it was?"""
    known = [column.split(" ", 2) for column in found.columns]

    def has(oid: str, *, by_number: bool) -> str:
        each = (
            f"(a.attname {_op('=')} {literal(name)}::pg_catalog.name AND a.atttypid {_op('=')} {kind}"
            + (f" AND a.attnum {_op('=')} {number})" if by_number else ")")
            for number, kind, name in known
        )
        return (
            f"((SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid {_op('=')} {oid}"
            f" AND NOT a.attisdropped AND ({' OR '.join(each)})) {_op('=')} {len(known)})"
        )

    root = str(found.oid)
    below = f"EXISTS (SELECT 1 FROM pg_catalog.pg_partition_ancestors(part) above WHERE above.relid {_op('=')} {root})"
    # A table that was renamed away is no longer what the policy is for, whatever takes its name.
    named = (
        "EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
        f" ON n.oid {_op('=')} c.relnamespace WHERE c.oid {_op('=')} {root}"
        f" AND c.relname {_op('=')} {literal(found.table)}::pg_catalog.name"
        f" AND n.nspname {_op('=')} {literal(found.schema)}::pg_catalog.name)"
    )
    stamped = f" AND {_stamping(root)} {_op('=')} {literal(found.stamping)}" if declared.policy.expire_after else ""
    return (
        f"({named} AND {has(root, by_number=True)}{stamped}"
        f" AND (part {_op('=')} {root} OR ({below} AND {has('part', by_number=False)})))"
    )


def _served(declared: BoundPolicy, found: ArmedTable) -> str:
    """PL/pgSQL: without its index, ttl_keep_last would look through the whole table for each row."""
    kept = keep_last.kept(declared)
    if kept is None:
        return ""
    numbers = {name: number for number, _, name in (column.split(" ", 2) for column in found.columns)}
    by, order = ([numbers[name] for name in names] for names in (kept.by, kept.order))
    groups = len(by)
    key, last = "(i.indkey::pg_catalog.int2[])", groups + len(order) - 1
    led = f" AND {key}[0:{groups - 1}] {_op('@>')} {_int2s(by)}" if by else ""
    columns = ", ".join(kept.index_columns)
    return (
        "    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_index i WHERE i.indisvalid AND"
        f" i.indrelid {_op('=')} part{led} AND {key}[{groups}:{last}] {_op('=')} {_int2s(order)}) THEN\n"
        "        RAISE EXCEPTION USING ERRCODE = 'LT005', MESSAGE ="
        f" {literal(f'no index on ({columns}) serves ttl_keep_last any more')};\n"
        "    END IF;\n"
    )


def _int2s(numbers: Sequence[str]) -> str:
    return f"ARRAY[{', '.join(numbers)}]::pg_catalog.int2[]"


def _op(operator: str) -> str:
    return f"OPERATOR(pg_catalog.{operator})"


_TID = "pg_catalog.tid"
_JOB = "coalesce(numbers[3], 0)"


def _rules(declared: BoundPolicy) -> str:
    """PL/pgSQL: the condition at a cutoff, the expiry and the column, by the partition's name."""
    branches: list[str] = []
    for name, each in _by_partition(declared).items():
        made = condition.template(each)
        then = (
            "            IF deletes THEN\n"
            f"                bound := {made.bound};\n"
            f"                condition := pg_catalog.format({literal(made.strict)}, bound, moment);\n"
            "            ELSE\n"
            f"                condition := pg_catalog.format({literal(made.sql)}, bound, moment);\n"
            "            END IF;\n"
            f"            expiry := pg_catalog.format({literal(made.instant)}, bound, moment);\n"
            f"            key := {literal(quote(made.column)) if made.column else 'NULL'};\n"
            f"            field := {literal(made.column) if made.column else 'NULL'};\n"
            f"            kind := {literal(made.type) if made.type else 'NULL'};\n"
        )
        if name is not None:
            case = "ELSIF" if branches else "IF"
            then = f"        {case} leaf {_op('=')} {literal(name)}::pg_catalog.name THEN\n{then}"
        elif branches:
            then = f"        ELSE\n{then}"
        branches.append(then)
    return "".join(branches) + ("        END IF;\n" if len(branches) > 1 else "")
