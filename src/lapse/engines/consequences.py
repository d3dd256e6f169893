"""Following foreign keys from the rows that a run would delete: what holds them, and what goes with them.

Rows are followed by their addresses, level by level, and what was found is judged in memory. A row that a RESTRICT or
NO ACTION key refers to stays, unless the row that refers to it goes first; so does a row whose cascades would meet such
a row. A bounded number of rows is read: where there are more, those that were followed speak for the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, ClassVar

from sqlalchemy import Connection

from lapse.engines.base import Consequences, Engine, Target, Touched
from lapse.errors import LapseError
from lapse.model.table import FkAction, Reference, Table, TableName

MOST_ROWS, MOST_ROWS_EXACTLY = 50_000, 1_000_000
"""How many rows are followed, those that have expired included; the second where an exact answer was asked for."""
FIRST_SLICE, SLICE = 100, 2_000
"""Expired rows that are followed together. The first slice is small: each of its rows may have many children."""
SCANNED_ROWS = 200_000
"""A table with more rows is looked into by an index or not at all."""

Address = tuple[Any, ...]
Node = tuple[int, Address]
"""A row: the number of its table in this walk, and its address there."""


class Kin(ABC):
    """How an engine looks at rows that foreign keys tie together. An address is whatever it finds a row by."""

    held_by_itself: ClassVar[bool] = False
    """Does a row that refers to itself, by a key that holds, keep itself from being deleted?"""

    def __init__(self, engine: Engine, connection: Connection, target: Target) -> None:
        self.engine = engine
        self.connection = connection
        self.target = target

    @abstractmethod
    def expired(self, most: int) -> tuple[list[Address], bool]:
        """At most `most` of the rows that have expired, and whether these are all.

        Where they are not, they come from all over the table. No large table is scanned.
        """

    @abstractmethod
    def children(
        self, parent: Table, child: Table, reference: Reference, addresses: Sequence[Address], most: int
    ) -> list[tuple[Address, Address]]:
        """(row of `parent`, row of `child` that refers to it): at most `most` pairs. Raises LapseError."""


def follow(kin: Kin, expired: int, seconds: float | None) -> Consequences:
    """`expired` is how many rows there are to delete, about. None is as long as it takes."""
    table = kin.target.declared.table
    if not table.referenced_by or not expired:
        return Consequences()
    most = MOST_ROWS_EXACTLY if seconds is None else MOST_ROWS
    until = None if seconds is None else monotonic() + seconds
    addresses, is_all = kin.expired(most)
    if not addresses:
        # A sample of a large table that has missed the few rows that expired.
        return Consequences(exact=False, unknown=_sorted(each.table for each in table.referenced_by))
    walk = _Walk(kin, most, until)
    done, size = 0, FIRST_SLICE
    while done < len(addresses):
        if not walk.reach(addresses[done : done + size]):
            # Not even the first rows were followed to the end: what was found is the least that it is.
            done = done or min(size, len(addresses))
            is_all = False
            break
        done, size = done + size, SLICE
    return walk.judge(addresses[:done], is_all=is_all, expired=expired)


class _Walk:
    def __init__(self, kin: Kin, most: int, until: float | None) -> None:
        self._kin = kin
        self._left = most
        self._until = until
        self._own = kin.target.declared.table
        self._numbers: dict[TableName, int] = {}
        self._seen: set[Node] = set()
        self._deleting: dict[Node, list[Node]] = defaultdict(list)
        self._holding: dict[Node, list[Node]] = defaultdict(list)
        self._unsetting: dict[Node, list[Node]] = defaultdict(list)
        self._unknown: set[TableName] = set()
        self._tables: dict[TableName, Table] = {}
        self._costly: dict[Reference, bool] = {}

    def reach(self, addresses: Sequence[Address]) -> bool:
        """Follow these expired rows to the end; False where that takes too long."""
        levels: deque[tuple[Table, list[Address]]] = deque([(self._own, list(addresses))])
        self._seen.update(self._nodes(self._own.name.whole, addresses))
        while levels:
            parent, rows = levels.popleft()
            self._left -= len(rows)
            for reference in parent.referenced_by:
                for start in range(0, len(rows), SLICE):
                    found = self._children(parent, reference, rows[start : start + SLICE])
                    if self._left < 0 or (self._until is not None and monotonic() > self._until):
                        return False
                    if found:
                        levels.append((self._table(reference.table), found))
        return True

    def _children(self, parent: Table, reference: Reference, rows: Sequence[Address]) -> list[Address]:
        """Note what refers to these rows; returns those that a cascade deletes and that are new."""
        if self._is_costly(reference):
            self._unknown.add(reference.table)
            return []
        try:
            child = self._table(reference.table)
            pairs = self._kin.children(parent, child, reference, rows, max(self._left, 0) + 1)
        except LapseError:
            self._unknown.add(reference.table)
            return []
        action, fresh = reference.action, list[Address]()
        upper, lower = self._number(parent.name.whole), self._number(reference.table)
        edges = self._holding if action.holds else self._unsetting
        if action is FkAction.CASCADE:
            edges = self._deleting
        for above, below in pairs:
            node = (lower, below)
            edges[upper, above].append(node)
            if action is FkAction.CASCADE and node not in self._seen:
                self._seen.add(node)
                fresh.append(below)
        if action is not FkAction.CASCADE:
            self._left -= len(pairs)
        elif len(pairs) > self._left:
            self._left = -1
        return fresh

    def _number(self, table: TableName) -> int:
        return self._numbers.setdefault(table, len(self._numbers))

    def _nodes(self, table: TableName, addresses: Iterable[Address]) -> list[Node]:
        number = self._number(table)
        return [(number, address) for address in addresses]

    def _is_costly(self, reference: Reference) -> bool:
        if reference.indexed:
            return False
        if reference not in self._costly:
            rows = self._kin.engine.estimate_rows(self._kin.connection, self._table(reference.table))
            self._costly[reference] = rows > SCANNED_ROWS
        return self._costly[reference]

    def _table(self, name: TableName) -> Table:
        if name not in self._tables:
            self._tables[name] = self._kin.engine.describe(self._kin.connection, name)
        return self._tables[name]

    def judge(self, addresses: Sequence[Address], *, is_all: bool, expired: int) -> Consequences:
        """What becomes of the expired rows that were followed, and by them of all."""
        roots = self._nodes(self._own.name.whole, addresses)
        if not is_all:
            self._forget_own_holders()
        gone = self._gone(roots)
        scale = 1.0 if is_all or not roots else expired / len(roots)
        held = [root for root in roots if root not in gone]
        changed = {child for node in gone for child in self._unsetting.get(node, ())} - gone
        deleted = Counter(number for number, _ in gone.difference(roots))
        unset = Counter(number for number, _ in changed)
        return Consequences(
            held=min(round(len(held) * scale), expired),
            holders=self._names(number for root in held for number, _ in self._holders(root)),
            touched=tuple(
                Touched(table=table, deleted=round(deleted[number] * scale), unset=round(unset[number] * scale))
                for table in self._names([*deleted, *unset])
                for number in [self._number(table)]
            ),
            exact=is_all and not self._unknown,
            unknown=_sorted(self._unknown),
        )

    def _forget_own_holders(self) -> None:
        """Whether a row that refers to another of its table goes first is known only where all of them are followed."""
        own = self._number(self._own.name.whole)
        for node, holders in self._holding.items():
            left = [child for child in holders if child[0] != own]
            if len(left) < len(holders):
                self._unknown.add(self._own.name.whole)
                self._holding[node] = left

    def _names(self, numbers: Iterable[int]) -> tuple[TableName, ...]:
        names = list(self._numbers)
        return _sorted(names[number] for number in set(numbers))

    def _gone(self, roots: Iterable[Node]) -> set[Node]:
        """The rows that are gone once every expired row that can be deleted is."""
        if not self._holding:
            return self._closure(*roots)
        kept: dict[Node, set[Node]] = {}
        waiting: dict[Node, list[Node]] = defaultdict(list)
        for root in roots:
            kept[root] = set(self._holders(root))
            for holder in kept[root]:
                waiting[holder].append(root)
        gone: set[Node] = set()
        free = [root for root, holders in kept.items() if not holders]
        while free:
            for node in self._closure(free.pop()) - gone:
                gone.add(node)
                for root in waiting.get(node, ()):
                    kept[root].discard(node)
                    if not kept[root]:
                        free.append(root)
        return gone

    def _holders(self, root: Node) -> list[Node]:
        """Rows that keep a root from being deleted."""
        closure = self._closure(root)
        direct = [child for child in self._holding.get(root, ()) if child != root or self._kin.held_by_itself]
        below = [child for node in closure - {root} for child in self._holding.get(node, ())]
        return direct + [child for child in below if child not in closure]

    def _closure(self, *roots: Node) -> set[Node]:
        """Rows and all that their cascades delete."""
        found, left = set(roots), list(roots)
        while left:
            for child in self._deleting.get(left.pop(), ()):
                if child not in found:
                    found.add(child)
                    left.append(child)
        return found


def _sorted(tables: Iterable[TableName]) -> tuple[TableName, ...]:
    return tuple(sorted(set(tables), key=str))
