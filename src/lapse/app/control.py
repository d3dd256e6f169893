"""What a person tells a policy or a job to do: run now, pause, go on, pass its guard, end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection

from lapse.app.nearby import suggesting_tables
from lapse.catalog import Catalog, holds, jobs, ledger, policies
from lapse.catalog.policies import StoredPolicy
from lapse.ddl.names import parse_table_name
from lapse.errors import NotFound, PolicyConflict, TableNotFound
from lapse.model.hold import Hold
from lapse.model.job import Job
from lapse.model.ledger import EntryKind
from lapse.model.policy import PAUSED_BY_POLICY, PolicyChange
from lapse.model.statement import JobAction
from lapse.model.table import TableName
from lapse.runner.comments import CommentReader
from lapse.runner.holds import Holder
from lapse.runner.jobs import JobKeeper
from lapse.runner.policy_manager import PolicyManager

WHICH_HAVE = "`lapse status` lists the policies"


class Control:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._keeper = keeper
        self._manager = PolicyManager(catalog)
        self._reader = CommentReader(catalog)
        self._holder = Holder(catalog)

    def stored(self, table: str) -> StoredPolicy:
        """The policy of a table. Raises NotFound."""
        name = parse_table_name(table, self._engine.dialect)
        with self._engine.connection() as connection:
            stored = self._manager.stored(connection, name)
            if stored is None and self._engine.features.table_comments:
                stored = self._from_comment(connection, name)
            if stored is None:
                with suggesting_tables(self._engine, connection, name):
                    self._engine.full_name(connection, name)
                self._catalog.require(connection)
        if stored is None:
            raise NotFound(f"table {table} has no TTL policy", hint=WHICH_HAVE)
        return stored

    def _from_comment(self, connection: Connection, name: TableName) -> StoredPolicy | None:
        """A comment that workers obey is obeyed here as well. Raises NotFound for a proposal."""
        try:
            full = self._engine.full_name(connection, name)
        except TableNotFound:
            return None
        for problem in self._reader.run_once():
            if problem.table == full:
                raise NotFound(f"table {full} has no TTL policy: {problem.reason}", hint=problem.fix)
        return self._manager.stored(connection, name)

    def accept(self, table: str) -> tuple[str, ...]:
        """Make what the comment of a table proposes its policy, with the rights of this role; returns notices."""
        name = parse_table_name(table, self._engine.dialect)
        with self._catalog.writing() as connection:
            comment, fields = self._reader.find(connection, name)
            stored = self._manager.stored(connection, comment.table)
            if stored is not None and stored.source != policies.COMMENT:
                raise PolicyConflict(
                    f"table {stored.table} has a policy that was declared by a {stored.source}, which wins",
                    hint=f"remove it first: ALTER TABLE {stored.table} RESET (ttl)",
                )
            self._engine.check_declarer(connection, self._engine.describe(connection, comment.table))
            change = PolicyChange(set=fields, comment=comment.text)
            return self._manager.change(connection, comment.table, change)

    def confirm(self, wanted: Iterable[StoredPolicy]) -> None:
        """Let their first runs pass, however many rows they delete."""
        with self._catalog.writing() as connection:
            now = self._engine.now(connection)
            for stored in wanted:
                if stored.cleared_at is not None:
                    continue
                policies.set_guard(connection, stored.id, cleared_at=now)
                said = {"by": "confirmation"} | ({"reason": stored.held} if stored.held else {})
                ledger.record(connection, EntryKind.CONFIRMED, now=now, table=stored.table, after=said)
                if stored.held is not None:
                    for part in policies.list_tables(connection, stored.id):
                        policies.set_next_run(connection, part.id, None)

    def request_run(self, stored: StoredPolicy) -> None:
        if stored.policy.pause:
            raise PolicyConflict(f"table {stored.table} is paused ({PAUSED_BY_POLICY})", hint="resume it first")
        with self._catalog.writing() as connection:
            policies.end_grace(connection, stored.id)
            for part in policies.list_tables(connection, stored.id):
                policies.set_next_run(connection, part.id, None)
            now = self._engine.now(connection)
            ledger.record(connection, EntryKind.REQUESTED, now=now, table=stored.table)

    def pause(self, stored: StoredPolicy) -> None:
        self._set_pause(stored, True)

    def resume(self, stored: StoredPolicy) -> None:
        """Whatever kept the policy from deleting: a person says that it may, on the table as it is now."""
        with self._catalog.writing() as connection:
            self._manager.arm(connection, stored)
        self.confirm([stored])
        if stored.policy.pause:
            self._set_pause(stored, False)

    def hold(self, table: str | TableName, *, where: str | None, until: datetime | None, reason: str | None) -> Hold:
        """Returns when no batch, of whichever worker, can delete a held row any more."""
        name = parse_table_name(table, self._engine.dialect) if isinstance(table, str) else table
        with self._catalog.writing() as connection:
            with suggesting_tables(self._engine, connection, name):
                found = self._engine.describe(connection, name)
            return self._holder.place(connection, found, where=where, until=until, reason=reason)

    def release(self, hold_id: int) -> Hold:
        with self._catalog.writing() as connection:
            return self._holder.release(connection, hold_id)

    def holds(self) -> list[Hold]:
        """All there ever were."""
        with self._engine.connection() as connection:
            bound = self._catalog.bind(connection)
            return holds.list_holds(bound) if self._catalog.is_installed(bound) else []

    def holds_on(self) -> list[Hold]:
        """Those that keep rows now."""
        with self._engine.connection() as connection:
            bound = self._catalog.bind(connection)
            if not self._catalog.is_installed(bound):
                return []
            return holds.holds_on(bound, self._engine.now(connection))

    def control(self, job_id: int, action: JobAction) -> Job:
        with self._catalog.writing() as connection:
            jobs.request(connection, job_id, action, self._engine.now(connection))
        return self._keeper.settle(job_id)

    def _set_pause(self, stored: StoredPolicy, pause: bool) -> None:
        change = PolicyChange(set={"pause": pause})
        with self._catalog.writing() as connection:
            self._manager.change(connection, stored.table, change, stored.source)
        with self._catalog.reading() as connection:
            active = jobs.active_jobs(connection)
        for job in active:
            if job.policy_id == stored.id:
                self._keeper.settle(job.id)
