"""One look at a database: what the catalog and the server say, read on one connection."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from functools import cached_property

from sqlalchemy import Connection

from lapse.app.health import PolicyHealth, policy_healths
from lapse.app.progress import JobProgress, jobs_progress
from lapse.app.status import TableStatus, table_statuses
from lapse.catalog import Catalog, policies, settings, workers
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.workers import WorkerRow
from lapse.engines.base import Footprint
from lapse.errors import CatalogMissing, LapseError
from lapse.model.job import Job
from lapse.model.settings import Settings
from lapse.runner.controller import Controller, Reading
from lapse.runner.jobs import stale_before

HISTORY_LIMIT = 50


class Observation:
    """One look, on one connection; what was read once is not read again.

    Where there is no catalog yet, nothing is listed and every setting has its default.
    """

    def __init__(self, catalog: Catalog, connection: Connection, controller: Controller, *, is_empty: bool) -> None:
        self._engine = catalog.engine
        self._connection = connection
        self._controller = controller
        self._is_empty = is_empty

    @cached_property
    def now(self) -> datetime:
        """By the database's clock."""
        return self._engine.now(self._connection)

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_texts({}) if self._is_empty else settings.load_settings(self._connection)

    @cached_property
    def policies(self) -> list[StoredPolicy]:
        return [] if self._is_empty else policies.list_policies(self._connection)

    @cached_property
    def statuses(self) -> list[TableStatus]:
        """One for each physical table."""
        if self._is_empty:
            return []
        return table_statuses(
            self._connection,
            self._engine,
            now=self.now,
            settings=self.settings,
            stored=self.policies,
            jobs=self.jobs,
            workers=self.workers,
        )

    @cached_property
    def healths(self) -> list[PolicyHealth]:
        """Whether each policy keeps its promise; without a scan."""
        return policy_healths(self.statuses)

    @cached_property
    def jobs(self) -> list[Job]:
        """Active ones."""
        return [] if self._is_empty else stored_jobs.active_jobs(self._connection)

    @cached_property
    def progress(self) -> list[JobProgress]:
        """The active jobs, with their tasks."""
        return jobs_progress(self._engine, self._connection, self.jobs, self.now) if self.jobs else []

    def job(self, job_id: int) -> JobProgress:
        """One job, active or ended. Raises NotFound."""
        if self._is_empty:
            raise CatalogMissing("no TTL policy was ever declared in this database")
        found = stored_jobs.get_job(self._connection, job_id)
        return jobs_progress(self._engine, self._connection, [found], self.now)[0]

    def history(self, stored: StoredPolicy | None = None, *, limit: int = HISTORY_LIMIT) -> list[Job]:
        """Jobs that are active or have ended, newest first."""
        if self._is_empty:
            return []
        return stored_jobs.recent_jobs(self._connection, limit=limit, name=None if stored is None else stored.table)

    @cached_property
    def workers(self) -> list[WorkerRow]:
        return [] if self._is_empty else workers.list_workers(self._connection)

    @cached_property
    def workers_alive(self) -> dict[str, bool]:
        """Worker → is its heartbeat recent?"""
        before = stale_before(self.now, self.settings)
        return {worker.id: worker.heartbeat_at >= before for worker in self.workers}

    def deleted_per_day(self, days: int) -> dict[int, dict[date, int]]:
        """Rows deleted on each of the last days: policy id → day in UTC → rows."""
        if self._is_empty:
            return {}
        today = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        return stored_jobs.deleted_per_day(self._connection, since=today - timedelta(days=days - 1))

    @cached_property
    def sizes(self) -> dict[int, Footprint]:
        """Policy id → what the engine's counters say. A table that is gone is missing."""
        names = [stored.table for stored in self.policies]
        found = self._engine.footprints(self._connection, names) if names else {}
        return {stored.id: found[stored.table] for stored in self.policies if stored.table in found}

    @cached_property
    def gauges(self) -> tuple[Reading, ...]:
        """How strained the server is: what this process's controller goes by, or a new reading."""
        try:
            with self._engine.errors():
                return self._controller.current_readings(self._connection, self.settings)
        except LapseError:
            return ()
