"""Policies that a migration tool declares: on the tool's own connection, inside its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from sqlalchemy import Connection

from lapse.app.renames import Mover
from lapse.catalog import Catalog, policies
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import BoundPolicy
from lapse.errors import Blocked, LapseError, TableNotFound
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.table import TableName
from lapse.runner import policy_manager
from lapse.runner.policy_manager import PolicyManager

_ANOTHER_TABLE = (BlockCode.TABLE_REPLACED, BlockCode.COLUMN_CHANGED)


class Migration:
    """What one migration does to policies; each method is all or nothing."""

    def __init__(self, catalog: Catalog, connection: Connection) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._manager = PolicyManager(catalog)
        self._mover = Mover(catalog, self._manager)
        self._connection = connection
        self._is_upgraded = False

    def full_name(self, name: TableName) -> TableName:
        """As the database spells it. Raises TableNotFound."""
        with self._bookkeeping():
            return self._engine.full_name(self._connection, name)

    def policy(self, name: TableName) -> StoredPolicy | None:
        """None, too, where nothing was ever declared."""
        with self._bookkeeping():
            return self._manager.stored(self._connection, name)

    def all_policies(self) -> list[StoredPolicy]:
        with self._bookkeeping():
            if not self._catalog.is_installed(self._connection):
                return []
            return policies.list_policies(self._connection)

    def put(
        self, name: TableName, wanted: Policy, *, keeps_pause: bool, source: str = policies.STATEMENT
    ) -> tuple[str, ...]:
        """Make `wanted` the policy of a table, whatever it was before; returns notices.

        With `keeps_pause` a table that an operator has paused stays paused.
        """
        with self._bookkeeping(), self._engine.declaring(self._connection, name):
            self._catalog.ensure(self._connection)
            full = self._engine.full_name(self._connection, name)
            stored = policies.find_policy(self._connection, full)
            if stored is not None and keeps_pause:
                wanted = replace(wanted, pause=stored.policy.pause)
            notices = self._manager.put(self._connection, full, wanted, source)
            if stored is not None:
                self._arm_again(full)
            return notices

    def remove(self, name: TableName) -> bool:
        """Remove the policy of a table; False where it has none."""
        with self._bookkeeping(), self._engine.declaring(self._connection, name):
            stored = self._manager.stored(self._connection, name)
            if stored is not None:
                self._manager.remove(self._connection, stored)
            return stored is not None

    @contextmanager
    def renaming(self, old: TableName, new: TableName) -> Iterator[None]:
        """Inside, the table gets its other name."""
        with self._bookkeeping():
            moves = self._mover.follow(self._connection, [(old, new)])
        yield
        if moves:
            with self._bookkeeping():
                self._mover.move(self._connection, moves)

    @contextmanager
    def dropping(self, name: TableName) -> Iterator[None]:
        """Inside, the table is dropped; a view of its live rows, which would keep PostgreSQL from it, goes first."""
        stored = self.policy(name)
        if stored is None:
            yield
            return
        with self._bookkeeping():
            self._engine.dropped(self._connection, stored.table)
        yield
        with self._bookkeeping():
            self._engine.dropped(self._connection, stored.table)
            self._manager.forget(self._connection, stored, "the table was dropped")

    @contextmanager
    def rebuilding(self, name: TableName) -> Iterator[None]:
        """Inside, the table may be made anew under its name, or get other columns: its policy goes on with it.

        Not so where a column that the policy reads is then missing or has another type. The policy is blocked in that
        case, until it is declared anew or confirmed.
        """
        with self._bookkeeping():
            stored, declared = self._declared(name)
            was_armed = stored is not None and declared is not None and self._is_armed(stored, declared)
        if stored is None or declared is None:
            yield
            return
        rebuilding = self._engine.rebuilding(self._connection, declared)
        with self._bookkeeping():
            rebuilding.__enter__()
        yield
        with self._bookkeeping():
            rebuilding.__exit__(None, None, None)
        with self._bookkeeping():
            fresh = self._load(stored)
            if fresh is not None and was_armed and _columns(fresh) == _columns(declared):
                self._arm(stored, fresh)

    def renew_view(self, name: TableName) -> None:
        """Columns that the table got meanwhile are in its view of live rows as well."""
        with self._bookkeeping():
            stored, declared = self._declared(name)
            if stored is not None and declared is not None and stored.policy.hide_expired == "view":
                self._engine.install(self._connection, declared, stored.policy)

    @contextmanager
    def without_view(self, name: TableName) -> Iterator[None]:
        """Inside, no view of live rows keeps columns from being changed."""
        with self._bookkeeping():
            stored, declared = self._declared(name)
        if stored is None or declared is None or stored.policy.hide_expired != "view":
            yield
            return
        plain = replace(stored.policy, hide_expired="off")
        with self._bookkeeping():
            self._engine.install(self._connection, replace(declared, policy=plain), stored.policy)
        yield
        with self._bookkeeping():
            fresh = self._load(stored)
            if fresh is not None:
                self._engine.install(self._connection, fresh, plain)

    @contextmanager
    def _bookkeeping(self) -> Iterator[None]:
        """Options of a connection are set in place: the tool's own statements must not find Lapse's."""
        before = self._connection.get_execution_options()
        options = {name: before.get(name) for name in ("schema_translate_map", "no_parameters")}
        connection = self._catalog.bind(self._connection.execution_options(no_parameters=True))
        try:
            with self._engine.errors(), self._engine.atomic(connection), self._engine.bookkeeping(connection):
                if not self._is_upgraded:
                    self._catalog.upgrade(connection)
                    self._is_upgraded = True
                yield
        finally:
            connection.execution_options(**options)

    def _declared(self, name: TableName) -> tuple[StoredPolicy | None, BoundPolicy | None]:
        stored = self._manager.stored(self._connection, name)
        return stored, None if stored is None else self._load(stored)

    def _load(self, stored: StoredPolicy) -> BoundPolicy | None:
        """None where the table, or a column that the policy reads, is gone."""
        with suppress(Blocked, TableNotFound):
            return policy_manager.load_bound(self._engine, self._connection, stored)
        return None

    def _is_armed(self, stored: StoredPolicy, declared: BoundPolicy) -> bool:
        if stored.armed is None or stored.suspended is not None:
            return False
        try:
            self._engine.check_armed(self._connection, declared, stored.armed)
        except LapseError:
            return False
        return True

    def _arm_again(self, name: TableName) -> None:
        """A declaration means the table as it is now, even where it says what was said before."""
        stored = policies.find_policy(self._connection, name)
        assert stored is not None
        if stored.armed is None or stored.suspended is not None:
            return
        declared = policy_manager.load_bound(self._engine, self._connection, stored)
        try:
            self._engine.check_armed(self._connection, declared, stored.armed)
        except Blocked as blocked:
            if blocked.code not in _ANOTHER_TABLE:
                raise
            self._engine.rearm(self._connection, declared)
            self._arm(stored, declared)
            policies.unblock_tables(self._connection, stored.id)

    def _arm(self, stored: StoredPolicy, declared: BoundPolicy) -> None:
        armed = self._engine.arm(self._connection, declared)
        policies.set_armed(self._connection, stored.id, armed, policy_manager.fingerprint(declared))


def _columns(declared: BoundPolicy) -> list[str | None]:
    found = [declared.table.column(name) for name in declared.columns_read]
    return [None if column is None else column.type.lower() for column in found]
