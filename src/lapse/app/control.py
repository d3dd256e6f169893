"""What a person tells a policy or a job to do: run now, pause, go on, pass its guard, end."""

from __future__ import annotations

from collections.abc import Iterable

from lapse.catalog import Catalog, jobs, policies
from lapse.catalog.policies import StoredPolicy
from lapse.ddl.names import parse_table_name
from lapse.errors import NotFound, PolicyConflict
from lapse.model.job import Job
from lapse.model.policy import PolicyChange
from lapse.model.statement import JobAction
from lapse.runner.declarer import Declarer
from lapse.runner.identity import DISARMED
from lapse.runner.jobs import JobKeeper


class Control:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._keeper = keeper
        self._declarer = Declarer(catalog)

    def stored(self, table: str) -> StoredPolicy:
        """The policy of a table. Raises NotFound."""
        name = parse_table_name(table, self._engine.dialect)
        with self._catalog.reading() as connection:
            stored = self._declarer.stored(connection, name)
        if stored is None:
            raise NotFound(f"table {table} has no TTL policy", hint="`lapse status` lists the policies")
        return stored

    def confirm(self, wanted: Iterable[StoredPolicy]) -> None:
        """Let their first runs pass, however many rows they delete."""
        with self._catalog.writing() as connection:
            now = self._engine.now(connection)
            for stored in wanted:
                if stored.cleared_at is not None:
                    continue
                policies.set_guard(connection, stored.id, cleared_at=now)
                if stored.held is not None:
                    for part in policies.list_tables(connection, stored.id):
                        policies.set_next_run(connection, part.id, None)

    def request_run(self, stored: StoredPolicy) -> None:
        if stored.policy.pause:
            raise PolicyConflict(f"table {stored.table} is paused (ttl_pause is on)", hint="resume it first")
        with self._catalog.writing() as connection:
            for part in policies.list_tables(connection, stored.id):
                policies.set_next_run(connection, part.id, None)

    def pause(self, stored: StoredPolicy) -> None:
        """A policy that was disarmed is paused on purpose from now on, and no trouble any more."""
        self._set_pause(stored, True)
        with self._catalog.writing() as connection:
            for part in policies.list_tables(connection, stored.id):
                if part.trouble == DISARMED:
                    policies.set_trouble(connection, part.id, None)

    def resume(self, stored: StoredPolicy) -> None:
        self.confirm([stored])
        self._set_pause(stored, False)

    def control(self, job_id: int, action: JobAction) -> Job:
        with self._catalog.writing() as connection:
            jobs.request(connection, job_id, action, self._engine.now(connection))
        return self._keeper.settle(job_id)

    def _set_pause(self, stored: StoredPolicy, pause: bool) -> None:
        change = PolicyChange(set={"pause": pause})
        with self._catalog.writing() as connection:
            self._declarer.change(connection, stored.table, change, stored.source)
        with self._catalog.reading() as connection:
            active = jobs.active_jobs(connection)
        for job in active:
            if job.policy_id == stored.id:
                self._keeper.settle(job.id)
