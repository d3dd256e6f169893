"""Holds: placed and released so that no batch which begins afterwards goes by what was held before.

The transaction of a hold first takes the rows of `lapse_table`, which a new job takes, too; then it ends the jobs that
are active, whose batches in flight find their lease gone with the tasks and roll back, or were committed before; and it
raises the number that a task must find unchanged to be claimed. So what was planned before the hold deletes nothing
after it, whichever process does it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection

from lapse.catalog import Catalog, holds, policies
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.schema import NAME_LENGTH
from lapse.ddl.literal import quote_text
from lapse.errors import Blocked, InvalidValue, PolicyConflict, TableNotFound, Unsupported
from lapse.model.actor import acting_user, current_actor
from lapse.model.expression import COMPARISONS, Binary, ColumnRef, Membership, Node, Text, walk
from lapse.model.hold import HeldTerm, Hold
from lapse.model.policy import Policy
from lapse.model.table import Column, Table, TableKind, TableName
from lapse.runner.cascades import cascades
from lapse.runner.policy_manager import PolicyManager, bind, fingerprint, load_bound

NEVER = Policy(expression="NULL")


class Holder:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._manager = PolicyManager(catalog)

    def place(
        self,
        connection: Connection,
        table: Table,
        *,
        where: str | None,
        until: datetime | None,
        reason: str | None,
        by: str | None = None,
    ) -> Hold:
        """In the caller's transaction, after which no held row goes. Raises before anything is done where it can.

        `by` another role than that of the connection."""
        holds.lock(connection)
        now = self._engine.now(connection)
        if until is not None and until <= now:
            raise InvalidValue("until", until.isoformat(), f"is past: the database's clock says {now.isoformat()}")
        self._check(connection, table, HeldTerm(id=0, where=where, until=until), now)
        self._engine.check_declarer(connection, table)
        self._engine.refuse_hold(connection, table)
        self._refuse_for_some(connection, table.name)
        stored = policies.find_policy(connection, table.name)
        version = None if stored is None else stored.version + 1
        by = by or self._who(connection)
        hold = holds.place_hold(
            connection, table.name, where=where, until=until, reason=reason, now=now, by=by, version=version
        )
        self._tell(connection, table.name, table, stored, now, "a hold was placed", checks=True)
        return hold

    def release(self, connection: Connection, hold_id: int, *, by: str | None = None) -> Hold:
        """In the caller's transaction. Raises NotFound, or PolicyConflict where it was released before."""
        holds.lock(connection)
        hold, now = holds.get_hold(connection, hold_id), self._engine.now(connection)
        stored, table = policies.find_policy(connection, hold.table), None
        version = None if stored is None else stored.version + 1
        if not holds.end_hold(connection, hold, now=now, by=by or self._who(connection), version=version):
            raise PolicyConflict(f"hold {hold_id} was released before, at {hold.released_at}")
        with suppress(TableNotFound):
            table = self._engine.describe(connection, hold.table)
            self._engine.check_declarer(connection, table)
        self._tell(connection, hold.table, table, stored, now, "a hold was released", checks=False)
        return holds.get_hold(connection, hold_id)

    def _who(self, connection: Connection) -> str:
        """The visitor of the console, or another user that this is done for, and the database's role, where there are
        roles; otherwise the operating system's user."""
        role, user = self._engine.role(connection), acting_user()
        if user is None:
            return role or current_actor().user
        return (user if role is None else f"{user} as {role}")[:NAME_LENGTH]

    def _check(self, connection: Connection, table: Table, wanted: HeldTerm, now: datetime) -> None:
        """Raises TtlSyntaxError, InvalidValue or Unsupported where it is no condition on rows of a table."""
        if table.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
            raise Unsupported(f"{table.name} is a {table.kind}, and holds are for rows of tables")
        if wanted.where is not None and not wanted.where.strip():
            raise InvalidValue("where", wanted.where, "is empty", hint="leave it out to hold all rows")
        # Whatever policy the table has, or none: what is held is read in the same way.
        declared = bind(table, NEVER, [wanted])
        for each in declared.holds:
            if each.where is not None:
                _refuse_other_kind(table, each.where)
        self._engine.condition(connection, declared, now)

    def _tell(
        self,
        connection: Connection,
        name: TableName,
        table: Table | None,
        stored: StoredPolicy | None,
        now: datetime,
        reason: str,
        *,
        checks: bool,
    ) -> None:
        """Of a table that may be gone: its own policy, and those whose deletes cascade to it."""
        if stored is not None:
            terms = [each.term for each in holds.holds_on(connection, now) if each.table == name]
            self._begin_anew(connection, stored, terms, reason, now)
        if stored is not None and table is not None:
            self._rearm(connection, stored, checks=checks)
        for each in policies.list_policies(connection):
            if each.table != name and name in cascades(self._engine, connection, each.table):
                self._begin_anew(connection, each, each.holds, f"{reason} on table {name}", now)

    def _refuse_for_some(self, connection: Connection, name: TableName) -> None:
        """A hold that would keep rows from one policy and not from another is none."""
        kin = self._engine.kin(connection, name)
        for each in policies.list_policies(connection):
            if each.table in kin:
                raise PolicyConflict(
                    f"the policy of table {each.table} deletes rows of {name}, too, and would not know the hold",
                    hint=f"hold rows of {each.table}, or remove that policy: ALTER TABLE {each.table} RESET (ttl)",
                )

    def _begin_anew(
        self, connection: Connection, stored: StoredPolicy, terms: Sequence[HeldTerm], reason: str, now: datetime
    ) -> None:
        holds.tell_policy(connection, stored, terms, now)
        for part in policies.list_tables(connection, stored.id):
            policies.set_next_run(connection, part.id, now)
        self._manager.end_jobs(connection, stored, reason)

    def _rearm(self, connection: Connection, before: StoredPolicy, *, checks: bool) -> None:
        """What the database itself keeps of the policy, and the columns by which its table is known, follow.

        A new hold `checks` whether the server can compute it; of several that it cannot any more, each can be released.
        A table that is blocked because it is not what was declared stays so: a hold says nothing about that.
        """
        is_known = self._is_known(connection, before)
        after = policies.get_policy(connection, before.id)
        assert after is not None
        declared = load_bound(self._engine, connection, after)
        if checks:
            self._engine.check(connection, declared, after.policy)
        self._engine.rearm(connection, declared)
        if is_known:
            armed = self._engine.arm(connection, declared)
            policies.set_armed(connection, after.id, armed, fingerprint(declared))

    def _is_known(self, connection: Connection, stored: StoredPolicy) -> bool:
        """Is the table the one that the policy was declared on?"""
        if stored.armed is None or stored.suspended is not None:
            return False
        try:
            self._engine.check_armed(connection, load_bound(self._engine, connection, stored), stored.armed)
        except Blocked:
            return False
        return True


def _refuse_other_kind(table: Table, where: Node) -> None:
    """Some servers would refuse it, others find it true for no row, or for those with a 0. Raises Unsupported."""
    for node in walk(where):
        match node:
            case Binary(operator=operator, left=left, right=right) if operator in COMPARISONS or operator == "LIKE":
                pairs = [(left, right), (right, left)]
            case Membership(operand=operand, choices=choices):
                pairs = [(operand, choice) for choice in choices]
            case _:
                continue
        for one, other in pairs:
            column = table.column(one.name) if isinstance(one, ColumnRef) else None
            if column is None or not _holds_numbers(column) or not isinstance(other, Text):
                continue
            if not _is_number(other.value):
                raise Unsupported(
                    f"column {column.name} is {column.type}, and {other.value!r} is no number: such a hold keeps no"
                    " row",
                    hint=f"write a number, or compare as text: CAST({column.name} AS text) = {quote_text(other.value)}",
                )


_NUMBERS = re.compile(r"((tiny|small|medium|big)?int|integer|decimal|numeric|real|double|float)\b(?!.*\[)")


def _holds_numbers(column: Column) -> bool:
    return _NUMBERS.match(column.type.lower()) is not None


def _is_number(text: str) -> bool:
    """Or a pattern that a number can match."""
    return re.fullmatch(r"\s*[-+]?[\d.%_]+(e[-+]?\d+)?\s*", text.lower()) is not None
