"""Keys of deleted rows on PostgreSQL: the table's owner has the secret, and the owner's batch function hashes.

A worker gets hashes, which it writes down, and sees neither keys nor the secret, which row security shows to the owner
alone. The secret is in no text of a statement: errors and logs would repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import BoundPolicy
from lapse.engines.ledger_keys import HEX, from_hex, refuse_other_width
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import CATALOG_SCHEMA, literal, quote, relation
from lapse.errors import InvalidValue, Unsupported
from lapse.model.ledger_keys import HASH_BYTES, NEIGHBOURS, NEIGHBOURS_BITS, AskedKey, Noted
from lapse.model.table import Column, Table, TableName

_SECRETS = f"{CATALOG_SCHEMA}.lapse_secret"
_JOIN = "OPERATOR(pg_catalog.||)"
_VALUE = "(SELECT value FROM hidden)"
MARK = "by neighbours "
"""Before what the batch function tells of keys that are kept so."""
_NUMBER = "pg_catalog.int8send(({0})::pg_catalog.int8)"
_AS_TEXT = "pg_catalog.convert_to({0}, 'UTF8')"
_WRITTEN = {
    **dict.fromkeys(("smallint", "integer", "bigint"), _NUMBER),
    "uuid": "pg_catalog.uuid_send({0})",
    "bytea": "({0})",
    **dict.fromkeys(("text", "character varying", "character", "boolean"), _AS_TEXT.format("({0})::pg_catalog.text")),
    "numeric": _AS_TEXT.format("pg_catalog.trim_scale({0})::pg_catalog.text"),
    "date": _AS_TEXT.format("pg_catalog.to_char(({0})::pg_catalog.timestamp, 'YYYY-MM-DD BC')"),
    "timestamp without time zone": _AS_TEXT.format("pg_catalog.to_char({0}, 'YYYY-MM-DD HH24:MI:SS.US BC')"),
    "timestamp with time zone": _AS_TEXT.format(
        "pg_catalog.to_char(pg_catalog.timezone('UTC', {0}), 'YYYY-MM-DD HH24:MI:SS.US BC')"
    ),
}
"""Type → its values as bytes, the same whatever the settings of the session are. The usual types are as the server has
them: that is what hashing a row costs, beside the hash."""
_OTHER = _AS_TEXT.format("({0})::pg_catalog.text")

_OWNER = """
    SELECT pg_catalog.pg_get_userbyid(c.relowner) AS owner,
           pg_catalog.has_schema_privilege(c.relowner, n.oid, 'USAGE')
             AND pg_catalog.has_table_privilege(c.relowner, s.oid, 'SELECT') AS may
      FROM pg_catalog.pg_class c, pg_catalog.pg_namespace n JOIN pg_catalog.pg_class s ON s.relnamespace = n.oid
     WHERE c.oid = pg_catalog.to_regclass(%(name)s) AND n.nspname = %(schema)s AND s.relname = 'lapse_secret'"""

_MAKE = f"""
    INSERT INTO {_SECRETS} (role_name, schema_name, table_name, value)
    SELECT %(owner)s::text, %(schema)s::text, %(table)s::text,
           pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) || pg_catalog.uuid_send(pg_catalog.gen_random_uuid())
     WHERE NOT EXISTS (SELECT 1 FROM {_SECRETS} s
                        WHERE s.role_name = %(owner)s::text AND s.schema_name = %(schema)s::text
                          AND s.table_name = %(table)s::text)"""


def can_be_told(column: Column) -> bool:
    return _kind(column) in _WRITTEN


def columns(declared: BoundPolicy) -> tuple[str, ...]:
    """Those that the batch function reads for the keys."""
    return declared.table.primary_key if declared.policy.ledger_keys else ()


def install(connection: Connection, declared: BoundPolicy) -> None:
    """Make the secret of a table, for its owner. The server draws it, so that no log of statements has it."""
    if not declared.policy.ledger_keys:
        return
    name = declared.table.name.whole
    (found,) = rows(connection, _OWNER, {"name": relation(name), "schema": CATALOG_SCHEMA})
    owner = str(found["owner"])
    if not found["may"]:
        raise Unsupported(
            f"{owner}, the owner of table {name}, hashes the keys of deleted rows and may not read its secret",
            hint=f"GRANT USAGE ON SCHEMA {CATALOG_SCHEMA} TO {quote(owner)};"
            f" GRANT SELECT ON {_SECRETS} TO {quote(owner)};",
        )
    connection.exec_driver_sql(_MAKE, {"owner": owner, "schema": name.schema, "table": name.name})


def asked(connection: Connection, table: Table, values: Sequence[str]) -> AskedKey:
    refuse_other_width(table, values)
    pairs = zip(table.primary_key, values, strict=True)
    written = _together([_asked(connection, table, name, value) for name, value in pairs])
    number = int.from_bytes(written, "big", signed=True) if _is_number(table) else None
    return AskedKey(written=written, number=number)


def _asked(connection: Connection, table: Table, name: str, value: str) -> bytes:
    column = table.column(name)
    assert column is not None
    kind = _kind(column)
    if kind == "bytea" and value.startswith(HEX):
        value = HEX[0] + value[2:]
    written = _WRITTEN.get(kind, _OTHER).format(f"%(value)s::{column.type}")
    try:
        found = connection.exec_driver_sql(f"SELECT {written}", {"value": value}).scalar_one()
    except DBAPIError as error:
        raise InvalidValue("--key", value, f"is no {column.type}, which column {name} is") from error
    return bytes(found)


def guessed(values: Sequence[str]) -> list[AskedKey]:
    number = None
    with suppress(ValueError):
        number = int(values[0]) if len(values) == 1 else None
    first, *rest = [_together(parts) for parts in product(*map(_guessed, values))]
    return [AskedKey(written=first, number=number), *(AskedKey(written=each) for each in rest)]


def _guessed(value: str) -> list[bytes]:
    """As text, and as each type that it could be a value of."""
    found = [value.encode()]
    if value.startswith(HEX):
        found.append(from_hex(value, "the key"))
    with suppress(ValueError, OverflowError):
        found.append(int(value).to_bytes(8, "big", signed=True))
    with suppress(ValueError):
        found.append(UUID(value).bytes)
    return found


def _together(parts: Sequence[bytes]) -> bytes:
    """One part as it is; several with their lengths before them, so that no two keys are the same bytes."""
    if len(parts) == 1:
        return parts[0]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


# In the batch function


def check(declared: BoundPolicy, schema: str, table: str) -> str:
    """PL/pgSQL for a batch that deletes; nothing where keys are not recorded."""
    if not declared.policy.ledger_keys:
        return ""
    name = TableName(table, schema)
    refuse = "        RAISE EXCEPTION USING ERRCODE = 'LT006', MESSAGE = {};\n"
    if not declared.table.primary_key:
        told = literal(f"table {name} has no primary key any more, which ttl_ledger_keys records")
        return f"    IF locks THEN\n{refuse.format(told)}    END IF;\n"
    told = literal(f"the secret with which keys of table {name} are hashed is gone")
    return f"    IF locks AND {_secret('secret_id', schema, table)} IS NULL THEN\n{refuse.format(told)}    END IF;\n"


def returning(declared: BoundPolicy, row: str) -> str:
    """What a DELETE of a batch returns where rows are not archived. In a template of `format`."""
    return ", ".join(f"{row}.{quote(name)}" for name in declared.table.primary_key).replace("%", "%%") or "1"


def beside(declared: BoundPolicy, schema: str, table: str) -> str:
    """SQL: what `packed` reads beside `gone`, as more parts of its WITH. In a template of `format`."""
    # Read once, as row security takes its time; a salt of its own for each batch.
    salt = "pg_catalog.uuid_send(pg_catalog.gen_random_uuid())"
    hidden = f", hidden AS MATERIALIZED (SELECT {_secret('value', schema, table)} AS value, {salt} AS salt)"
    if not _is_number(declared.table):
        return hidden.replace("%", "%%")
    (name,) = declared.table.primary_key
    number = f"(gone.{quote(name)})::pg_catalog.int8"
    neighbours = (
        f"SELECT {number} OPERATOR(pg_catalog.>>) {NEIGHBOURS_BITS} AS number,"
        f" pg_catalog.bit_or(1::pg_catalog.int8 OPERATOR(pg_catalog.<<)"
        f" ({number} OPERATOR(pg_catalog.&) {NEIGHBOURS - 1})::pg_catalog.int4) AS which FROM gone GROUP BY 1"
    )
    return f"{hidden}, neighbours AS MATERIALIZED ({neighbours})".replace("%", "%%")


def packed(declared: BoundPolicy) -> str:
    """SQL: what is kept of the keys that `gone` returns, in hexadecimal, after a mark where that is by neighbours. In a
    template of `format`."""
    parts = [_part(declared.table, name) for name in declared.table.primary_key]
    if len(parts) > 1:
        parts = [f"pg_catalog.int4send(pg_catalog.length({part})) {_JOIN} {part}" for part in parts]
    digest = f"pg_catalog.sha256({f' {_JOIN} '.join([_VALUE, *parts])})"
    each = f"(SELECT pg_catalog.encode({_end_to_end(_first(digest))}, 'hex') FROM gone)"
    if _is_number(declared.table):
        # Of the two only the one that is wanted is computed.
        many = (
            "(SELECT pg_catalog.count(*) FROM neighbours) OPERATOR(pg_catalog.*) 2"
            " OPERATOR(pg_catalog.<=) (SELECT pg_catalog.count(*) FROM gone)"
        )
        each = f"CASE WHEN {many} THEN {_by_neighbours()} ELSE {each} END"
    return each.replace("%", "%%")


def _by_neighbours() -> str:
    salt = "(SELECT salt FROM hidden)"
    hashed = f"pg_catalog.sha256({_VALUE} {_JOIN} {salt} {_JOIN} pg_catalog.int8send(number))"
    hides = (
        "('x' OPERATOR(pg_catalog.||) pg_catalog.encode("
        f"pg_catalog.substr(hashed, {HASH_BYTES + 1}, {NEIGHBOURS // 8}), 'hex'))"
        f"::pg_catalog.bit({NEIGHBOURS})::pg_catalog.int8"
    )
    record = f"{_first('hashed')} {_JOIN} pg_catalog.int8send(which OPERATOR(pg_catalog.#) {hides})"
    told = f"pg_catalog.encode({salt} {_JOIN} {_end_to_end(record)}, 'hex')"
    return (
        f"(SELECT {literal(MARK)} OPERATOR(pg_catalog.||) {told}"
        # Otherwise the server would hash as often as the hash is used.
        f" FROM (SELECT {hashed} AS hashed, which FROM neighbours OFFSET 0) records)"
    )


def _first(digest: str) -> str:
    return f"pg_catalog.substr({digest}, 1, {HASH_BYTES})"


def _end_to_end(hashes: str) -> str:
    return f"pg_catalog.string_agg({hashes}, ''::pg_catalog.bytea)"


def noted(secret: int, keys: str, rows: int) -> Noted:
    """What `packed` has told about the keys of so many rows."""
    hashes = bytes.fromhex(keys.removeprefix(MARK))
    return Noted(secret=secret, rows=rows, hashes=hashes, grouped=keys.startswith(MARK))


def secret_id(schema: str, table: str) -> str:
    """SQL, in a template of `format`."""
    return _secret("secret_id", schema, table).replace("%", "%%")


def _secret(column: str, schema: str, table: str) -> str:
    equal = "OPERATOR(pg_catalog.=)"
    return (
        f"(SELECT s.{column} FROM {_SECRETS} s WHERE s.role_name {equal} CURRENT_USER::pg_catalog.text"
        f" AND s.schema_name {equal} {literal(schema)} AND s.table_name {equal} {literal(table)})"
    )


def _part(table: Table, name: str) -> str:
    column = table.column(name)
    assert column is not None
    return _WRITTEN.get(_kind(column), _OTHER).format(f"gone.{quote(name)}")


def _is_number(table: Table) -> bool:
    columns = [table.column(name) for name in table.primary_key]
    return len(columns) == 1 and columns[0] is not None and _WRITTEN.get(_kind(columns[0])) == _NUMBER


def _kind(column: Column) -> str:
    """The name of a type, without what is in parentheses."""
    return re.sub(r"\([^)]*\)", "", column.type.lower())
