"""What a text of SQL asks for, statement by statement.

`text` is always what the database is to run: the user's own bytes, with the TTL part cut out. `line` and `column` say
where the statement begins in what was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lapse.model.policy import PolicyChange
from lapse.model.table import TableName


class ColumnAction(StrEnum):
    DROP = "drop"
    RENAME = "rename"
    RETYPE = "change the type of"


@dataclass(frozen=True, kw_only=True, slots=True)
class PassThrough:
    """Nothing of ours: runs as typed. `verb` is the first word in upper case, '' for a comment alone."""

    text: str
    line: int = 1
    column: int = 1
    verb: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateTable:
    """`CREATE TABLE` with a TTL part."""

    text: str
    line: int = 1
    column: int = 1
    table: TableName
    change: PolicyChange
    if_not_exists: bool = False
    replaces: bool = False
    temporary: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterTable:
    """`ALTER TABLE` with a TTL part; `text` is '' when nothing but TTL was asked for.

    `actions` are what the rest of it does to columns, on which the policy may depend.
    """

    text: str
    line: int = 1
    column: int = 1
    table: TableName
    change: PolicyChange
    if_exists: bool = False
    actions: tuple[tuple[ColumnAction, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DropTable:
    """`DROP TABLE`, or MariaDB's `CREATE OR REPLACE TABLE` (`replaced`): policies go with their tables."""

    text: str
    line: int = 1
    column: int = 1
    tables: tuple[TableName, ...]
    replaced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RenameTable:
    """`ALTER TABLE … RENAME TO` or MySQL's `RENAME TABLE`: policies follow.

    `actions` are what the same ALTER TABLE does to columns, under the old name of the table.
    """

    text: str
    line: int = 1
    column: int = 1
    renames: tuple[tuple[TableName, TableName], ...]
    actions: tuple[tuple[ColumnAction, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterColumn:
    """`ALTER TABLE` that drops, renames or retypes columns, on which a policy may depend.

    `may_remove_ttl` is the `ALTER TABLE t DROP TTL` of CockroachDB's proposal, unless the table has such a column.
    """

    text: str
    line: int = 1
    column: int = 1
    table: TableName
    actions: tuple[tuple[ColumnAction, str], ...]
    may_remove_ttl: bool = False


class Show(StrEnum):
    SCHEDULES = "schedules"
    JOBS = "jobs"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShowCreateTable:
    text: str
    line: int = 1
    column: int = 1
    table: TableName


@dataclass(frozen=True, kw_only=True, slots=True)
class ShowList:
    """`SHOW SCHEDULES` and `SHOW JOBS`."""

    text: str
    line: int = 1
    column: int = 1
    what: Show


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogQuery:
    """A SELECT that reads from Lapse's catalog: `[SHOW …]`, `reloptions`, `@@global.tidb_ttl_…`.

    `pieces` are the text cut where names must be put in: strings are the user's bytes, `Show` the list to read,
    `RelOptions` the catalog's stand-in for pg_class, `Variable` a setting's value.
    """

    text: str
    line: int = 1
    column: int = 1
    pieces: tuple[str | Show | RelOptions | Variable, ...]


@dataclass(frozen=True, slots=True)
class RelOptions:
    pass


@dataclass(frozen=True, slots=True)
class Variable:
    name: str


class JobAction(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlJob:
    """`PAUSE|RESUME|CANCEL JOB id`, `ADMIN CANCEL TTL JOB id`."""

    text: str
    line: int = 1
    column: int = 1
    action: JobAction
    job_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceHold:
    """`ALTER TABLE t HOLD …`; without `where` all rows are held."""

    text: str
    line: int = 1
    column: int = 1
    table: TableName
    where: str | None = None
    until: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseHold:
    text: str
    line: int = 1
    column: int = 1
    hold_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShowHolds:
    text: str
    line: int = 1
    column: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SetGlobal:
    text: str
    line: int = 1
    column: int = 1
    name: str
    value: str


Statement = (
    PassThrough
    | CreateTable
    | AlterTable
    | DropTable
    | RenameTable
    | AlterColumn
    | ShowCreateTable
    | ShowList
    | CatalogQuery
    | ControlJob
    | PlaceHold
    | ReleaseHold
    | ShowHolds
    | SetGlobal
)
