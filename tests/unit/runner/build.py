"""Values for tests of the runner: each builder takes the fields that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.model.job import Counts, Job, JobStatus, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.settings import Settings
from lapse.model.table import TableName

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVENTS = TableName("events")


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


def settings(texts: Mapping[str, str] | None = None) -> Settings:
    return Settings.from_texts(texts or {})


def stored(policy: Policy | None = None, **fields: Any) -> StoredPolicy:
    values: dict[str, Any] = {
        "id": 1,
        "table": EVENTS,
        "version": 1,
        "policy": policy or Policy(expression="at"),
        "source": "statement",
        "fingerprint": "f",
        "created_at": ago(hours=1),
        "changed_at": ago(hours=1),
    }
    return StoredPolicy(**values | fields)


def physical(**fields: Any) -> PhysicalTable:
    values: dict[str, Any] = {
        "id": 1,
        "policy_id": 1,
        "partition": None,
        "partition_schema": None,
        "next_run_at": NOW + timedelta(hours=1),
        "blocked_reason": None,
        "statistics": None,
    }
    return PhysicalTable(**values | fields)


def job(**fields: Any) -> Job:
    values: dict[str, Any] = {
        "id": 1,
        "table_id": 1,
        "policy_id": 1,
        "table": EVENTS,
        "policy_version": 1,
        "cutoff": ago(minutes=1),
        "status": JobStatus.RUNNING,
        "control": None,
        "reason": None,
        "fingerprint": "f",
        "created_at": ago(minutes=1),
        "started_at": ago(minutes=1),
        "finished_at": None,
        "path": Path(kind=PathKind.PHYSICAL),
        "tasks_total": 1,
        "tasks_finished": 0,
        "counts": Counts(),
    }
    return Job(**values | fields)
