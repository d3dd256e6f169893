"""Policies coming, changing and going: database and catalog together, inside the caller's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.catalog import Catalog, exports, holds, ledger, meta, policies, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.schema import metadata
from lapse.ddl import parse_expression, without_policy
from lapse.ddl.render import render_options
from lapse.engines.base import BoundPolicy, Engine
from lapse.engines.values import HeldRows
from lapse.errors import Blocked, InvalidValue, LapseError, NotPermitted, PolicyConflict, TableNotFound
from lapse.model import archive
from lapse.model.archive import ARCHIVED_AT, archive_table
from lapse.model.blocked import BlockCode
from lapse.model.expression import columns as expression_columns
from lapse.model.hold import HeldTerm
from lapse.model.job import JobKey, JobStatus
from lapse.model.ledger import EntryKind
from lapse.model.policy import Policy, PolicyChange
from lapse.model.statement import ColumnAction
from lapse.model.suggestion import suggest_or_list
from lapse.model.table import MANAGED_COLUMN, Table, TableName
from lapse.runner import destination
from lapse.runner.place import note_place
from lapse.schedule import next_run, recurrence


def bind(table: Table, policy: Policy, holds: Sequence[HeldTerm] = ()) -> BoundPolicy:
    """Raises TtlSyntaxError or InvalidValue when the policy does not fit the table."""
    names = {column.name for column in table.columns} | policy_columns(policy)
    declared = _read(table, policy, names, holds)
    folded = {name.lower() for name in names}
    for column in declared.columns_read:
        if column.lower() not in folded:
            hint = suggest_or_list(column, (each.name for each in table.columns), "its columns are")
            raise InvalidValue("TTL column", column, f"does not exist in table {table.name}", hint=hint)
    return declared


def policy_leaves(
    engine: Engine, connection: Connection, table: Table, others: Callable[[], Collection[TableName]]
) -> list[TableName]:
    """The physical tables under one policy: all leaves, but for those that have a policy of their own.

    `others` are the tables of other policies, asked for where the table has leaves.
    """
    names = engine.leaf_names(connection, table)
    if names == [table.name]:
        return names
    taken = others()
    return [name for name in names if engine.standalone_name(name) not in taken]


def load_bound(engine: Engine, connection: Connection, stored: StoredPolicy) -> BoundPolicy:
    """Raises Blocked when the table or a column that the policy needs is gone."""
    try:
        table = engine.describe(connection, stored.table)
    except TableNotFound as error:
        raise Blocked(
            BlockCode.TABLE_GONE,
            f"table {stored.table} does not exist any more",
            hint="lapse doctor URL --repair forgets its policy",
        ) from error
    return bound_to(table, stored)


def bound_to(table: Table, stored: StoredPolicy) -> BoundPolicy:
    """As `load_bound`, of a table that was described just now."""
    declared = _read(table, stored.policy, None, stored.holds)
    for name in declared.columns_read:
        if table.column(name) is None and name not in policy_columns(stored.policy):
            by = next((each for each in declared.holds if each.where and name in expression_columns(each.where)), None)
            raise Blocked(
                BlockCode.COLUMN_CHANGED,
                f"table {stored.table} has no column {name} any more, which"
                f" {'its TTL policy' if by is None else f'hold {by.id}'} needs",
                hint=f"ALTER TABLE {stored.table} RESET (ttl), or declare the policy anew"
                if by is None
                else f"bring the column back, or, if the rows may go: lapse release URL {by.id}",
            )
    return declared


def _read(table: Table, policy: Policy, columns: Collection[str] | None, holds: Sequence[HeldTerm]) -> BoundPolicy:
    texts = (policy.expression, policy.filter, *(each.where for each in holds))
    nodes = [None if text is None else parse_expression(text, columns=columns) for text in texts]
    held = tuple(
        HeldRows(id=each.id, where=node, text=each.where, until=each.until)
        for each, node in zip(holds, nodes[2:], strict=True)
    )
    return BoundPolicy(table=table, policy=policy, expression=nodes[0], filter=nodes[1], holds=held)


def policy_columns(policy: Policy) -> set[str]:
    """Columns that the policy itself brings along."""
    return {MANAGED_COLUMN} if policy.expire_after is not None else set()


def as_stored(policy: Policy, table: TableName) -> Policy:
    """With the name of its archive table written out."""
    return policy if policy.archive is None else replace(policy, archive=archive.complete(policy.archive, table))


def fingerprint(declared: BoundPolicy) -> str:
    """Changes when a column that the policy or the paging depends on changes its name or type."""
    table = declared.table
    names = [*declared.columns_read, *table.primary_key, *table.key]
    shape = [(name, column.type.lower()) for name in names if (column := table.column(name)) is not None]
    return hashlib.sha256(json.dumps([shape, table.key]).encode()).hexdigest()[:16]


class PolicyManager:
    def __init__(self, catalog: Catalog, *, many: bool = False) -> None:
        """`many`: for several declarations on connections of Lapse's own, one right after the other; what is the same
        for all, as the database's place and the role, is asked with the first."""
        self._catalog = catalog
        self._engine = catalog.engine
        self._many = many
        self._place_is_noted = False
        self._role: str | None = None

    def change(
        self, connection: Connection, name: TableName, change: PolicyChange, source: str = policies.STATEMENT
    ) -> tuple[str, ...]:
        """Apply a change to a table's policy; returns notices. Raises before anything is done where it can."""
        table = self._engine.describe(connection, name)
        connection = self._catalog.bind(connection)
        self._catalog.ensure(connection)
        stored = policies.find_policy(connection, table.name)
        follows = change.comment is not None and (stored is None or stored.source == policies.COMMENT)
        previous = stored.policy if stored and not follows else None
        wanted = change.apply_to(previous, str(table.name))
        if wanted is None:
            if stored is None:
                raise PolicyConflict(f"table {table.name} has no TTL, so there is nothing to remove")
            self.remove(connection, stored)
            self._clear_comment(connection, table)
            return change.notices
        text = stored.source_text if stored and source == policies.COMMENT else None
        if follows:
            # A comment says all there is to say, but for a pause that a person asked for.
            source, text = policies.COMMENT, change.comment
            if stored is not None and "pause" not in change.set:
                wanted = replace(wanted, pause=stored.policy.pause)
        return (*change.notices, *self._put(connection, table, wanted, stored, source, text))

    def put(self, connection: Connection, name: TableName, wanted: Policy, source: str) -> tuple[str, ...]:
        """Make `wanted` the policy of a table, whatever it was before; returns notices."""
        table = self._engine.describe(connection, name)
        stored = policies.find_policy(connection, table.name)
        return self._put(connection, table, wanted, stored, source)

    def _clear_comment(self, connection: Connection, table: Table) -> None:
        """What a comment declares would come back."""
        # Uninstalling may have changed it.
        comment = self._engine.describe(connection, table.name).comment or ""
        left = without_policy(comment)
        if left == comment:
            return
        try:
            with self._engine.atomic(connection):
                self._engine.set_comment(connection, table.name, left)
        except NotPermitted:
            meta.reject_comment(connection, table.name, comment)

    def _put(
        self,
        connection: Connection,
        table: Table,
        wanted: Policy,
        stored: StoredPolicy | None,
        source: str,
        source_text: str | None = None,
    ) -> tuple[str, ...]:
        previous = stored.policy if stored else None
        wanted = as_stored(wanted, table.name)
        self._refuse_shared_archive(connection, table.name, wanted, stored)
        declared = bind(table, wanted, self._holds(connection, table.name, stored))
        notices = self._engine.check(connection, declared, previous)
        destination.check(self._engine, connection, declared, previous)
        arms = stored is None or self._changes_hands(connection, declared, stored)
        try:
            installed = self._engine.install(connection, declared, previous)
            with self._engine.atomic(connection):
                self._save(connection, replace(declared, table=installed), stored, source, source_text, arms=arms)
                self._keep_archive(connection, table.name, previous, wanted)
                destination.claim(self._catalog.bind(connection), wanted, previous)
        except (LapseError, DBAPIError):
            self._undo(connection, declared, previous)
            raise
        return tuple(notices)

    def arm(self, connection: Connection, stored: StoredPolicy) -> None:
        """A person says that the policy is meant for its table as it is now. Raises Blocked where parts are missing."""
        declared = load_bound(self._engine, connection, stored)
        self._engine.rearm(connection, declared)
        armed = self._engine.check_armed(connection, declared, self._engine.arm(connection, declared))
        policies.set_armed(connection, stored.id, armed, fingerprint(declared))
        policies.end_grace(connection, stored.id)
        policies.unblock_tables(connection, stored.id)
        now = self._engine.now(connection)
        ledger.record(connection, EntryKind.CONFIRMED, now=now, table=stored.table, after={"by": "resume"})

    def _changes_hands(self, connection: Connection, declared: BoundPolicy, stored: StoredPolicy) -> bool:
        """False where the table is not the one that was armed: it stays blocked."""
        if stored.armed is None or not self._engine.changes_hands(connection, declared):
            return False
        try:
            self._engine.check_armed(connection, bound_to(declared.table, stored), stored.armed)
        except LapseError:
            return False
        return True

    def _undo(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
        """Put the database back where a rollback does not. What even that cannot undo, `doctor` finds."""
        if self._engine.features.transactional_ddl:
            return
        with suppress(LapseError), self._engine.errors():
            table = self._engine.describe(connection, declared.table.name)
            if previous is None:
                self._engine.uninstall(connection, table, declared.policy)
            else:
                self._engine.install(connection, bind(table, previous), declared.policy)

    def _save(
        self,
        connection: Connection,
        declared: BoundPolicy,
        stored: StoredPolicy | None,
        source: str,
        source_text: str | None,
        *,
        arms: bool,
    ) -> None:
        """`arms`: the table is the one that is meant, as it is now."""
        name, wanted = declared.table.name, declared.policy
        now = self._engine.now(connection)
        self._note_place(connection, now)
        # Another parameter is no word about which table is meant: what was armed stays armed.
        means_the_same = stored is not None and wanted.same_expiry(stored.policy)
        kept = stored if means_the_same and stored is not None and stored.armed is not None else None
        grace = _grace_until(stored, wanted, now)
        said = (wanted, source, source_text)
        if kept is not None and stored is not None and said == (stored.policy, stored.source, stored.source_text):
            saved = stored
        else:
            saved = policies.save_policy(
                connection,
                name,
                wanted,
                reloptions=render_options(wanted),
                recurrence=recurrence(wanted),
                source=source,
                fingerprint=kept.fingerprint if kept else fingerprint(declared),
                armed=kept.armed if kept and kept.armed and not arms else self._engine.arm(connection, declared),
                suspended=kept.suspended if kept else None,
                grace_until=grace,
                declared_by=self._declarer(connection),
                source_text=source_text,
                holds=[HeldTerm(id=each.id, where=each.text, until=each.until) for each in declared.holds],
                now=now,
                current=stored,
            )
        leaves = policy_leaves(
            self._engine, connection, declared.table, lambda: policies.policy_tables(connection) - {name}
        )
        physical: list[PhysicalTable] = []
        if stored is None:
            policies.add_tables(connection, saved.id, leaves)
        else:
            physical = policies.sync_tables(connection, saved.id, leaves)
        if source_text is not None and (stored is None or stored.source_text != source_text):
            meta.accept_comment(connection, name, source_text)
            policies.unblock_tables(connection, saved.id)
        if stored is None:
            return
        if not means_the_same:
            policies.set_guard(connection, saved.id, cleared_at=None)
            policies.unblock_tables(connection, saved.id)
            self.end_jobs(connection, saved, "the policy was changed")
        if (wanted.archive, wanted.ledger_keys) != (stored.policy.archive, stored.policy.ledger_keys):
            self._plan_anew(connection, saved, physical)
        current = settings.load_settings(connection)
        for part in physical:
            if not means_the_same:
                policies.set_next_run(connection, part.id, None)
            elif recurrence(wanted) != recurrence(stored.policy) and part.next_run_at is not None:
                policies.set_next_run(connection, part.id, next_run(wanted, current, after=now))

    def _plan_anew(self, connection: Connection, saved: StoredPolicy, physical: Sequence[PhysicalTable]) -> None:
        """No batch that was planned before goes by where rows and their keys went, or did not go, until now."""
        for part in physical:
            policies.set_next_run(connection, part.id, part.next_run_at)
        self.end_jobs(connection, saved, "where its rows, or their keys, are kept was changed")
        policies.plan_anew(connection, saved.id)

    def _refuse_shared_archive(
        self, connection: Connection, name: TableName, wanted: Policy, stored: StoredPolicy | None
    ) -> None:
        """Rows of two tables in one archive could not be told apart."""
        if wanted.archive is None or (stored is not None and stored.policy.archive == wanted.archive):
            return
        bound, place = self._catalog.bind(connection), archive_table(wanted.archive, name)
        for each in policies.list_policies(bound):
            if each.table == place != name and each.source != policies.ARCHIVE:
                raise PolicyConflict(
                    f"table {place} has a TTL policy of its own, so it cannot be an archive",
                    hint="name another one: ttl_archive = 'table:NAME'",
                )
        others = stored_jobs.archived_from(bound, wanted.archive, but=stored.id if stored else None) | {
            each.table
            for each in policies.list_policies(bound)
            if each.policy.archive is not None and archive_table(each.policy.archive, each.table) == place
        }
        if others - {name}:
            raise PolicyConflict(
                f"{place} is the archive of table {min(map(str, others - {name}))}",
                hint="name another one: ttl_archive = 'table:NAME'",
            )

    def _keep_archive(self, connection: Connection, name: TableName, before: Policy | None, after: Policy) -> None:
        """The archive table has a policy by `ttl_archive_keep`, which comes and goes with that of the table."""
        if before is not None and before.archive is not None and before.archive != after.archive:
            self._forget_archive(connection, name, before)
        if after.archive is None:
            return
        place = archive_table(after.archive, name)
        if before is None or before.archive != after.archive:
            # What was met at another destination, or before it was declared anew, says nothing about this one.
            exports.forget(connection, archive.label(place))
        if after.archive_keep is None or archive.file_url(after.archive) is not None:
            # Files are removed by their exporter; what waits in an outbox is not kept there.
            self._forget_archive(connection, name, after)
            return
        wanted = Policy(column=ARCHIVED_AT, interval=after.archive_keep, time_zone="UTC")
        stored = policies.find_policy(connection, place)
        if stored is None or stored.policy != replace(wanted, pause=stored.policy.pause):
            self._put(connection, self._engine.describe(connection, place), wanted, stored, policies.ARCHIVE)

    def _forget_archive(self, connection: Connection, name: TableName, policy: Policy) -> None:
        """Its rows stay until a person removes them."""
        if policy.archive is None:
            return
        stored = policies.find_policy(connection, archive_table(policy.archive, name))
        if stored is not None and stored.source == policies.ARCHIVE:
            self.remove(connection, stored)

    def _note_place(self, connection: Connection, now: datetime) -> None:
        if self._many and self._place_is_noted:
            return
        place = self._engine.place(connection)
        if place is not None:
            note_place(connection, place, now)
        self._place_is_noted = True

    def _declarer(self, connection: Connection) -> str | None:
        if not self._many or self._role is None:
            self._role = self._engine.role(connection)
        return self._role

    def _holds(self, connection: Connection, name: TableName, stored: StoredPolicy | None) -> Sequence[HeldTerm]:
        """A new policy begins with what is held already."""
        if stored is not None:
            return stored.holds
        bound = self._catalog.bind(connection)
        if not self._catalog.is_installed(bound):
            return ()
        holds.lock(bound)
        found = holds.unreleased(bound)
        for each in found:
            is_over = each.until is not None and each.until <= self._engine.now(bound)
            if each.table != name and not is_over and each.table in self._engine.kin(connection, name):
                raise PolicyConflict(
                    f"hold {each.id} is for rows of table {each.table} that are rows of {name}, whose policy would not"
                    " know it",
                    hint=f"declare the policy on {each.table}, or, if the rows may go: lapse release URL {each.id}",
                )
        return [each.term for each in found if each.table == name]

    def remove(self, connection: Connection, stored: StoredPolicy) -> None:
        """Remove a policy and everything it has put into the database. The table may be gone."""
        with suppress(TableNotFound):
            self._engine.uninstall(connection, self._engine.describe(connection, stored.table), stored.policy)
        self.forget(connection, stored, "the policy was removed")

    def forget(self, connection: Connection, stored: StoredPolicy, reason: str) -> None:
        """Remove a policy from the catalog alone."""
        with self._engine.atomic(connection):
            self.end_jobs(connection, stored, reason)
            policies.delete_policy(connection, stored, reason=reason, now=self._engine.now(connection))
            self._forget_archive(connection, stored.table, stored.policy)

    def end_jobs(self, connection: Connection, stored: StoredPolicy, reason: str) -> None:
        """A worker at one finds its lease gone with the tasks and rolls its batch back."""
        now = self._engine.now(connection)
        for job in stored_jobs.active_jobs(connection):
            if job.policy_id == stored.id:
                spent = tasks.spent(connection, job.id, locked=True)
                summary = spent.summary(since=job.started_at or job.created_at, now=now)
                stored_jobs.finish_job(
                    connection,
                    JobKey.of(job),
                    JobStatus.CANCELLED,
                    reason=reason,
                    summary=summary,
                    counts=spent.counts,
                    now=now,
                )

    def stored(self, connection: Connection, name: TableName) -> StoredPolicy | None:
        """The policy of a table whether or not the table exists; None when there is no policy, or no catalog."""
        bound = self._catalog.bind(connection)
        # A script that restores a catalog drops and makes its tables one by one.
        if name.name.lower() in metadata.tables or not self._catalog.is_installed(bound):
            return None
        known = policies.list_policies(bound)
        try:
            # The database completes the name and knows whether case means anything.
            full = replace(self._engine.full_name(connection, name), partition=None)
        except TableNotFound:
            return _of_table_that_is_gone(known, name)
        return next((stored for stored in known if stored.table == full), None)

    def refuse_column_change(
        self, connection: Connection, name: TableName, actions: tuple[tuple[ColumnAction, str], ...]
    ) -> None:
        """Raises PolicyConflict when a policy depends on one of the columns."""
        stored = self.stored(connection, name)
        if stored is None:
            return
        declared = bind(self._engine.describe(connection, name), stored.policy, stored.holds)
        needed = {column.lower() for column in declared.columns_read}
        if stored.policy.expire_after is not None:
            needed.add(MANAGED_COLUMN)
        for action, column in actions:
            if column.lower() in needed:
                raise PolicyConflict(
                    f"cannot {action} column {column}: the TTL policy of table {stored.table} depends on it",
                    hint=f"remove the policy first: ALTER TABLE {stored.table} RESET (ttl)",
                )


def _of_table_that_is_gone(known: list[StoredPolicy], name: TableName) -> StoredPolicy | None:
    """The one whose name is that one, or the only one that differs from it in case or by a schema that was left out."""

    def folded(table: TableName) -> tuple[str, str]:
        return table.name.lower(), (table.schema or "").lower()

    exact = [stored for stored in known if stored.table == name]
    by_case = [stored for stored in known if folded(stored.table) == folded(name)]
    by_schema = [stored for stored in known if name.schema is None and stored.table.name == name.name]
    return next((alike[0] for alike in (exact, by_case, by_schema) if len(alike) == 1), None)


def _grace_until(stored: StoredPolicy | None, wanted: Policy, now: datetime) -> datetime | None:
    """A grace period that lasts follows `ttl_grace`; one that is over is not begun again by it."""
    if stored is None or wanted.may_expire_sooner_than(stored.policy):
        began = now
    elif stored.grace_until is not None and stored.grace_until > now and wanted.grace != stored.policy.grace:
        began = stored.policy.grace.subtracted_from(stored.grace_until)
    else:
        return stored.grace_until
    return wanted.grace.added_to(began) if wanted.grace else None
