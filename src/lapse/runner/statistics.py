"""Row counts while a job runs, for policies that ask for them with `ttl_row_stats_poll_interval`."""

from __future__ import annotations

import json
from time import monotonic

from lapse.catalog import Catalog, policies
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import StoredPolicy
from lapse.errors import Blocked, Drift, Refused
from lapse.model.job import Job
from lapse.runner.jobs import JobKeeper
from lapse.runner.service import Service
from lapse.runner.supervisor import Supervisor


class RowCounter(Service):
    """Counts the tables whose turn has come and stores what it found as `table_statistics`."""

    name = "row-counter"
    seconds = 1.0

    def __init__(self, catalog: Catalog, keeper: JobKeeper, supervisor: Supervisor) -> None:
        super().__init__()
        self._catalog = catalog
        self._keeper = keeper
        self._supervisor = supervisor
        self._counted_at: dict[int, float] = {}

    def run_once(self) -> None:
        """Other workers count the tables that they work on."""
        if not any(runner.stored.policy.row_stats_poll_interval for runner in self._supervisor.running()):
            return
        with self._catalog.reading() as connection:
            active = stored_jobs.active_jobs(connection)
            at_work = policies.find_policies(connection, {job.policy_id for job in active})
            asking = {stored.id: stored for stored in at_work if stored.policy.row_stats_poll_interval}
            due = [job for job in active if job.policy_id in asking]
        for job in due:
            stored = asking[job.policy_id]
            interval = stored.policy.row_stats_poll_interval
            assert interval is not None
            if monotonic() - self._counted_at.get(job.table_id, float("-inf")) < interval.approximate_seconds:
                continue
            self._counted_at[job.table_id] = monotonic()
            self._count(job, stored)

    def _count(self, job: Job, stored: StoredPolicy) -> None:
        engine = self._catalog.engine
        try:
            with engine.connection() as connection:
                declared = self._keeper.declared(connection, stored, job.table)
                target = engine.target(connection, declared, engine.now(connection), path=job.path)
                survey = engine.survey(connection, target)
                now = engine.now(connection)
        except (Blocked, Drift, Refused):
            # The job itself fails for this reason and says so.
            return
        statistics = {
            "total_rows": survey.rows,
            "total_expired_rows": survey.expired,
            "counted_at": now.isoformat(),
        }
        with self._catalog.writing() as connection:
            policies.set_statistics(connection, job.table_id, json.dumps(statistics))
