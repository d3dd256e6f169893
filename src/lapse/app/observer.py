"""Looking at a database: one connection per page, scrape or command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING

from lapse.catalog import Catalog
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import Engine, Footprint
from lapse.errors import CatalogMissing
from lapse.model.job import Job

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from lapse.app.health import PolicyHealth
    from lapse.app.observation import Observation
    from lapse.app.progress import JobProgress
    from lapse.app.status import TableStatus
    from lapse.catalog.workers import WorkerRow
    from lapse.runner.comments import CommentProblem
    from lapse.runner.controller import Controller, Reading


class Observer:
    """What can be asked about one database. `observe` answers several questions on one connection."""

    def __init__(self, engine: Engine, *, gate_sql: str | None = None) -> None:
        self.engine = engine
        self.catalog = Catalog(engine)
        self._gate_sql = gate_sql
        self._undeclared: tuple[CommentProblem, ...] = ()
        self._undeclared_at = float("-inf")

    @cached_property
    def _controller(self) -> Controller:
        from lapse.runner.controller import Controller

        return Controller(self.catalog, self._gate_sql)

    @contextmanager
    def observe(self, *, may_be_empty: bool = False) -> Iterator[Observation]:
        """Raises CatalogMissing where nothing was ever declared, unless the observation `may_be_empty`."""
        from lapse.app.observation import Observation

        with self.engine.connection() as connection:
            bound = self.catalog.bind(connection)
            is_empty = False
            try:
                self.catalog.require(bound)
            except CatalogMissing:
                if not may_be_empty:
                    raise
                is_empty = True
            yield Observation(
                self.catalog,
                bound,
                self._controller,
                is_empty=is_empty,
                undeclared=lambda: self._look_for_undeclared(bound),
            )

    def _look_for_undeclared(self, connection: Connection) -> tuple[CommentProblem, ...]:
        """Each takes a statement, and pages and scrapes are many: what was found is remembered for a while."""
        from lapse.runner.comments import READ_SECONDS, CommentReader

        if monotonic() - self._undeclared_at > READ_SECONDS:
            self._undeclared = tuple(CommentReader(self.catalog).undeclared(connection))
            self._undeclared_at = monotonic()
        return self._undeclared

    def policies(self) -> list[StoredPolicy]:
        with self.observe() as seen:
            return seen.policies

    def status(self) -> list[TableStatus]:
        with self.observe() as seen:
            return seen.statuses

    def health(self) -> list[PolicyHealth]:
        """Whether each policy keeps its promise; without a scan."""
        with self.observe() as seen:
            return seen.healths

    def jobs(self) -> list[Job]:
        """Jobs that are active now, those included that the database runs by its own TTL."""
        with self.observe() as seen:
            return [*seen.jobs, *seen.native_jobs]

    def progress(self) -> list[JobProgress]:
        """Jobs that are active now, with their tasks."""
        with self.observe() as seen:
            return seen.progress

    def job(self, job_id: int) -> JobProgress:
        """One job, active or ended. Raises NotFound."""
        with self.observe() as seen:
            return seen.job(job_id)

    def workers(self) -> list[WorkerRow]:
        with self.observe() as seen:
            return seen.workers

    def deleted_per_day(self, days: int) -> dict[int, dict[date, int]]:
        """Rows deleted on each of the last days: policy id → day in UTC → rows."""
        with self.observe() as seen:
            return seen.deleted_per_day(days)

    def sizes(self) -> dict[int, Footprint]:
        """Policy id → what the engine's counters say. A table that is gone is missing."""
        with self.observe() as seen:
            return seen.sizes

    def gauges(self) -> tuple[Reading, ...]:
        """How strained the server is, as the controller sees it."""
        with self.observe(may_be_empty=True) as seen:
            return seen.gauges

    def clock_hold(self) -> str | None:
        """Why the database's clock is not trusted, until a person confirms it."""
        with self.observe() as seen:
            return seen.settings.clock_hold

    def clock(self) -> datetime:
        """The database's."""
        with self.engine.connection() as connection:
            return self.engine.now(connection)

    def comments(self) -> list[CommentProblem]:
        """Comments that ask for a policy and are not obeyed: proposals, and what is wrong. Changes nothing."""
        from lapse.runner.comments import CommentReader

        with self.engine.connection() as connection:
            return list(CommentReader(self.catalog).look(connection).problems)

    def estimate_rows(self, job: Job) -> int:
        """Roughly how many rows the job's table has, without a scan."""
        with self.engine.connection() as connection:
            return self.engine.estimate_rows(connection, self.engine.describe(connection, job.table))
