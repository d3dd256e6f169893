"""One look at a database: what the catalog and the server say, read on one connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from lapse.app.health import PolicyHealth, policy_healths
from lapse.app.progress import JobProgress, jobs_progress
from lapse.app.status import TableStatus, table_statuses
from lapse.catalog import Catalog, archive_files, exports, ledger, policies, settings, workers
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.archive_files import PublishedFiles
from lapse.catalog.exports import ExportState
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.workers import WorkerRow
from lapse.engines.base import Footprint
from lapse.errors import CatalogMissing, LapseError
from lapse.model.archive import archive_table, file_url, label
from lapse.model.job import Job
from lapse.model.ledger import Head, LedgerEntry
from lapse.model.settings import Settings
from lapse.runner.controller import Controller, Reading
from lapse.runner.jobs import stale_before

if TYPE_CHECKING:
    from lapse.runner.comments import CommentProblem

HISTORY_LIMIT = 50


class Observation:
    """One look, on one connection; what was read once is not read again.

    Where there is no catalog yet, nothing is listed and every setting has its default.
    """

    def __init__(
        self,
        catalog: Catalog,
        connection: Connection,
        controller: Controller,
        *,
        is_empty: bool,
        undeclared: Callable[[], Sequence[CommentProblem]] = tuple,
    ) -> None:
        self._engine = catalog.engine
        self._connection = connection
        self._controller = controller
        self.is_empty = is_empty
        self._undeclared = undeclared

    @cached_property
    def now(self) -> datetime:
        """By the database's clock."""
        return self._engine.now(self._connection)

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_texts({}) if self.is_empty else settings.load_settings(self._connection)

    @cached_property
    def policies(self) -> list[StoredPolicy]:
        return [] if self.is_empty else policies.list_policies(self._connection)

    @cached_property
    def statuses(self) -> list[TableStatus]:
        """One for each physical table."""
        if self.is_empty:
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
    def undeclared(self) -> list[CommentProblem]:
        """Tables whose rows the database deletes by its own TTL, and not as a policy says: no policy follows it, or the
        database reads times in another zone. As it was within the last minute."""
        try:
            with self._engine.errors():
                return list(self._undeclared())
        except LapseError:
            return []

    @cached_property
    def jobs(self) -> list[Job]:
        """Active ones."""
        return [] if self.is_empty else stored_jobs.active_jobs(self._connection)

    @cached_property
    def native_jobs(self) -> list[Job]:
        """Those that the database runs now by its own TTL, and that no job of Lapse's follows."""
        found = [] if self.is_empty else self._engine.native_jobs(self._connection, None, HISTORY_LIMIT)
        return [job for job in _not_followed(found, self.jobs) if job.status.is_active]

    @cached_property
    def progress(self) -> list[JobProgress]:
        """The active jobs, with their tasks."""
        return jobs_progress(self._engine, self._connection, self.jobs, self.now) if self.jobs else []

    def job(self, job_id: int) -> JobProgress:
        """One job, active or ended. Raises NotFound."""
        if self.is_empty:
            raise CatalogMissing("no TTL policy was ever declared in this database")
        found = stored_jobs.get_job(self._connection, job_id)
        return jobs_progress(self._engine, self._connection, [found], self.now)[0]

    def history(self, stored: StoredPolicy | None = None, *, limit: int = HISTORY_LIMIT) -> list[Job]:
        """Jobs that are active or have ended, newest first."""
        if self.is_empty:
            return []
        name = None if stored is None else stored.table
        own = stored_jobs.recent_jobs(self._connection, limit=limit, name=name)
        others = _not_followed(self._engine.native_jobs(self._connection, name, limit), own)
        return sorted([*own, *others], key=lambda job: job.created_at, reverse=True)[:limit] if others else own

    def ledger(self, *, limit: int, before: int | None = None) -> list[LedgerEntry]:
        """Newest first; `before` is the id of an entry."""
        return [] if self.is_empty else ledger.entries(self._connection, limit=limit, before=before)

    @cached_property
    def ledger_head(self) -> Head | None:
        return None if self.is_empty else ledger.head(self._connection)

    @cached_property
    def exports(self) -> dict[int, tuple[PublishedFiles, ExportState]]:
        """Policy id → the files of its archive, and how their export goes; where rows are archived in files."""
        places = {
            stored.id: label(archive_table(stored.policy.archive, stored.table))
            for stored in self.policies
            if stored.policy.archive is not None and file_url(stored.policy.archive) is not None
        }
        if not places:
            return {}
        kept, states = archive_files.kept_by_outbox(self._connection), exports.read_all(self._connection)
        nothing = PublishedFiles(files=0, rows=0, bytes=0)
        return {
            policy_id: (kept.get(outbox, nothing), states.get(outbox, ExportState(outbox=outbox)))
            for policy_id, outbox in places.items()
        }

    @cached_property
    def workers(self) -> list[WorkerRow]:
        return [] if self.is_empty else workers.list_workers(self._connection)

    @cached_property
    def workers_alive(self) -> dict[str, bool]:
        """Worker → is its heartbeat recent?"""
        before = stale_before(self.now, self.settings)
        return {worker.id: worker.heartbeat_at >= before for worker in self.workers}

    def deleted_per_day(self, days: int) -> dict[int, dict[date, int]]:
        """Rows deleted on each of the last days: policy id → day in UTC → rows."""
        if self.is_empty:
            return {}
        today = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        return stored_jobs.deleted_per_day(self._connection, since=today - timedelta(days=days - 1))

    @cached_property
    def sizes(self) -> dict[int, Footprint]:
        """Policy id → what the engine's counters say. A table that is gone is missing."""
        names = [stored.table for stored in self.policies]
        found = self._engine.footprints(self._connection, names) if names else {}
        return {stored.id: found[stored.table] for stored in self.policies if stored.table in found}

    @property
    def inserted(self) -> dict[int, int | None]:
        """Policy id → rows that were ever inserted, where the server counts them."""
        counted = self._engine.features.counts_inserts
        return {key: size.inserted for key, size in self.sizes.items()} if counted else {}

    @cached_property
    def gauges(self) -> tuple[Reading, ...]:
        """How strained the server is: what this process's controller goes by, or a new reading."""
        try:
            with self._engine.errors():
                tables = {job.table for job in self.jobs}
                return self._controller.current_readings(self._connection, self.settings, tables)
        except LapseError:
            return ()


def _not_followed(native: Sequence[Job], own: Sequence[Job]) -> list[Job]:
    """Of the database's own jobs, those that no job of Lapse's has waited for: that one has their counts."""
    return [job for job in native if not any(_follows(each, job) for each in own)]


def _follows(own: Job, native: Job) -> bool:
    same = own.estimated and own.table == native.table
    end = own.finished_at or native.created_at
    return same and own.created_at <= (native.finished_at or native.created_at) and native.created_at <= end
