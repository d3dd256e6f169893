"""The native protocol: TTL that a database has of its own. Lapse declares it, reads it back, watches it and runs it.

`NativeFirst` puts it before an engine: a table that the database's own TTL serves is left to it, and the engine's own
way of deleting rows is for all others. Nothing above and nothing in the engine asks which of the two it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from lapse.engines.base import Condition, Declarations, Deleter, Engine
from lapse.engines.values import Advice, BoundPolicy, Expiring, Survey, Target
from lapse.errors import Blocked, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, KeyRange, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import Table, TableName

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeVerdict:
    """Can the database's own TTL do what a policy says?

    `reason` says why not, in which case Lapse's job is for `otherwise`: what the table is without the native TTL.
    """

    notices: tuple[str, ...] = ()
    reason: str | None = None
    otherwise: BoundPolicy | None = None


class Native(ABC):
    name: ClassVar[str]
    """As people know it: MyRocks."""

    @abstractmethod
    def is_available(self, connection: Connection, table: Table) -> bool:
        """Could the database expire rows of this table by itself?"""

    @abstractmethod
    def serves(self, connection: Connection, table: Table) -> bool:
        """Does it expire the rows of this table or partition? `declare` and `remove` decide that."""

    # Declare

    @abstractmethod
    def check(self, connection: Connection, declared: BoundPolicy) -> NativeVerdict:
        """Asked before anything is changed. Raises Refused for what neither the database nor Lapse should do."""

    @abstractmethod
    def can_express(self, connection: Connection, declared: BoundPolicy) -> bool:
        """The verdict of `check`, without its notices and refusals."""

    @abstractmethod
    def declare(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
        """Tell the database, and see that it understood. What Lapse's job for `previous` needed goes."""

    @abstractmethod
    def remove(self, connection: Connection, table: Table) -> Table:
        """The database expires nothing of this table any more; returns what the table is then."""

    @abstractmethod
    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        """As `Engine.uninstall`, for a table that is served."""

    # Read back

    @abstractmethod
    def missing(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        """What `declare` would have to write again, in words."""

    @abstractmethod
    def obeys(self, connection: Connection, table: Table, policy: Policy) -> bool:
        """Does the database do by itself what the policy says?"""

    @abstractmethod
    def path(self, connection: Connection, declared: BoundPolicy) -> Path:
        """Raises Drift, or Unsupported, where the database would not expire rows as the policy says."""

    # Observe

    @abstractmethod
    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]: ...

    @abstractmethod
    def privileges(self, connection: Connection) -> list[Advice]:
        """What the role of this connection lacks for running it, with the GRANT that gives it."""

    def undeclared(self, connection: Connection, declared: Declarations) -> dict[TableName, Advice]:
        """As `Engine.undeclared`; empty where a table's comment says it, which is read anyway."""
        return {}

    def jobs(self, connection: Connection, name: TableName | None, limit: int) -> list[Job]:
        """As `Engine.native_jobs`; empty where the database has none."""
        return []

    @abstractmethod
    def counters(self, connection: Connection) -> Mapping[str, int]:
        """What the database itself counts, for the whole server."""

    hides_expired: ClassVar[bool]
    """Are expired rows invisible from the moment they expire? If not, they are counted as those of any other table."""

    def condition(self, table: Table) -> str:
        """What decides, in the database's own words; only where expired rows are invisible."""
        raise NotImplementedError

    def survey(self, connection: Connection, declared: BoundPolicy) -> Survey:
        """Only where expired rows are invisible."""
        raise NotImplementedError

    def expiring(self, connection: Connection, declared: BoundPolicy, instants: int) -> Expiring | None:
        """None where a query can read when the rows expire, as of any other table."""
        return None

    # Run now, pause

    @abstractmethod
    def run(self, target: Target) -> Deleter:
        """Makes the database expire the rows of a target now, and counts what went."""

    pauses: ClassVar[bool]
    """Does a policy that is paused stop the database, too? If not, it only stops Lapse's own runs."""


def _reading_tables(
    method: Callable[Concatenate[NativeFirst, Connection, P], R],
) -> Callable[Concatenate[NativeFirst, Connection, P], R]:
    @wraps(method)
    def within(self: NativeFirst, connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.reading_tables():
            return method(self, connection, *args, **kwargs)

    return within


class NativeFirst(Engine):
    """An engine whose database may have TTL of its own."""

    @property
    @abstractmethod
    def native(self) -> Native: ...

    def _serving(self, connection: Connection, table: Table) -> Native | None:
        return self.native if self.native.serves(connection, table) else None

    def obeys_by_itself(self, connection: Connection, table: Table, policy: Policy) -> bool:
        return self.native.serves(connection, table) and self.native.obeys(connection, table, policy)

    def refuse_hold(self, connection: Connection, table: Table) -> None:
        if self._serving(connection, table):
            raise Unsupported(
                f"{self.native.name}'s own TTL deletes every expired row of table {table.name}, held or not",
                hint="holds are for tables whose rows Lapse's own jobs delete",
            )

    def _expresses(self, connection: Connection, declared: BoundPolicy) -> bool:
        # Neither can any TTL of a database's own archive rows, nor tell which they were.
        return not (declared.holds or declared.policy.row_by_row) and self.native.can_express(connection, declared)

    # Policies

    @_reading_tables
    def check(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> list[str]:
        if not self.native.is_available(connection, declared.table):
            return super().check(connection, declared, previous)
        verdict = self.native.check(connection, declared)
        if declared.policy.archive is not None and verdict.reason is None:
            verdict = replace(verdict, reason="it archives no rows")
        if declared.policy.ledger_keys and verdict.reason is None:
            verdict = replace(verdict, reason="it does not tell the keys of the rows that it deletes")
        if declared.holds and verdict.reason is None:
            self.refuse_hold(connection, declared.table)
            verdict = replace(verdict, reason="it knows no holds")
        if verdict.reason is None:
            return [*verdict.notices, *self._pause_notices(declared.policy)]
        notices = super().check(connection, verdict.otherwise or declared, previous)
        why = f"{self.native.name}'s own TTL cannot serve {declared.table.name}: {verdict.reason}"
        return [*notices, f"{why}. Lapse's job deletes the rows"]

    def _pause_notices(self, policy: Policy) -> list[str]:
        if not policy.pause or self.native.pauses:
            return []
        return [f"ttl_pause stops Lapse's runs; {self.native.name} goes on"]

    def install(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> Table:
        if not self.native.is_available(connection, declared.table):
            return super().install(connection, declared, previous)
        if self._expresses(connection, declared):
            self.native.declare(connection, declared, previous)
            return self.describe(connection, declared.table.name)
        table = self.native.remove(connection, declared.table)
        return super().install(connection, replace(declared, table=table), previous)

    @_reading_tables
    def changes_hands(self, connection: Connection, declared: BoundPolicy) -> bool:
        if not self.native.is_available(connection, declared.table):
            return False
        return self.native.serves(connection, declared.table) != self._expresses(connection, declared)

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        if native := self._serving(connection, table):
            native.uninstall(connection, table, policy)
        else:
            super().uninstall(connection, table, policy)

    @_reading_tables
    def missing_parts(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        if self.native.is_available(connection, declared.table) and self._expresses(connection, declared):
            return self.native.missing(connection, declared)
        return super().missing_parts(connection, declared)

    @_reading_tables
    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        native = self._serving(connection, declared.table)
        return native.advice(connection, declared) if native else super().advice(connection, declared)

    def privileges(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        native = self._serving(connection, declared.table)
        own = native.privileges(connection) if native else []
        return [*super().privileges(connection, declared), *own]

    # Deleting

    def condition(self, connection: Connection, declared: BoundPolicy, cutoff: datetime) -> Condition:
        native = self._serving(connection, declared.table)
        if native is not None and native.hides_expired:
            return Condition(expired=native.condition(declared.table))
        return super().condition(connection, declared, cutoff)

    @_reading_tables
    def choose_path(self, connection: Connection, declared: BoundPolicy, cutoff: datetime, found: Condition) -> Path:
        if native := self._serving(connection, declared.table):
            return native.path(connection, declared)
        return super().choose_path(connection, declared, cutoff, found)

    @_reading_tables
    def clean_leaves(
        self,
        connection: Connection,
        declared: BoundPolicy,
        names: Sequence[TableName],
        cutoff: datetime,
        *,
        until: datetime,
    ) -> dict[TableName, datetime]:
        if self._serving(connection, declared.table):
            return {}
        return super().clean_leaves(connection, declared, names, cutoff, until=until)

    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter:
        if _is_chosen(target):
            if not target.condition.is_time_alone:
                raise Blocked(
                    BlockCode.PARTS_MISSING,
                    f"{self.native.name}'s own TTL deletes every expired row, those that are to stay included",
                    hint=f"stop it: ALTER TABLE {target.declared.table.name} RESET (ttl)",
                )
            return self.native.run(target)
        return super().deleter(target, span, cursor)

    @_reading_tables
    def survey(self, connection: Connection, target: Target) -> Survey:
        if _is_chosen(target) and self.native.hides_expired:
            return self.native.survey(connection, target.declared)
        return super().survey(connection, target)

    @_reading_tables
    def expiring(
        self, connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        native = self._serving(connection, declared.table)
        found = native.expiring(connection, declared, len(instants)) if native else None
        return found or super().expiring(connection, declared, instants, exact=exact)

    @_reading_tables
    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        if _is_chosen(target) and self.native.hides_expired:
            return []
        return super().sample(connection, target, count)

    def undeclared(self, connection: Connection, declared: Declarations) -> dict[TableName, Advice]:
        return self.native.undeclared(connection, declared)

    def native_jobs(self, connection: Connection, name: TableName | None, limit: int) -> list[Job]:
        return self.native.jobs(connection, name, limit)

    def native_counters(self, connection: Connection) -> Mapping[str, int]:
        return self.native.counters(connection)


def _is_chosen(target: Target) -> bool:
    return target.path.kind is PathKind.NATIVE
