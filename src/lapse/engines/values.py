"""What engines are given and what they give back: frozen values, the same for every database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lapse.engines.condition import Condition
from lapse.model.expression import Node
from lapse.model.expression import columns as expression_columns
from lapse.model.job import Path
from lapse.model.ledger_keys import Noted, Secret
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import Table, TableName

STATEMENT_SECONDS = 2.0
MAX_PRESCAN_BYTES = 512 << 20
"""A table up to this size is looked through in one statement before a job gets tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldRows:
    """Rows that stay, whatever expires, until then: those for which `where` is true, or all of them."""

    id: int
    where: Node | None
    text: str | None
    until: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundPolicy:
    """A policy together with the table it is for; `expression` and `filter` are its parsed texts, where it has them.

    `holds` keep rows from being deleted that have expired; such rows are hidden like any other that has.
    """

    table: Table
    policy: Policy
    expression: Node | None = None
    filter: Node | None = None
    holds: tuple[HeldRows, ...] = ()

    @property
    def is_time_alone(self) -> bool:
        """Do the times of a row alone decide whether it is deleted?"""
        return not self.required and self.policy.keep_last is None and not self.holds

    @property
    def required(self) -> tuple[tuple[str, Node], ...]:
        """What has to be true for a row beside its expiry, each with the name that messages have for it. Every engine
        compiles these into its condition, so that one more is added here and nowhere else."""
        return () if self.filter is None else (("ttl_filter", self.filter),)

    def holds_at(self, cutoff: datetime) -> tuple[HeldRows, ...]:
        """Those that a job with this cutoff has to know."""
        return tuple(each for each in self.holds if each.until is None or cutoff < each.until)

    @property
    def columns_read(self) -> tuple[str, ...]:
        """Columns without which the policy means nothing."""
        expiry = self.policy.expiry
        terms = [*(node for _, node in self.required), *(each.where for each in self.holds)]
        filtered = [name for term in terms if term is not None for name in expression_columns(term)]
        if (keep := self.policy.keep_last) is not None:
            # Among rows of one time the key tells which is the later one.
            filtered += [*keep.by, keep.order, *(self.table.primary_key or self.table.key)]
        if isinstance(expiry, ColumnExpiry):
            return tuple(dict.fromkeys((expiry.column, *filtered)))
        assert self.expression is not None
        return tuple(dict.fromkeys((*expression_columns(self.expression), *filtered)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a job works on: the rows of `declared` for which `condition`, that of `cutoff`, is true, found by `path`.

    `armed` is what the policy was declared on: a batch deletes nothing from anything else. `job` is its number, which
    archived rows carry; `secret` is what the worker hashes the keys of deleted rows with, where the policy wants that
    and the database does not do it. A statement of a batch takes no longer than `statement_seconds`, where the engine
    can see to that.
    """

    declared: BoundPolicy
    cutoff: datetime
    condition: Condition
    path: Path
    armed: str = ""
    job: int = 0
    secret: Secret | None = None
    statement_seconds: float = STATEMENT_SECONDS

    def fits_one_scan(self, size: int) -> bool:
        """May a table of so many bytes be read in one statement, to see whether anything has expired at all?"""
        return size <= MAX_PRESCAN_BYTES and not self.declared.policy.select_rate_limit


@dataclass(frozen=True, kw_only=True, slots=True)
class TableComment:
    """`owner` is None where tables have none; `is_own` says that the role of the connection owns the table.

    `native` is the part of the comment that the engine itself obeys, where it may.
    """

    table: TableName
    text: str
    owner: str | None = None
    is_own: bool = False
    native: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a database is, to tell it from a copy of itself.

    `incarnation` tells one running server and database, or one file, from every other: a restart or a failover changes
    it, and so does a copy. `endpoint` is how this client reaches it: a copy is reached in another way.
    """

    incarnation: str
    endpoint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one delete statement did.

    `examined` rows were read, `selected` of them had expired, `deleted` really went, `held` are referenced or
    otherwise undeletable, `skipped` were locked by other sessions. `cursor` is where to go on. `locked_seconds` is how
    long the transaction lasted: what foreground may have had to wait for. For `busy_seconds` of it the server was at
    work, which is what more rows make longer; for `read_seconds` before it rows were looked for. `noted` are the keys
    of the deleted rows, where they are to be recorded. `armed` is what the policy is armed with from now on, where
    that is told by rows, which the batch may have deleted. Of a stretch, `holds` are the seconds of each transaction
    that deleted, the server rested for `rested_seconds` in between, and sizes have come to `size` rows, for each of
    which it takes `row_seconds`.
    """

    examined: int = 0
    selected: int = 0
    deleted: int = 0
    held: int = 0
    skipped: int = 0
    cursor: str | None = None
    done: bool = False
    locked_seconds: float = 0.0
    busy_seconds: float = 0.0
    read_seconds: float = 0.0
    noted: Noted | None = None
    armed: str | None = None
    holds: tuple[float, ...] = ()
    rested_seconds: float | None = None
    size: int | None = None
    row_seconds: float = 0.0

    @property
    def transactions(self) -> tuple[float, ...]:
        """How long each of those lasted that found something."""
        return self.holds or ((self.locked_seconds,) if self.selected else ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Several batches in one message to the server, for about so many `seconds`.

    The server is busy for no more than this `share` of them, and rests between two batches, with nothing locked. It
    fits the size of batches to `batch_seconds`, between `least` and `most` rows. `saves` is the SQL by which a batch
    saves the task's progress, with names in braces: of the `values`, which are numbers, and of the `cursor` and the
    `rows` of the batch.
    """

    seconds: float
    share: float
    batch_seconds: float
    least: int
    most: int
    saves: str
    values: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What is in a table now; times, bytes and sizes are those of the expired rows.

    `exact` is False where the numbers come from statistics, by `method`, and may be `margin` rows off.
    """

    rows: int
    expired: int
    oldest: datetime | None
    newest: datetime | None
    bytes: int | None
    exact: bool
    method: str
    margin: int = 0

    @classmethod
    def scanned(
        cls, rows: int, expired: int, *, oldest: datetime | None, newest: datetime | None, size: int | None
    ) -> Survey:
        """Every row was read; `size` is the whole table's."""
        return cls(
            rows=rows,
            expired=expired,
            oldest=oldest,
            newest=newest,
            bytes=None if size is None or not rows else size * expired // rows,
            exact=True,
            method="scan",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Expiring:
    """How many rows have expired at each of some instants, past or to come, if none is added and none changed.

    `counts` has one running total per instant, `rows` and `bytes` are the whole table's. `oldest` is the earliest time
    that was seen. Where the numbers come from statistics or a sample, `margin` is how many rows they may be off.
    """

    counts: tuple[int, ...]
    rows: int
    bytes: int | None
    oldest: datetime | None
    exact: bool
    method: str
    margin: int = 0

    def as_survey(self) -> Survey:
        """What has expired at the first instant."""
        expired = self.counts[0]
        return Survey(
            rows=self.rows,
            expired=expired,
            oldest=self.oldest if expired else None,
            newest=None,
            bytes=None if self.bytes is None or not self.rows else self.bytes * expired // self.rows,
            exact=self.exact,
            method=self.method,
            margin=self.margin,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """Rows of one table that are deleted with the expired rows, or whose foreign key is set to NULL or its default."""

    table: TableName
    deleted: int = 0
    unset: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Consequences:
    """What foreign keys make of a run.

    `held` expired rows stay, because rows of `holders` refer to them. `touched` rows go or change with the others.
    Where it is not `exact`, some of the expired rows were followed and speak for all. `unknown` tables were not looked
    into.
    """

    held: int = 0
    holders: tuple[TableName, ...] = ()
    touched: tuple[Touched, ...] = ()
    exact: bool = True
    unknown: tuple[TableName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafChanges:
    """How the leaves of a table differ from what the catalog knows of them, by its ids.

    A mark changes with the bounds of a leaf, at any level, and with the policy: `new` are leaves the catalog does not
    know, with theirs, `marks` those that have another one now. `open` are all others that may hold expired rows. It
    `hides` more of them, which hold none for a while.
    """

    new: Mapping[TableName, str | None]
    gone: frozenset[int]
    marks: Mapping[int, str]
    open: frozenset[int]
    hides: bool

    def __bool__(self) -> bool:
        return bool(self.new or self.gone or self.marks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What the engine's own counters say about a table, all its partitions together; None where it does not tell.

    `rows` are an estimate; `bytes` on disk, indexes included; `inserted` rows since the counters began, a number that
    only grows.
    """

    rows: int | None = None
    bytes: int | None = None
    inserted: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Something a person should know, with the statement that fixes it."""

    text: str
    statement: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """A partition that a job has detached and that no job will drop any more.

    `id` is the database's own. `fix` is what a person can do; where it is None, `Engine.repair` puts it in order.
    """

    id: int
    table: TableName
    text: str
    fix: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauge:
    """One sign of strain on the server.

    Below `soft` there is room; at `soft` Lapse works no more than its mode allows; at `stop` it does nothing. `value`
    is None where it cannot be read: this role may after the statement `grant`, or `note` says why. `averaged` values
    jump about and are smoothed before they are judged. `counter` values only grow: their rate per second is judged.
    `settings` are those that change its limits, or what it looks at.

    `application` tells whether others are at work. What Lapse's own deletes raise as well is `own`: it is judged only
    while others are at work, since there is no other use for an idle server. `table` is the one that it holds for;
    without, it holds for all.
    """

    name: str
    value: float | None
    soft: float
    stop: float = float("inf")
    unit: str = ""
    averaged: bool = False
    counter: bool = False
    note: str | None = None
    grant: str | None = None
    settings: tuple[str, ...] = ()
    application: bool = False
    own: bool = False
    table: TableName | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRequest:
    """What a role has asked for from the database's own client; `relation` and `requested_by` are the server's ids, or
    names where it has none; `requester` is that role's name."""

    id: int
    command: str
    relation: int | str
    arguments: Mapping[str, Any]
    requested_by: int | str
    requester: str
