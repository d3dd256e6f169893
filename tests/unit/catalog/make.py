"""Rows of the catalog; each maker takes what a test is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from lapse.catalog import jobs, new_jobs, policies
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.model.job import Counts, JobKey, JobStatus, JobSummary, KeyRange, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import TableName
from tests.unit.runner.build import NOW

WHOLE = (KeyRange(),)


def declared(connection: Connection, name: str = "events", policy: Policy | None = None, **fields: Any) -> StoredPolicy:
    values: dict[str, Any] = {
        "reloptions": ("ttl=on",),
        "recurrence": "@hourly",
        "source": policies.STATEMENT,
        "fingerprint": "f",
        "armed": "{}",
        "now": NOW,
        "current": policies.find_policy(connection, TableName(name)),
    }
    return policies.save_policy(connection, TableName(name), policy or Policy(expression="at"), **values | fields)


def tabled(connection: Connection, stored: StoredPolicy, *leaves: str) -> list[PhysicalTable]:
    names = [TableName(stored.table.name, None, leaf) for leaf in leaves] or [stored.table]
    return policies.sync_tables(connection, stored.id, names)


def begun(
    connection: Connection,
    stored: StoredPolicy,
    physical: PhysicalTable,
    *,
    ranges: Sequence[KeyRange] = WHOLE,
    cutoff: datetime = NOW,
    behind: float = 0.0,
) -> int:
    created = new_jobs.create_job(
        connection,
        table_id=physical.id,
        stored=stored,
        name=physical.name_in(stored.table),
        cutoff=cutoff,
        path=Path(kind=PathKind.INDEX, index="by_at", evidence="indexed"),
        fingerprint="f",
        ranges=ranges,
        now=cutoff,
        owner="w1",
        behind=behind,
    )
    return created.job.id


def ended(
    connection: Connection, job_id: int, status: JobStatus = JobStatus.FINISHED, *, at: datetime = NOW, **counts: int
) -> bool:
    return jobs.finish_job(
        connection,
        JobKey.of(jobs.get_job(connection, job_id)),
        status,
        counts=Counts(**counts),
        summary=JobSummary(total_rows=7),
        now=at,
        reason="done",
    )
