"""Archive tables on MariaDB and MySQL: made like the table, looked at again in the transaction of every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC

from sqlalchemy import Connection

from lapse.engines import archive
from lapse.engines.action import Action, Delete, Move
from lapse.engines.archive import ArchiveShape, archive_of
from lapse.engines.base import Advice, BoundPolicy
from lapse.engines.mysql import inspect, server
from lapse.engines.mysql.names import MAX_NAME, literal, qualified, quote
from lapse.engines.restoring import Dialect
from lapse.errors import Blocked, Unsupported
from lapse.model.archive import ARCHIVED_AT, JOB, OWN_COLUMNS, PACK, PACKED_ROWS, SEQUENCE, file_url
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.table import TableName

Confirm = Callable[[Connection], None]
NOW = "utc_timestamp(6)"
_DUPLICATE = 1062
_NO_PARTITION = (1526, 1591)
_MANAGED_TYPE = "datetime(6)"
_OWN = {SEQUENCE: ("bigint", "PRI"), JOB: ("bigint", ""), ARCHIVED_AT: ("datetime(6)", "")}
_PACKS = {PACKED_ROWS: "int", PACK: "longblob"}
_PLACE_FOR_PACKS = f"{PACKED_ROWS} INT NULL, {PACK} LONGBLOB NULL, INDEX {PACKED_ROWS} ({PACKED_ROWS})"
"""By the index the rows that wait are counted."""
_ADD_PLACE = (
    f"ADD COLUMN IF NOT EXISTS {PACKED_ROWS} INT NULL",
    f"ADD COLUMN IF NOT EXISTS {PACK} LONGBLOB NULL",
    f"ADD INDEX IF NOT EXISTS {PACKED_ROWS} ({PACKED_ROWS})",
)
_OF = "WHERE TABLE_SCHEMA = coalesce(%s, DATABASE()) AND TABLE_NAME = %s"
_OF_TRIGGER = "WHERE EVENT_OBJECT_SCHEMA = coalesce(%s, DATABASE()) AND EVENT_OBJECT_TABLE = %s"


def action(connection: Connection, declared: BoundPolicy, job: int, *, skips_locked: bool) -> Action:
    """A copy that `skips_locked` rows does not have to refuse to wait for them."""
    name = archive_of(declared)
    if name is None:
        return Delete()
    # As it is now, and not as it was described a moment ago: `confirm` compares in the batch.
    named = tuple(quote(column) for column in columns(connection, declared.table.name))
    return Move(
        archive=qualified(name),
        columns=named,
        now=NOW,
        job=job,
        lock=" FOR UPDATE SKIP LOCKED" if skips_locked else " FOR UPDATE",
    )


def confirmation(connection: Connection, declared: BoundPolicy) -> Confirm | None:
    """Asked in the transaction of a batch, once it has touched both tables: the server lets none be altered then."""
    name = archive_of(declared)
    if name is None:
        return None
    table, before = declared.table.name.whole, columns(connection, declared.table.name)
    # Elsewhere a table can be altered without a new time of creation.
    by_time = declared.table.storage == "INNODB" and server.renaming_makes_young(connection)
    known: tuple[object, ...] | None = None

    def confirm(now: Connection) -> None:
        nonlocal known
        born = _born(now, table, name) if by_time else None
        if born is not None and born == known:
            return
        source = columns(now, table)
        wrong = archive.missing(declared.table, name, source, shape(now, name))
        if not wrong and source != before:
            wrong = [f"columns of table {table} as they were when the batch began"]
        if wrong:
            raise Blocked(
                BlockCode.PARTS_MISSING,
                f"missing in the database: {', '.join(wrong)}",
                hint="lapse doctor URL --repair",
            )
        known = born

    return confirm


def _born(connection: Connection, table: TableName, name: TableName) -> tuple[object, ...] | None:
    """When a table and its archive were made or last altered. None where that does not tell that they are as they were:
    it is a moment ago, or the archive has a trigger, of which no time tells."""
    made = f"(SELECT CREATE_TIME FROM information_schema.TABLES {_OF})"
    *born, trigger, now = connection.exec_driver_sql(
        f"SELECT {made}, {made}, (SELECT min(TRIGGER_NAME) FROM information_schema.TRIGGERS {_OF_TRIGGER}),"
        " utc_timestamp(6)",
        (table.schema, table.name, name.schema, name.name, name.schema, name.name),
    ).one()
    if trigger is not None or any(at is None or now - at < server.YOUNG for at in born):
        return None
    return tuple(born)


def check(connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
    """Raises Refused where rows cannot be archived as the policy says."""
    name = archive.to_check(declared, previous)
    if name is None:
        return
    if len(name.name) > MAX_NAME:
        raise Unsupported(
            f"the archive table {name} cannot be made: names have at most {MAX_NAME} characters",
            hint="ttl_archive = 'table:NAME'",
        )
    if name.schema is not None and not _has_schema(connection, name.schema):
        raise Unsupported(f"there is no database {name.schema}", hint=f"CREATE DATABASE {quote(name.schema)}")
    source = archive.planned(declared, columns(connection, declared.table.name), _MANAGED_TYPE)
    archive.refuse_foreign(name, declared.table.name, source, shape(connection, name))


def install(connection: Connection, declared: BoundPolicy) -> None:
    """Make the archive table, or let it follow columns that its table was given since."""
    name = archive_of(declared)
    if name is None:
        return
    source, found = columns(connection, declared.table.name), shape(connection, name)
    archive.refuse_foreign(name, declared.table.name, source, found)
    if found is None:
        engine = declared.table.storage
        own = f"{SEQUENCE} BIGINT AUTO_INCREMENT PRIMARY KEY, {JOB} BIGINT NULL, {ARCHIVED_AT} DATETIME(6) NULL"
        named = ", ".join(f"{quote(column)} {kind} NULL" for column, kind in source.items())
        packs = f", {_PLACE_FOR_PACKS}" if _takes_packs(connection, declared, source) else ""
        connection.exec_driver_sql(f"CREATE TABLE {qualified(name)} ({own}, {named}{packs}) ENGINE = {engine}")
        return
    new = [f"ADD COLUMN {quote(column)} {kind} NULL" for column, kind in archive.added(source, found).items()]
    if _takes_packs(connection, declared, source) and not has_packs(connection, name):
        new += _ADD_PLACE
    if new:
        connection.exec_driver_sql(f"ALTER TABLE {qualified(name)} {', '.join(new)}")


def _takes_packs(connection: Connection, declared: BoundPolicy, source: Mapping[str, str]) -> bool:
    """Can an outbox of this policy get packs?"""
    names = {column.lower() for column in source}
    is_outbox = file_url(declared.policy.archive or "") is not None
    return is_outbox and names.isdisjoint(_PACKS) and server.tells_deleted_rows(connection)


def has_packs(connection: Connection, name: TableName) -> bool:
    """Has an archive table the columns for packs?"""
    found = connection.exec_driver_sql(
        f"SELECT lower(COLUMN_NAME), lower(DATA_TYPE) FROM information_schema.COLUMNS {_OF}"
        " AND COLUMN_NAME IN (%s, %s)",
        (name.schema, name.name, *_PACKS),
    )
    return {inspect.text(column): inspect.text(kind) for column, kind in found} == _PACKS


def advice(connection: Connection, declared: BoundPolicy) -> list[Advice]:
    """An outbox that an earlier version has made."""
    name = archive_of(declared)
    if name is None or not _takes_packs(connection, declared, columns(connection, declared.table.name)):
        return []
    if not _columns(connection, name) or has_packs(connection, name):
        return []
    return [
        Advice(
            text=f"archiving the rows of table {declared.table.name} takes twice as long as it could: its outbox {name}"
            " was made by an earlier version",
            statement=f"ALTER TABLE {qualified(name)} {', '.join(_ADD_PLACE)};",
        )
    ]


def missing(connection: Connection, declared: BoundPolicy) -> list[str]:
    name = archive_of(declared)
    if name is None:
        return []
    return archive.missing(declared.table, name, columns(connection, declared.table.name), shape(connection, name))


DIALECT = Dialect(
    quote=quote,
    relation=qualified,
    instant=lambda at: literal(at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")),
    is_duplicate=lambda error: error.orig is not None and error.orig.args[0] == _DUPLICATE,
    lacks_partition=lambda error: error.orig is not None and error.orig.args[0] in _NO_PARTITION,
    lock=" FOR UPDATE",
)


def shape(connection: Connection, name: TableName) -> ArchiveShape | None:
    found = _columns(connection, name)
    if not found:
        return None
    own: set[str] = set()
    flaws = _flaws(connection, name)
    for column, each in found.items():
        extra = str(each["extra"]).lower()
        if column in _OWN:
            wanted, place = _OWN[column]
            counts = column != SEQUENCE or "auto_increment" in extra
            own |= {column} if each["type"] == wanted and (not place or each["key"] == place) and counts else set()
        elif each["nullable"] != "YES" or "generated" in extra:
            flaws.append(f"its column {column} is {'NOT NULL' if each['nullable'] != 'YES' else 'generated'}")
    kept = {column: str(each["type"]) for column, each in found.items() if column not in OWN_COLUMNS}
    if _PACKS.items() <= kept.items():
        kept = {column: kind for column, kind in kept.items() if column not in _PACKS}
    return ArchiveShape(columns=kept, flaws=tuple(flaws), own=frozenset(own))


def _flaws(connection: Connection, name: TableName) -> list[str]:
    """In one statement: it is asked in every batch."""
    where = (name.schema, name.name)
    kind, triggers, constraints = connection.exec_driver_sql(
        f"SELECT (SELECT TABLE_TYPE FROM information_schema.TABLES {_OF}),"
        " (SELECT group_concat(TRIGGER_NAME) FROM information_schema.TRIGGERS"
        f"   {_OF_TRIGGER}),"
        f" (SELECT group_concat(CONSTRAINT_NAME) FROM information_schema.TABLE_CONSTRAINTS {_OF}"
        "   AND CONSTRAINT_TYPE <> 'PRIMARY KEY')",
        (*where, *where, *where),
    ).one()
    flaws = [] if kind == "BASE TABLE" else [f"it is a {str(kind).lower()}"]
    flaws += [f"it has a trigger {triggers}"] if triggers else []
    return [*flaws, *([f"it has a constraint {constraints}"] if constraints else [])]


def columns(connection: Connection, name: TableName) -> dict[str, str]:
    """Types as DDL writes them."""
    return {column: str(each["type"]) for column, each in _columns(connection, name).items()}


def _columns(connection: Connection, name: TableName) -> dict[str, dict[str, object]]:
    rows = connection.exec_driver_sql(
        "SELECT COLUMN_NAME AS name, COLUMN_TYPE AS type, CHARACTER_SET_NAME AS charset, COLLATION_NAME AS collation,"
        f" IS_NULLABLE AS nullable, EXTRA AS extra, COLUMN_KEY AS `key` FROM information_schema.COLUMNS {_OF}"
        " ORDER BY ORDINAL_POSITION",
        (name.schema, name.name),
    ).mappings()
    return {str(row["name"]): {**row, "type": _type(dict(row))} for row in rows}


def _type(row: dict[str, object]) -> str:
    """A text without its character set would get that of the table."""
    kind = _plain(inspect.text(row["type"]))
    return f"{kind} CHARACTER SET {row['charset']} COLLATE {row['collation']}" if row["charset"] else kind


def _plain(kind: str) -> str:
    """Without the display width of whole numbers, which newer servers leave out."""
    head, _, rest = kind.partition("(")
    if not head.endswith("int") or "zerofill" in kind:
        return kind
    return head + rest.partition(")")[2]


def _has_schema(connection: Connection, name: str) -> bool:
    found = connection.exec_driver_sql("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (name,))
    return found.first() is not None
