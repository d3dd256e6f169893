"""Policies follow their tables when these are renamed, step by step: a swap of two tables swaps their policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.catalog import Catalog, holds, ledger, policies
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import BoundPolicy
from lapse.errors import LapseError, TableNotFound
from lapse.model.ledger import EntryKind
from lapse.model.table import TableName
from lapse.runner.policy_manager import PolicyManager, bind, load_bound


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRename:
    """`still_armed`: before it was renamed, the table was the one that the policy was declared on."""

    stored: StoredPolicy
    to: TableName
    still_armed: bool


class Mover:
    def __init__(self, catalog: Catalog, declarer: PolicyManager) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._manager = declarer

    def follow(self, connection: Connection, renames: Sequence[tuple[TableName, TableName]]) -> list[TableRename]:
        """Asked before the statement runs: where each policy will be after its last step."""
        moving: dict[TableName, StoredPolicy | None] = {}
        for old, new in renames:
            at = self._engine.comparable(connection, old)
            if at in moving:
                stored = moving.pop(at)
            elif self._is_there(connection, old):
                stored = self._manager.stored(connection, old)
            else:
                continue
            was = stored.table if stored is not None else old
            moving[self._engine.comparable(connection, self._engine.after_rename(was, new))] = stored
        return [
            TableRename(stored=stored, to=name, still_armed=self._is_armed(connection, stored))
            for name, stored in moving.items()
            if stored is not None
        ]

    def move(self, connection: Connection, moves: Sequence[TableRename]) -> None:
        """After the statement: the catalog first, then what carries the names of the tables."""
        found = [(move, declared) for move in moves if (declared := self._find(connection, move)) is not None]
        bound = self._catalog.bind(connection)
        with self._engine.atomic(connection):
            # Two tables may have swapped their names, which are unique.
            for move, _ in found:
                placeholder = TableName(f"lapse: policy {move.stored.id}, being renamed")
                policies.rename_policy(bound, move.stored.id, placeholder)
            for move, declared in found:
                self._manager.end_jobs(bound, move.stored, "the table was renamed")
                left_behind = policies.find_policy(bound, declared.table.name)
                if left_behind is not None:
                    self._manager.forget(bound, left_behind, "another table has taken the name")
                policies.rename_policy(bound, move.stored.id, declared.table.name)
                self._record(bound, move.stored.table, declared.table.name)
                holds.rename_holds(bound, [each.id for each in move.stored.holds], declared.table.name)
        for move, declared in found:
            self._engine.renamed(connection, move.stored.table, declared)
        for move, declared in found:
            if len(found) > 1:
                # What one was called may be what another is called now.
                self._engine.install(connection, declared, declared.policy)
            if move.still_armed:
                armed = self._engine.arm(connection, declared)
                policies.set_armed(bound, move.stored.id, armed, move.stored.fingerprint)

    def _record(self, bound: Connection, old: TableName, new: TableName) -> None:
        """Under the new name: what is asked about a table is asked by the name that it has."""
        now = self._engine.now(bound)
        ledger.record(
            bound, EntryKind.RENAMED, now=now, table=new, before={"table": str(old)}, after={"table": str(new)}
        )

    def _is_there(self, connection: Connection, name: TableName) -> bool:
        try:
            self._engine.full_name(connection, name)
        except TableNotFound:
            return False
        return True

    def _is_armed(self, connection: Connection, stored: StoredPolicy) -> bool:
        if stored.armed is None or stored.suspended is not None:
            return False
        try:
            self._engine.check_armed(connection, load_bound(self._engine, connection, stored), stored.armed)
        except LapseError:
            return False
        return True

    def _find(self, connection: Connection, move: TableRename) -> BoundPolicy | None:
        """None where the statement renamed something else, such as a temporary table."""
        try:
            return bind(self._engine.describe(connection, move.to), move.stored.policy, move.stored.holds)
        except TableNotFound:
            return None
