"""Values for tests of what surfaces show: each builder takes the fields that a test is about."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lapse.app.health import PolicyHealth, policy_healths
from lapse.app.status import IDLE, TableStatus
from lapse.model.table import TableName
from lapse.runner.promise import Health, Promise
from tests.unit.runner.build import NOW, ago, stored


def promise(health: Health = Health.ON_TIME, *, late: float = 0.0, **fields: Any) -> Promise:
    """`late` is in hours."""
    values: dict[str, Any] = {
        "health": health,
        "code": None,
        "reason": None,
        "halted": False,
        "watermark": ago(hours=late),
        "lateness": timedelta(hours=late),
        "within": timedelta(hours=24),
    }
    return Promise(**values | fields)


def status(table: str = "events", kept: Promise | None = None, **fields: Any) -> TableStatus:
    values: dict[str, Any] = {
        "table": TableName(table),
        "table_id": 1,
        "stored": stored(table=TableName(table)),
        "state": IDLE,
        "reason": None,
        "next_run_at": NOW + timedelta(hours=1),
        "current": None,
        "last": None,
        "last_success_at": None,
        "statistics": None,
        "promise": kept or promise(),
    }
    return TableStatus(**values | fields)


def health(*parts: TableStatus) -> PolicyHealth:
    (found,) = policy_healths(parts or (status(),))
    return found
