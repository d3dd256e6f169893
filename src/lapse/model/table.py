"""Tables as an engine describes them: names, columns, keys, indexes, foreign keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

MANAGED_COLUMN = "crdb_internal_expiration"
"""The column Lapse adds for `ttl_expire_after`; CockroachDB's name, so that its statements run as written."""

CATALOG_TABLES = frozenset(
    f"lapse_{name}"
    for name in (
        *("meta", "policy", "policy_version", "table", "job", "task", "leaving", "ledger", "setting", "worker"),
        *("event", "hold", "notice", "rate", "archive_file", "ledger_key", "secret"),
    )
)
"""Lapse's own tables, which no policy is for. Every other table is the user's, however it is called."""

REQUEST_TABLE = "lapse_request"
"""What people ask for from the database's own client, where the engine has functions or procedures for that."""


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`schema` is None for the connection's own schema; `partition` names one leaf of a partitioned table.

    `partition_schema` is the leaf's schema where that is not its table's.
    """

    name: str
    schema: str | None = None
    partition: str | None = None
    partition_schema: str | None = None

    def __str__(self) -> str:
        text = f"{self.schema}.{self.name}" if self.schema else self.name
        if self.partition is None:
            return text
        leaf = f"{self.partition_schema}.{self.partition}" if self.partition_schema else self.partition
        return f"{text}[{leaf}]"

    @property
    def whole(self) -> TableName:
        """The table itself, of which this may be a leaf."""
        return TableName(self.name, self.schema)


class TableKind(StrEnum):
    TABLE = "table"
    PARTITIONED = "partitioned table"
    VIEW = "view"
    TEMPORARY = "temporary table"
    FOREIGN = "foreign table"
    VIRTUAL = "virtual table"
    SYSTEM = "system table"


class TimeFormat(StrEnum):
    """How a column without a native time type stores time."""

    ISO = "iso"
    UNIX = "unix"
    UNIX_MS = "unix_ms"
    JULIAN = "julian"


class FkAction(StrEnum):
    CASCADE = "CASCADE"
    SET_NULL = "SET NULL"
    SET_DEFAULT = "SET DEFAULT"
    RESTRICT = "RESTRICT"
    NO_ACTION = "NO ACTION"

    @property
    def holds(self) -> bool:
        """Does a referencing row keep the referenced row from being deleted?"""
        return self in {FkAction.RESTRICT, FkAction.NO_ACTION}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`type` is the type as declared; `generated` columns cannot be written. A `custom` type has operators that are not
    the server's own. `number` tells a column from another that takes its name, where the server counts them."""

    name: str
    type: str
    nullable: bool = True
    generated: bool = False
    custom: bool = False
    number: int | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """`columns` holds None where the index has an expression; `partial` has a WHERE. `ascends` where its entries are in
    the order in which the columns themselves compare."""

    name: str
    columns: tuple[str | None, ...]
    unique: bool = False
    partial: bool = False
    ascends: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A foreign key that points *to* the table it is listed under."""

    table: TableName
    columns: tuple[str, ...]
    referred: tuple[str, ...]
    action: FkAction
    indexed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """`key` are the columns batches page by; empty where the engine has a physical row address. `summaries` are indexes
    that tell which blocks cannot hold a value (BRIN). `storage` is what keeps the rows, in upper case, where a server
    has several such (INNODB, ROCKSDB). `id` is the server's own number for it, where it has one."""

    name: TableName
    kind: TableKind
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    summaries: tuple[Index, ...] = ()
    referenced_by: tuple[Reference, ...] = ()
    comment: str | None = None
    partitions: tuple[str, ...] = field(default=())
    storage: str | None = None
    id: str | None = field(default=None, compare=False)

    def column(self, name: str) -> Column | None:
        """The column of that name; an exact match wins over one that differs in case only."""
        exact = [column for column in self.columns if column.name == name]
        folded = [column for column in self.columns if column.name.lower() == name.lower()]
        return next(iter(exact or folded), None)

    def index_on(self, column: str) -> Index | None:
        """A full index whose first column is `column`."""
        return next((i for i in self.indexes if not i.partial and i.columns[:1] == (column,)), None)

    def summary_of(self, column: str) -> Index | None:
        """A full block summary that knows about `column`."""
        return next((i for i in self.summaries if not i.partial and column in i.columns), None)

    @property
    def holding_references(self) -> tuple[Reference, ...]:
        return tuple(reference for reference in self.referenced_by if reference.action.holds)
