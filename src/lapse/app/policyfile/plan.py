"""What has to change for the database to have the policies of a file: compared by value, tried before it is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection

from lapse.app.nearby import suggesting_tables
from lapse.app.policyfile.reading import PolicyFile, TableEntry
from lapse.catalog import Catalog, policies
from lapse.catalog.policies import StoredPolicy
from lapse.ddl.names import parse_table_name
from lapse.ddl.render import render, table_name
from lapse.engines.base import BoundPolicy, Expiring
from lapse.errors import LapseError, TableNotFound, Unsupported
from lapse.model import parameters
from lapse.model.policy import Policy, PolicyChange
from lapse.model.table import MANAGED_COLUMN, Table, TableName
from lapse.runner import destination
from lapse.runner.guard import blocker_of
from lapse.runner.policy_manager import PolicyManager, as_stored, bind


class ChangeKind(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldChange:
    """A parameter and its text before and after; None is unset."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedFirstRun:
    """What the first run after the change would delete, and why it would be held, if it would."""

    rows: int
    expired: int
    exact: bool
    held: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """`statement` does the same in SQL; `first_run` is None where the change cannot make rows expire sooner."""

    action: ChangeKind
    table: TableName
    place: str
    before: Policy | None
    after: Policy | None
    changed: tuple[FieldChange, ...]
    statement: str
    first_run: ExpectedFirstRun | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """An entry that cannot be done; `place` is file and line."""

    table: str
    place: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`unmanaged` tables have a policy that the file does not mention; they are left alone."""

    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]
    unmanaged: tuple[TableName, ...]
    unchanged: int

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.problems


class Planner:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._manager = PolicyManager(catalog, many=True)

    def plan(self, file: PolicyFile, *, prune: bool) -> Plan:
        """With `prune`, policies that the file does not mention are to be removed."""
        changes: list[Change] = []
        problems: list[Problem] = []
        with self._engine.connection() as connection:
            known = self._known(connection)
            left = {stored.table for stored in known}
            by_table = {stored.table: stored for stored in known}
            unchanged = self._unchanged(connection, file, by_table)
            left -= set(unchanged.values())
            others = [entry for entry in file.tables if entry.name not in unchanged]
            described = self._engine.describe_all(connection, self._names(others).values()) if others else {}
            now = self._engine.now(connection)
            for entry in others:
                try:
                    name = parse_table_name(entry.name, self._engine.dialect)
                    table = described.get(name) or self._described(connection, name)
                    left.discard(table.name)
                    change = self._change(connection, entry, table, by_table.get(table.name), now)
                except LapseError as error:
                    problems.append(Problem(table=entry.name, place=entry.place, text=_told(error)))
                    continue
                if change is not None:
                    changes.append(change)
            elsewhere = (policies.COMMENT, policies.ARCHIVE)
            gone = [stored for stored in known if stored.table in left and stored.source not in elsewhere]
        if prune:
            changes += [_removal(stored, f"{file.path.name}: not mentioned") for stored in gone]
        return Plan(
            changes=tuple(changes),
            problems=tuple(problems),
            unmanaged=() if prune else tuple(stored.table for stored in gone),
            unchanged=len(file.tables) - len(problems) - sum(1 for each in changes if each.table not in left),
        )

    def apply(self, change: Change) -> tuple[str, ...]:
        """Do one change, all of it or nothing; returns notices."""
        with self._catalog.writing() as connection:
            if change.after is None:
                return self._manager.change(connection, change.table, PolicyChange(set={}, remove=True))
            return self._manager.put(connection, change.table, change.after, policies.FILE)

    def _known(self, connection: Connection) -> list[StoredPolicy]:
        bound = self._catalog.bind(connection)
        return policies.list_policies(bound) if self._catalog.is_installed(bound) else []

    def _names(self, entries: Iterable[TableEntry]) -> dict[str, TableName]:
        """Those that can be read; for others an error tells later."""
        names: dict[str, TableName] = {}
        for entry in entries:
            with suppress(LapseError):
                names[entry.name] = parse_table_name(entry.name, self._engine.dialect)
        return names

    def _described(self, connection: Connection, name: TableName) -> Table:
        with suggesting_tables(self._engine, connection, name):
            return self._engine.describe(connection, name)

    def _unchanged(
        self, connection: Connection, file: PolicyFile, known: Mapping[TableName, StoredPolicy]
    ) -> dict[str, TableName]:
        """Entries that are as the database has them, in a fixed number of statements; others may be, too."""
        if not known:
            return {}
        names = self._names(file.tables)
        full = self._engine.full_names(connection, names.values())
        found: dict[str, TableName] = {}
        for entry in file.tables:
            table = full.get(names[entry.name]) if entry.name in names else None
            stored = None if table is None else known.get(table)
            if table is not None and stored is not None and _wanted(entry, stored, table) == stored.policy:
                found[entry.name] = table
        return found

    def _change(
        self, connection: Connection, entry: TableEntry, table: Table, stored: StoredPolicy | None, now: datetime
    ) -> Change | None:
        wanted, before = _wanted(entry, stored, table.name), stored.policy if stored else None
        if wanted is None:
            return None if stored is None else _removal(stored, entry.place)
        if wanted == before:
            return None
        if stored is not None and stored.source == policies.COMMENT:
            raise Unsupported(f"table {table.name} has its policy in its comment, where the file cannot change it")
        declared = bind(table, wanted, stored.holds if stored else ())
        with self._engine.one_look(connection):
            self._engine.check(connection, declared, before)
            destination.check(self._engine, connection, declared, before)
            first_run = self._first_run(connection, declared, before, now)
        return Change(
            action=ChangeKind.CREATE if before is None else ChangeKind.CHANGE,
            table=table.name,
            place=entry.place,
            before=before,
            after=wanted,
            changed=_differences(before, wanted),
            statement=render(wanted, table.name, "lapse"),
            first_run=first_run,
        )

    def _first_run(
        self, connection: Connection, declared: BoundPolicy, before: Policy | None, now: datetime
    ) -> ExpectedFirstRun | None:
        policy, table = declared.policy, declared.table
        if before is not None and policy.same_expiry(before):
            return None
        is_managed = policy.column is None and policy.expression is None
        if is_managed and (before is None or table.column(MANAGED_COLUMN) is None):
            # The column is new, and every row gets the whole TTL.
            return None
        found: list[Expiring] = []
        for leaf in self._engine.leaves(connection, table):
            name = leaf.name.partition
            part = replace(declared, table=leaf, policy=policy if name is None else policy.for_partition(name))
            found.append(self._engine.expiring(connection, part, (now,), exact=False))
        return ExpectedFirstRun(
            rows=sum(each.rows for each in found),
            expired=sum(each.counts[0] for each in found),
            exact=all(each.exact for each in found),
            held=blocker_of(found, now) if policy.guard else None,
        )


def _wanted(entry: TableEntry, stored: StoredPolicy | None, table: TableName) -> Policy | None:
    """What the file asks for; None is no policy."""
    if entry.policy is None:
        return None
    wanted = as_stored(entry.policy, table)
    return replace(wanted, pause=stored.policy.pause) if stored is not None and entry.keeps_pause else wanted


def _told(error: LapseError) -> str:
    return f"{error.message}; {error.hint}" if isinstance(error, TableNotFound) and error.hint else error.message


def _removal(stored: StoredPolicy, place: str) -> Change:
    name = stored.table
    return Change(
        action=ChangeKind.REMOVE,
        table=name,
        place=place,
        before=stored.policy,
        after=None,
        changed=_differences(stored.policy, None),
        statement=f"ALTER TABLE {table_name(name, 'lapse')} RESET (ttl)",
    )


def _differences(before: Policy | None, after: Policy | None) -> tuple[FieldChange, ...]:
    """Only what differs from the defaults on either side, under the names that a file uses."""
    old, new = (each.options() if each is not None else {} for each in (before, after))
    names = [field.name for field in fields(Policy) if old.get(field.name) != new.get(field.name)]
    return tuple(
        FieldChange(name=_NAMES.get(name, name), before=_shown(old.get(name)), after=_shown(new.get(name)))
        for name in names
    )


def _shown(value: object) -> str | None:
    return None if value is None else str(value)


_NAMES = {parameter.field: parameter.name for parameter in parameters.PARAMETERS.values() if parameter.field} | {
    "interval": "after"
}
