"""What tables look like and whether policies are still armed, asked once for what follows one another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, policies
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import BoundPolicy
from lapse.errors import Blocked, Drift, LapseError
from lapse.model.blocked import BlockCode
from lapse.model.table import TableName
from lapse.runner.policy_manager import bound_to, fingerprint, load_bound
from lapse.runner.retry import retried

DESCRIBED_SECONDS = 1.0
"""What a table looks like is asked once for finding its partitions, its guard, its plan and its first tasks, which
follow each other."""


@dataclass(kw_only=True, slots=True)
class _Described:
    """`armed` is what the policy may delete from, where that was asked for the whole table."""

    declared: BoundPolicy
    version: tuple[int, int]
    until: float
    armed: str | None = None


class Describer:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._described: dict[tuple[int, TableName], _Described] = {}
        self._renewed: dict[int, str] = {}

    def look_again(self) -> None:
        """Forget what tables looked like."""
        self._described = {}

    def declared(self, connection: Connection, stored: StoredPolicy, name: TableName | None = None) -> BoundPolicy:
        """The policy as it holds for the whole table or one of its leaves, which looks as it did a moment ago."""
        return self._described_now(connection, stored, name or stored.table).declared

    def _described_now(self, connection: Connection, stored: StoredPolicy, name: TableName) -> _Described:
        found = self._described.get((stored.id, name))
        version = stored.version, stored.hold_version
        if found is None or found.version != version or monotonic() > found.until:
            declared = self._look(connection, stored, name)
            found = _Described(declared=declared, version=version, until=monotonic() + DESCRIBED_SECONDS)
            self._described[stored.id, name] = found
        return found

    def look_at(self, several: Sequence[StoredPolicy]) -> None:
        """Describe the tables of several policies at once, whose jobs are planned one after the other now.

        What cannot be described, or has lost what its policy needs, is met by its own job.
        """
        wanted = {stored.table: stored for stored in several}
        with suppress(LapseError), self._engine.connection() as connection:
            found = self._engine.describe_all(connection, wanted.keys())
            until = monotonic() + DESCRIBED_SECONDS
            for name, table in found.items():
                stored = wanted[name]
                with suppress(LapseError):
                    version = stored.version, stored.hold_version
                    described = _Described(declared=bound_to(table, stored), version=version, until=until)
                    self._described[stored.id, stored.table] = described

    def _look(self, connection: Connection, stored: StoredPolicy, name: TableName) -> BoundPolicy:
        if name.partition is None:
            return load_bound(self._engine, connection, stored)
        whole = self.declared(connection, stored)
        leaf = self._engine.leaf(connection, whole.table, name)
        if leaf is None:
            raise Drift(f"partition {name.partition} of table {stored.table} does not exist any more")
        return replace(whole, table=leaf, policy=stored.policy.for_partition(name.partition))

    def armed(self, connection: Connection, stored: StoredPolicy) -> str:
        """What the policy may delete from. Raises Blocked where that is not what it was declared on.

        Asked once for guard, plan and first task, which follow each other: every batch asks again by itself. What a job
        begins with is written down by `keep_armed`.
        """
        if stored.suspended is not None:
            raise Blocked(
                stored.suspended,
                "this database is a copy of the one in which the policy was declared",
                hint=f"if rows are to be deleted here, too: lapse resume URL {stored.table}",
            )
        described = self._described_now(connection, stored, stored.table)
        if described.armed is not None:
            return described.armed
        whole = described.declared
        if stored.armed is not None:
            armed = self._engine.check_armed(connection, whole, stored.armed)
        elif fingerprint(whole) == stored.fingerprint:
            # Declared with a version of Lapse that remembered no more than this.
            # On a connection of its own: what is installed stays, whatever becomes of the plan.
            with self._engine.connection() as renewing:
                self._engine.renew_parts(renewing, whole)
                armed = self._engine.check_armed(renewing, whole, self._engine.arm(renewing, whole))
        else:
            raise Blocked(
                BlockCode.COLUMN_CHANGED,
                f"a column of table {stored.table} that the policy or the paging depends on was changed",
                hint=f"check that the policy still means what it should, then: lapse resume URL {stored.table}",
            )
        described.armed = armed
        return armed

    def keep_armed(self, stored: StoredPolicy, armed: str) -> None:
        """What a job of the policy knows its table by, unless it is written down already. A policy that was suspended
        meanwhile stays so."""
        if self.is_new(stored, armed):
            self.renew_armed(stored, armed, known=stored.armed)

    def is_new(self, stored: StoredPolicy, armed: str) -> bool:
        return armed not in (stored.armed, self._renewed.get(stored.id))

    @retried
    def renew_armed(self, stored: StoredPolicy, armed: str, *, known: str | None) -> None:
        """A batch of a job that knew the table by `known` has deleted what it, or another one here, knew it by."""
        with self._engine.connection() as connection:
            self.write_armed(self._catalog.bind(connection), stored, armed, known=known)
        self.note_armed(stored, armed, known=known)

    def write_armed(self, connection: Connection, stored: StoredPolicy, armed: str, *, known: str | None) -> None:
        """As `renew_armed`, in the caller's transaction; `note_armed` follows when that has been committed."""
        before = {known, self._renewed.get(stored.id, known)}
        policies.renew_armed(connection, stored.id, armed, known=before)

    def note_armed(self, stored: StoredPolicy, armed: str, *, known: str | None) -> None:
        before = {known, self._renewed.get(stored.id, known)}
        self._renewed[stored.id] = armed
        described = self._described.get((stored.id, stored.table))
        if described is not None and described.armed in before:
            described.armed = armed
