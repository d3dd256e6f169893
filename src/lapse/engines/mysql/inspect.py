"""Read a table's shape from the information schema."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Footprint
from lapse.engines.mysql import keys, myrocks
from lapse.engines.mysql.keys import ROW_ID, Walk
from lapse.engines.mysql.names import qualified
from lapse.engines.mysql.session import is_own, is_tidb
from lapse.engines.values import TableComment
from lapse.errors import TableNotFound, Unsupported
from lapse.model.table import (
    CATALOG_TABLES,
    REQUEST_TABLE,
    Column,
    FkAction,
    Index,
    Reference,
    Table,
    TableKind,
    TableName,
)

_KINDS = {
    "BASE TABLE": TableKind.TABLE,
    "SYSTEM VERSIONED": TableKind.TABLE,
    "VIEW": TableKind.VIEW,
    "TEMPORARY": TableKind.TEMPORARY,
}
_FOREIGN_KEYS = "lapse_foreign_keys"
"""In a connection's info: may InnoDB's list of foreign keys be read?"""
_PLAIN = re.compile(r"[A-Za-z0-9_]+")
_SYSTEM_SCHEMAS = ("information_schema", "performance_schema", "mysql", "sys")
MANY = 20
"""Tables that are worth reading what there is of a whole schema, unless it has `SPARSE` times as many."""
SPARSE = 4
_OF_TABLE = "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_PARTITIONS = (
    "SELECT TABLE_NAME, coalesce(SUBPARTITION_NAME, PARTITION_NAME) AS name FROM information_schema.PARTITIONS"
    f" {_OF_TABLE} AND PARTITION_NAME IS NOT NULL ORDER BY PARTITION_ORDINAL_POSITION, SUBPARTITION_ORDINAL_POSITION"
)
_COLUMNS = (
    "SELECT TABLE_NAME, COLUMN_NAME AS name, ORDINAL_POSITION AS position, COLUMN_TYPE AS type,"
    " DATA_TYPE AS plain_type, CHARACTER_SET_NAME AS charset, COLLATION_NAME AS collation_name,"
    " IS_NULLABLE AS nullable, EXTRA AS extra"
    f" FROM information_schema.COLUMNS {_OF_TABLE} ORDER BY ORDINAL_POSITION"
)

OWN_TABLES = CATALOG_TABLES | {REQUEST_TABLE}


_OF_THE_MOMENT = (
    ", utc_timestamp(6) AS at, CREATE_TIME AS born, TABLE_ROWS AS row_count, DATA_LENGTH + INDEX_LENGTH AS bytes"
)


def _tables(connection: Connection, more: str = "") -> str:
    """The query for the tables of a schema."""
    stored_by = "TIDB_PK_TYPE" if is_tidb(connection) else "NULL"
    return (
        "SELECT TABLE_SCHEMA AS `schema`, TABLE_NAME AS name, TABLE_TYPE AS type, TABLE_COMMENT AS comment,"
        f" ENGINE AS engine, CREATE_OPTIONS AS options, {stored_by} AS stored_by{more}"
        " FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
    )


def _indexes_sql(connection: Connection) -> str:
    unused = "IGNORED = 'YES'" if _is_mariadb(connection) else "IS_VISIBLE = 'NO'"
    return (
        "SELECT TABLE_NAME, INDEX_NAME AS name, COLUMN_NAME AS `column`, NON_UNIQUE AS non_unique, SUB_PART AS prefix,"
        f" NULLABLE AS nullable, INDEX_TYPE AS type, COLLATION AS direction, {unused} AS ignored"
        f" FROM information_schema.STATISTICS {_OF_TABLE} ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """A table as it was described, and what else the same statements have told of it."""

    table: Table
    at: str
    """When the first of them was executed, by the server's clock. What it told comes before what the others did."""
    born: str | None
    """When the table was made, or last altered."""
    size: Footprint
    columns: Sequence[tuple[str, int, str]]
    """Name, position and type. Read last."""
    walk: Walk | None
    """Along the table's key; None where there is none, or none that can be walked along."""
    history: tuple[int, Mapping[str, int]] | None = None
    """Of the server, where it was asked for before all of it."""


def describe(connection: Connection, name: TableName) -> Table:
    """`name.schema` of the result is None for the connection's own database."""
    return look(connection, name).table


def look(connection: Connection, name: TableName) -> Sight:
    own = current_database(connection)
    tables = f"{_tables(connection, _OF_THE_MOMENT)} AND TABLE_NAME = %s"
    found = _rows(connection, tables, name.schema or own, name.name)
    if not found:
        raise TableNotFound(f"there is no table {name} in this database")
    row = found[0]
    schema, table = row["schema"], row["name"]
    partitions = _rows(connection, _PARTITIONS, schema, table) if _may_have_partitions(connection, row) else []
    indexes = _rows(connection, _indexes_sql(connection), schema, table)
    references = _references(connection, schema, table, own)
    columns = _rows(connection, _COLUMNS, schema, table)
    described = _table(
        own,
        {**row, "type": "TEMPORARY" if _is_hidden(connection, schema, table) else row["type"]},
        partitions=partitions,
        indexes=indexes,
        columns=columns,
        references=references,
    )
    return Sight(
        table=described,
        at=row["at"].isoformat(),
        born=None if row["born"] is None else row["born"].isoformat(),
        size=Footprint(rows=whole(row["row_count"]), bytes=whole(row["bytes"])),
        columns=[(each["name"], int(each["position"]), text(each["type"])) for each in columns],
        walk=_walk(described, indexes, columns),
    )


def _walk(table: Table, indexes: Iterable[Mapping[str, Any]], columns: Iterable[Mapping[str, Any]]) -> Walk | None:
    if not table.key or table.key == (ROW_ID,):
        return None
    shapes = {each["name"]: each for each in columns}
    try:
        index = key_index(table)
        parts = [
            keys.part({**shapes[part["column"]], "direction": part["direction"]})
            for part in indexes
            if part["name"] == index
        ]
    except (KeyError, StopIteration, Unsupported):
        return None
    return Walk(index=index, parts=tuple(parts))


def describe_all(connection: Connection, names: Collection[TableName]) -> dict[TableName, Table]:
    """Tables of the connection's own database, on a connection that has no temporary ones.

    The server then opens every table of the database, so it is done for many only. Nor are those told that foreign keys
    point at.
    """
    wanted = {name.name for name in names if name.schema is None and name.partition is None and _is_plain(name.name)}
    if len(wanted) < MANY:
        return {}
    own = current_database(connection)
    tables = _rows(connection, _tables(connection), own)
    referenced = _referenced(connection, own)
    if referenced is None or len(tables) > SPARSE * len(wanted):
        return {}
    partitions, indexes, columns = (
        _by_table(_rows(connection, _of_schema(sql), own)) for sql in (_PARTITIONS, _indexes_sql(connection), _COLUMNS)
    )
    return {
        TableName(name): _table(
            own, row, partitions=partitions[name], indexes=indexes[name], columns=columns[name], references=()
        )
        for row in tables
        if (name := row["name"]) in wanted and name.lower() not in referenced
    }


def _by_table(found: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        by_name[row["TABLE_NAME"]].append(row)
    return by_name


def _of_schema(sql: str) -> str:
    """The query for one table as one for all of a schema."""
    return sql.replace(" AND TABLE_NAME = %s", "")


def _table(
    own: str,
    row: Mapping[str, Any],
    *,
    partitions: Sequence[Mapping[str, Any]],
    indexes: Iterable[dict[str, Any]],
    columns: Iterable[Mapping[str, Any]],
    references: tuple[Reference, ...],
) -> Table:
    schema, table = row["schema"], row["name"]
    found, shape = _indexes(indexes), tuple(_column(each) for each in columns)
    storage = str(row["engine"] or "").upper()
    if storage == myrocks.ENGINE and (hidden := myrocks.implicit_column(row["comment"])):
        shape = (*shape, hidden)
    return Table(
        name=TableName(table, None if schema == own else schema),
        kind=_kind(schema, row["type"], bool(partitions), catalog=schema == own and table in OWN_TABLES),
        columns=shape,
        primary_key=found.paging.get("PRIMARY", ()),
        key=(ROW_ID,) if row["stored_by"] == "NONCLUSTERED" else _key(found),
        indexes=found.all,
        referenced_by=references,
        comment=row["comment"] or None,
        partitions=tuple(str(each["name"]) for each in partitions),
        storage=storage,
    )


def _may_have_partitions(connection: Connection, row: Mapping[str, Any]) -> bool:
    """MariaDB and MySQL say so of the table itself; to ask for the partitions takes them much longer."""
    return is_tidb(connection) or "partitioned" in text(row["options"]).lower()


def _is_mariadb(connection: Connection) -> bool:
    return bool(getattr(connection.dialect, "is_mariadb", False))


def full_name(connection: Connection, name: TableName) -> TableName:
    own = current_database(connection)
    found = _rows(
        connection,
        "SELECT TABLE_SCHEMA AS `schema`, TABLE_NAME AS name FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        name.schema or own,
        name.name,
    )
    if not found:
        raise TableNotFound(f"there is no table {name} in this database")
    schema, table = found[0]["schema"], found[0]["name"]
    if _is_hidden(connection, schema, table):
        raise TableNotFound(f"{name} is a temporary table of this session, where no policy can be")
    return TableName(table, None if schema == own else schema)


def _is_hidden(connection: Connection, schema: str, table: str) -> bool:
    """Does this session have a temporary table of that name? Statements then mean that one.

    The information schema does not say so: it knows the other only, or has rows for both. A session of Lapse's own has
    none.
    """
    if is_own(connection) or schema.lower() in _SYSTEM_SCHEMAS:
        return False
    row = connection.exec_driver_sql(f"/* lapse */ SHOW CREATE TABLE {qualified(TableName(table, schema))}").one()
    return text(row[1]).startswith("CREATE TEMPORARY")


def comparable(connection: Connection, name: TableName) -> TableName:
    own, folds = connection.exec_driver_sql("SELECT DATABASE(), @@lower_case_table_names <> 0").one()
    schema = None if name.schema == own else name.schema
    return TableName(name.name.lower(), schema.lower() if schema else None) if folds else TableName(name.name, schema)


def table_names(connection: Connection) -> list[TableName]:
    rows = _rows(
        connection,
        "SELECT TABLE_NAME AS name FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"
        " AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_NAME",
    )
    return [TableName(row["name"]) for row in rows if row["name"] not in OWN_TABLES]


def comments(connection: Connection) -> list[TableComment]:
    rows = _rows(
        connection,
        "SELECT TABLE_NAME AS name, TABLE_COMMENT AS comment, ENGINE AS engine FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
        " AND TABLE_COMMENT <> '' ORDER BY TABLE_NAME",
    )
    return [
        TableComment(
            table=TableName(row["name"]),
            text=row["comment"],
            native=myrocks.ttl_items(row["comment"]) or None if str(row["engine"]).upper() == myrocks.ENGINE else None,
        )
        for row in rows
        if row["name"] not in OWN_TABLES
    ]


_DATABASE = "lapse_database"


def current_database(connection: Connection) -> str:
    """Asked once of a connection of Lapse's own, which stays where it is; a user's goes where USE leads."""
    known = connection.info.get(_DATABASE)
    if known is None:
        known = str(connection.exec_driver_sql("SELECT DATABASE()").scalar_one())
        if is_own(connection):
            connection.info[_DATABASE] = known
    return str(known)


def storage_engine(connection: Connection, name: TableName) -> str:
    """In upper case: INNODB, ROCKSDB, MYISAM."""
    engine = connection.exec_driver_sql(
        "SELECT ENGINE FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = coalesce(%s, DATABASE()) AND TABLE_NAME = %s",
        (name.schema, name.name),
    ).scalar()
    return str(engine or "").upper()


def is_versioned(connection: Connection, name: TableName) -> bool:
    """Does the server keep rows that were deleted as history? MariaDB can."""
    kind = connection.exec_driver_sql(
        "SELECT TABLE_TYPE FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = coalesce(%s, DATABASE()) AND TABLE_NAME = %s",
        (name.schema, name.name),
    ).scalar()
    return kind == "SYSTEM VERSIONED"


def invisible_columns(connection: Connection, name: TableName) -> set[str]:
    """Those that `SELECT *` leaves out."""
    rows = connection.exec_driver_sql(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s AND EXTRA LIKE '%%INVISIBLE%%'",
        (name.schema, name.name),
    )
    return {str(row[0]) for row in rows}


def has_triggers(connection: Connection, name: TableName) -> bool:
    """Does a delete run a trigger? Lapse's own is for updates."""
    found = connection.exec_driver_sql(
        "SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = coalesce(%s, DATABASE())"
        " AND EVENT_OBJECT_TABLE = %s AND EVENT_MANIPULATION = 'DELETE' LIMIT 1",
        (name.schema, name.name),
    )
    return found.first() is not None


class _Indexes:
    """`paging` are unique indexes over whole, not nullable columns, by name."""

    def __init__(self, found: Iterable[tuple[str, list[dict[str, Any]]]]) -> None:
        self.paging: dict[str, tuple[str, ...]] = {}
        indexes = []
        for name, parts in found:
            plain = all(part["column"] is not None and part["prefix"] is None for part in parts)
            usable = plain and parts[0]["type"] == "BTREE" and not parts[0]["ignored"]
            indexes.append(
                Index(
                    name=name,
                    columns=tuple(part["column"] if part["prefix"] is None else None for part in parts),
                    unique=not parts[0]["non_unique"],
                    # Full-text, spatial and hash indexes have no order to walk along; ignored ones may not be named.
                    partial=parts[0]["type"] != "BTREE" or parts[0]["ignored"],
                    ascends=all(part["direction"] == "A" for part in parts),
                )
            )
            if usable and not parts[0]["non_unique"] and not any(part["nullable"] == "YES" for part in parts):
                self.paging[name] = tuple(part["column"] for part in parts)
        self.all = tuple(indexes)


def _indexes(rows: Iterable[dict[str, Any]]) -> _Indexes:
    grouped: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        # MyRocks calls its indexes LSMTREE; they are ordered like a B-tree.
        row["type"] = "BTREE" if row["type"] in ("BTREE", "LSMTREE") else row["type"]
        # TiDB has the number as text.
        row["non_unique"] = int(row["non_unique"])
        grouped[row["name"]].append(row)
    return _Indexes(grouped.items())


def _key(indexes: _Indexes) -> tuple[str, ...]:
    """The primary key, or else the unique key with the fewest columns."""
    if "PRIMARY" in indexes.paging:
        return indexes.paging["PRIMARY"]
    return min(indexes.paging.values(), key=len, default=())


def key_index(table: Table) -> str:
    """The index that `table.key` is taken from; no name where TiDB's own number of a row is the key."""
    if table.key == (ROW_ID,):
        return ""
    if table.primary_key == table.key:
        return "PRIMARY"
    return next(index.name for index in table.indexes if index.unique and index.columns == table.key)


def _column(row: Mapping[str, Any]) -> Column:
    return Column(
        name=row["name"],
        type=text(row["type"]),
        nullable=row["nullable"] == "YES",
        generated="GENERATED" in row["extra"].upper() and "DEFAULT_GENERATED" not in row["extra"].upper(),
    )


def _references(connection: Connection, schema: str, table: str, own: str) -> tuple[Reference, ...]:
    """From tables of the same schema and of the connection's own.

    To look further the server would open every table it has. A foreign key from elsewhere still holds its row, which
    is then found by the delete that fails on it.
    """
    if _is_surely_unreferenced(connection, schema, table):
        return ()
    keys: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for child_schema in dict.fromkeys((schema, own)):
        rows = _rows(
            connection,
            "SELECT k.CONSTRAINT_NAME AS name, k.TABLE_NAME AS child, k.COLUMN_NAME AS `column`,"
            " k.REFERENCED_COLUMN_NAME AS referred, r.DELETE_RULE AS action"
            " FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r"
            " ON r.CONSTRAINT_SCHEMA = %s AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME AND r.TABLE_NAME = k.TABLE_NAME"
            " WHERE k.TABLE_SCHEMA = %s AND k.REFERENCED_TABLE_SCHEMA = %s AND k.REFERENCED_TABLE_NAME = %s"
            " ORDER BY k.TABLE_NAME, k.CONSTRAINT_NAME, k.ORDINAL_POSITION",
            child_schema,
            child_schema,
            schema,
            table,
        )
        for row in rows:
            keys[child_schema, row["child"], row["name"]].append(row)
    return tuple(
        Reference(
            table=TableName(child, None if child_schema == own else child_schema),
            columns=tuple(part["column"] for part in parts),
            referred=tuple(part["referred"] for part in parts),
            action=FkAction(parts[0]["action"]),
            # InnoDB makes an index for every foreign key.
            indexed=True,
        )
        for (child_schema, child, _), parts in keys.items()
    )


def _is_surely_unreferenced(connection: Connection, schema: str, table: str) -> bool:
    """MariaDB opens every table of the schema to tell which foreign keys point at one; InnoDB's own list is at hand.

    False where that list may not be read (it takes PROCESS), is not there, or spells the name in a way of its own.
    """
    if not connection.info.get(_FOREIGN_KEYS, True) or not (_is_plain(schema) and _is_plain(table)):
        return False
    name = f"{schema}/{table}".lower()
    try:
        found = _rows(
            connection,
            "SELECT count(*) AS count FROM information_schema.INNODB_SYS_FOREIGN WHERE lower(REF_NAME) = %s",
            name,
        )
    except DBAPIError:
        connection.info[_FOREIGN_KEYS] = False
        return False
    return int(found[0]["count"]) == 0


def _is_plain(name: str) -> bool:
    """Is it spelled the same in the name of a file?"""
    return _PLAIN.fullmatch(name) is not None


def _referenced(connection: Connection, schema: str) -> set[str] | None:
    """The tables of a schema that foreign keys point at, in lower case; None where InnoDB's list cannot tell."""
    if not connection.info.get(_FOREIGN_KEYS, True) or not _is_plain(schema):
        return None
    try:
        found = _rows(connection, "SELECT REF_NAME AS name FROM information_schema.INNODB_SYS_FOREIGN")
    except DBAPIError:
        connection.info[_FOREIGN_KEYS] = False
        return None
    names = (str(row["name"]).lower().partition("/") for row in found)
    return {table for place, _, table in names if place == schema.lower()}


def _kind(schema: str, kind: str, partitioned: bool, *, catalog: bool) -> TableKind:
    if catalog or schema.lower() in _SYSTEM_SCHEMAS:
        return TableKind.SYSTEM
    found = _KINDS.get(kind, TableKind.SYSTEM)
    return TableKind.PARTITIONED if partitioned and found is TableKind.TABLE else found


def whole(value: Any) -> int | None:
    return None if value is None else int(value)


def text(value: Any) -> str:
    """MySQL 8 returns some columns of its data dictionary as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _rows(connection: Connection, sql: str, *parameters: object) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.exec_driver_sql(f"/* lapse */ {sql}", parameters or None).mappings()]
