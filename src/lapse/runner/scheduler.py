"""Which tables are due, and the jobs for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lapse.catalog import Catalog, policies, settings, workers
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.engines.base import Engine
from lapse.errors import Drift
from lapse.model.job import Job
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner import declared as declaring
from lapse.runner.guard import Guard
from lapse.runner.jobs import JobKeeper
from lapse.schedule import next_run

WORKER_MEMORY = timedelta(hours=1)
"""How long a worker that died stays in the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A table that was due, or asked for, and got no job; `held` ones wait for somebody to confirm them."""

    table: TableName
    reason: str
    held: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """One round of the scheduler: the jobs that are active now, and what was skipped."""

    jobs: tuple[Job, ...]
    skipped: tuple[Skip, ...] = ()


class Scheduler:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._keeper = keeper
        self._guard = Guard(catalog, keeper)

    def run_once(self, *, only: StoredPolicy | None = None) -> Tick:
        """Settle what is active and create what is due; with `only`, that policy's jobs whether due or not."""
        with self._catalog.reading() as connection:
            now = self._catalog.engine.now(connection)
            current = settings.load_settings(connection)
            known = [only] if only is not None else policies.list_policies(connection)
            active = stored_jobs.active_jobs(connection)
        for job in active:
            self._keeper.settle(job.id)
        made: list[Job] = []
        skipped: list[Skip] = []
        for stored in known:
            parts = self._physical_tables(stored)
            due = [physical for physical in parts if only is not None or _is_due(physical, now)]
            if not due:
                if stored.held is not None and stored.policy.guard:
                    skipped += [Skip(table=_name(stored, part), reason=stored.held, held=True) for part in parts]
                continue
            reason = _why_not(stored, current, now)
            held = self._guard.why_held(stored, parts) if reason is None else None
            if reason is None and held is None:
                made += [new for physical in due if (new := self._keeper.create(stored, physical)) is not None]
                continue
            if held is not None:
                self._look_again_later(stored, due, current, now)
            skipped += [
                Skip(table=_name(stored, physical), reason=reason or held or "", held=held is not None)
                for physical in due
            ]
        self._forget(now, current)
        return Tick(jobs=tuple(self._to_work_on(known, made)), skipped=tuple(skipped))

    def _look_again_later(
        self, stored: StoredPolicy, due: list[PhysicalTable], current: Settings, now: datetime
    ) -> None:
        """At the time of its next run: the rows may be others then."""
        with self._catalog.writing() as connection:
            for physical in due:
                policies.set_next_run(connection, physical.id, next_run(stored.policy, current, after=now))

    def _to_work_on(self, known: list[StoredPolicy], made: list[Job]) -> list[Job]:
        with self._catalog.reading() as connection:
            active = stored_jobs.active_jobs(connection)
        ids = {stored.id for stored in known}
        found = {job.id: job for job in active if job.policy_id in ids}
        return list(({job.id: job for job in made} | found).values())

    def _physical_tables(self, stored: StoredPolicy) -> list[PhysicalTable]:
        partitions = leaf_names(self._catalog.engine, stored)
        with self._catalog.reading() as connection:
            known = policies.list_tables(connection, stored.id)
        if {physical.partition for physical in known} == set(partitions):
            return known
        with self._catalog.writing() as connection:
            return policies.sync_tables(connection, stored.id, partitions)

    def _forget(self, now: datetime, current: Settings) -> None:
        before = current.history_retention.subtracted_from(now)
        with self._catalog.reading() as connection:
            old = stored_jobs.has_jobs(connection, before=before)
            dead = any(row.heartbeat_at < now - WORKER_MEMORY for row in workers.list_workers(connection))
        if old or dead:
            with self._catalog.writing() as connection:
                stored_jobs.forget_jobs(connection, before=before)
                workers.forget_workers(connection, silent_since=now - WORKER_MEMORY)


def leaf_names(engine: Engine, stored: StoredPolicy) -> list[str | None]:
    """Partitions of the policy's table; `[None]` for a plain table, and for one that is gone: its job says so."""
    with engine.connection() as connection:
        try:
            table = declaring.load(engine, connection, stored).table
        except Drift:
            return [None]
        return [leaf.name.partition for leaf in engine.leaves(connection, table)]


def _is_due(physical: PhysicalTable, now: datetime) -> bool:
    """A table that never had a job is due at once."""
    return physical.next_run_at is None or physical.next_run_at <= now


def _why_not(stored: StoredPolicy, current: Settings, now: datetime) -> str | None:
    if not current.job_enable:
        return "tidb_ttl_job_enable is OFF"
    if stored.policy.pause:
        return "ttl_pause is on"
    if not current.window_is_open(now):
        return "outside the schedule window"
    return None


def _name(stored: StoredPolicy, physical: PhysicalTable) -> TableName:
    return TableName(stored.table.name, stored.table.schema, physical.partition)
