"""What an idle worker asks: has anything changed, is anything due? One statement, whatever there is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, exists, func, or_, select

from lapse.catalog.schema import Instant, job, policy, setting, table, worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """Two that are equal say that no policy, setting or table was declared, changed, confirmed or removed in between,
    and that none fell due or left its grace period."""

    policies: int
    newest_policy: int | None
    versions: int | None
    in_grace: int
    settings: int
    settings_changed_at: datetime | None
    tables: int
    due: int
    next_due_at: datetime | None
    active_jobs: int


def read_pulse(connection: Connection, now: datetime) -> Pulse:
    return Pulse(**connection.execute(_query(), {"now": now}).mappings().one())


def has_old_rows(connection: Connection, *, jobs_before: datetime, workers_before: datetime) -> bool:
    """Is there an ended job, or a dead worker, to forget?"""
    wanted = {"jobs_before": jobs_before, "workers_before": workers_before}
    return bool(connection.execute(_old(), wanted).scalar_one())


@cache
def _old() -> Select[Any]:
    ended = exists().where(job.c.finished_at <= bindparam("jobs_before", type_=Instant))
    dead = exists().where(worker.c.heartbeat_at < bindparam("workers_before", type_=Instant))
    return select(or_(ended, dead))


@cache
def _query() -> Select[Any]:
    now = bindparam("now", type_=Instant)
    is_due = or_(table.c.next_run_at.is_(None), table.c.next_run_at <= now)
    return select(
        select(func.count()).select_from(policy).scalar_subquery().label("policies"),
        select(func.max(policy.c.policy_id)).scalar_subquery().label("newest_policy"),
        select(func.sum(policy.c.version)).scalar_subquery().label("versions"),
        select(func.count()).where(policy.c.grace_until > now).scalar_subquery().label("in_grace"),
        select(func.count()).select_from(setting).scalar_subquery().label("settings"),
        select(func.max(setting.c.changed_at)).scalar_subquery().label("settings_changed_at"),
        select(func.count()).select_from(table).scalar_subquery().label("tables"),
        select(func.count()).where(is_due).scalar_subquery().label("due"),
        select(func.min(table.c.next_run_at)).where(table.c.next_run_at > now).scalar_subquery().label("next_due_at"),
        select(func.count()).where(job.c.active_table_id.is_not(None)).scalar_subquery().label("active_jobs"),
    )
