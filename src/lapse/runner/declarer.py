"""Policies coming, changing and going: database and catalog together, inside the caller's transaction."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.catalog import Catalog, policies, settings, tasks
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import StoredPolicy
from lapse.ddl import render_options
from lapse.engines.base import Declared
from lapse.errors import LapseError, PolicyConflict, TableNotFound
from lapse.model.job import JobStatus
from lapse.model.policy import Policy, PolicyChange
from lapse.model.statement import ColumnAction
from lapse.model.table import MANAGED_COLUMN, Table, TableName
from lapse.runner import declared as declaring
from lapse.schedule import next_run, recurrence


class Declarer:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine

    def change(
        self, connection: Connection, name: TableName, change: PolicyChange, source: str = policies.STATEMENT
    ) -> tuple[str, ...]:
        """Apply a change to a table's policy; returns notices. Raises before anything is done where it can."""
        table = self._engine.describe(connection, name)
        connection = self._catalog.bind(connection)
        self._catalog.ensure(connection)
        stored = policies.find_policy(connection, table.name)
        previous = stored.policy if stored else None
        wanted = change.apply_to(previous, str(table.name))
        if wanted is None:
            if stored is None:
                raise PolicyConflict(f"table {table.name} has no TTL, so there is nothing to remove")
            self.remove(connection, stored)
            return change.notices
        return (*change.notices, *self._put(connection, table, wanted, stored, source))

    def put(self, connection: Connection, name: TableName, wanted: Policy, source: str) -> tuple[str, ...]:
        """Make `wanted` the policy of a table, whatever it was before; returns notices."""
        table = self._engine.describe(connection, name)
        stored = policies.find_policy(connection, table.name)
        return self._put(connection, table, wanted, stored, source)

    def _put(
        self, connection: Connection, table: Table, wanted: Policy, stored: StoredPolicy | None, source: str
    ) -> tuple[str, ...]:
        previous = stored.policy if stored else None
        declared = declaring.declare(table, wanted)
        notices = self._engine.check(connection, declared, previous)
        try:
            self._engine.install(connection, declared, previous)
            with self._engine.atomic(connection):
                self._save(connection, table.name, wanted, stored, source)
        except (LapseError, DBAPIError):
            self._undo(connection, declared, previous)
            raise
        return tuple(notices)

    def disarm(self, connection: Connection, stored: StoredPolicy, reason: str) -> None:
        """Pause a policy in the catalog alone, saying why on each of its physical tables."""
        paused = replace(stored.policy, pause=True)
        policies.save_policy(
            connection,
            stored.table,
            paused,
            reloptions=render_options(paused),
            recurrence=recurrence(paused),
            source=stored.source,
            fingerprint=stored.fingerprint,
            now=self._engine.now(connection),
        )
        self._end_jobs(connection, stored, reason)
        for part in policies.list_tables(connection, stored.id):
            policies.set_trouble(connection, part.id, reason)

    def _undo(self, connection: Connection, declared: Declared, previous: Policy | None) -> None:
        """Put the database back where a rollback does not. What even that cannot mend, `doctor` finds."""
        if self._engine.features.transactional_ddl:
            return
        with suppress(LapseError), self._engine.errors():
            table = self._engine.describe(connection, declared.table.name)
            if previous is None:
                self._engine.uninstall(connection, table, declared.policy)
            else:
                self._engine.install(connection, declaring.declare(table, previous), declared.policy)

    def _save(
        self, connection: Connection, name: TableName, wanted: Policy, stored: StoredPolicy | None, source: str
    ) -> None:
        now = self._engine.now(connection)
        declared = declaring.declare(self._engine.describe(connection, name), wanted)
        saved = policies.save_policy(
            connection,
            name,
            wanted,
            reloptions=render_options(wanted),
            recurrence=recurrence(wanted),
            source=source,
            fingerprint=declaring.fingerprint(declared),
            now=now,
        )
        others = {known.table for known in policies.list_policies(connection)} - {name}
        leaves = declaring.partitions(self._engine, connection, declared.table, others)
        physical = policies.sync_tables(connection, saved.id, leaves)
        if stored is None:
            return
        if not wanted.same_expiry(stored.policy):
            policies.set_guard(connection, saved.id, cleared_at=None)
        if not wanted.same_expiry(stored.policy):
            self._end_jobs(connection, saved, "the policy was changed")
        current = settings.load_settings(connection)
        for part in physical:
            if stored.policy.pause and not wanted.pause:
                policies.set_trouble(connection, part.id, None)
            if not wanted.same_expiry(stored.policy):
                policies.set_next_run(connection, part.id, None)
            elif recurrence(wanted) != recurrence(stored.policy) and part.next_run_at is not None:
                policies.set_next_run(connection, part.id, next_run(wanted, current, after=now))

    def remove(self, connection: Connection, stored: StoredPolicy) -> None:
        """Remove a policy and everything it has put into the database. The table may be gone."""
        with suppress(TableNotFound):
            self._engine.uninstall(connection, self._engine.describe(connection, stored.table), stored.policy)
        self.forget(connection, stored, "the policy was removed")

    def forget(self, connection: Connection, stored: StoredPolicy, reason: str) -> None:
        """Remove a policy from the catalog alone."""
        with self._engine.atomic(connection):
            self._end_jobs(connection, stored, reason)
            policies.delete_policy(connection, stored.id)

    def _end_jobs(self, connection: Connection, stored: StoredPolicy, reason: str) -> None:
        """Whoever is at work finds its lease gone with the tasks and rolls its batch back."""
        now = self._engine.now(connection)
        for job in stored_jobs.active_jobs(connection):
            if job.policy_id == stored.id:
                counts = tasks.spent(connection, job.id, locked=True).counts
                stored_jobs.finish_job(
                    connection, job.id, JobStatus.CANCELLED, reason=reason, summary="{}", counts=counts, now=now
                )

    def stored(self, connection: Connection, name: TableName) -> StoredPolicy | None:
        """The policy of a table whether or not the table exists; None when there is no policy, or no catalog."""
        bound = self._catalog.bind(connection)
        if not self._catalog.is_installed(bound):
            return None
        known = policies.list_policies(bound)
        wanted = (name.name.lower(), (name.schema or "").lower())
        for stored in known:
            if (stored.table.name.lower(), (stored.table.schema or "").lower()) == wanted:
                return stored
        return self._stored_by_description(connection, known, name)

    def _stored_by_description(
        self, connection: Connection, known: list[StoredPolicy], name: TableName
    ) -> StoredPolicy | None:
        """A name without its schema is completed by the database."""
        try:
            full = self._engine.full_name(connection, name)
        except TableNotFound:
            alike = [stored for stored in known if stored.table.name == name.name]
            return alike[0] if len(alike) == 1 and name.schema is None else None
        return next((stored for stored in known if stored.table == replace(full, partition=None)), None)

    def refuse_column_change(
        self, connection: Connection, name: TableName, actions: tuple[tuple[ColumnAction, str], ...]
    ) -> None:
        """Raises PolicyConflict when a policy depends on one of the columns."""
        stored = self.stored(connection, name)
        if stored is None:
            return
        declared = declaring.declare(self._engine.describe(connection, name), stored.policy)
        needed = {column.lower() for column in declaring.needed_columns(declared)}
        if stored.policy.expire_after is not None:
            needed.add(MANAGED_COLUMN)
        for action, column in actions:
            if column.lower() in needed:
                raise PolicyConflict(
                    f"cannot {action} column {column}: the TTL policy of table {stored.table} depends on it",
                    hint=f"remove the policy first: ALTER TABLE {stored.table} RESET (ttl)",
                )
