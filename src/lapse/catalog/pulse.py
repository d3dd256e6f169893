"""What an idle worker asks: has anything changed, is anything due? One statement, whatever there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Integer,
    Select,
    String,
    Text,
    bindparam,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)

from lapse.catalog.meta import FACTS
from lapse.catalog.migrations import VERSION_KEY
from lapse.catalog.schema import Instant, job, meta, policy, setting, table, worker
from lapse.model.settings import Settings


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
    version: str | None
    """Of the catalog."""
    requests: int = 0
    """That people have made with the database's own client, and that wait for a worker."""


def read_pulse(connection: Connection, now: datetime, requests: str | None = None) -> Pulse:
    """`requests` is SQL for how many wait, where that can be asked."""
    return Pulse(**connection.execute(_query(requests), {"now": now}).mappings().one())


Mark = tuple[tuple[object, ...], ...]


def read_mark(connection: Connection, jobs: Collection[int]) -> Mark:
    """Two that are equal say that nothing was asked of these jobs in between, and neither their policies nor a setting
    was changed. One statement, for those who ask often."""
    return tuple(tuple(row) for row in connection.execute(_mark(), {"jobs": list(jobs)}))


@cache
def _mark() -> Select[Any]:
    return (
        select(
            job.c.job_id,
            job.c.status,
            job.c.control,
            job.c.hold_version,
            policy.c.version,
            policy.c.hold_version,
            policy.c.disarmed,
            select(func.count()).select_from(setting).scalar_subquery(),
            select(func.max(setting.c.changed_at)).scalar_subquery(),
        )
        .select_from(job.outerjoin(policy, policy.c.policy_id == job.c.policy_id))
        .where(job.c.job_id.in_(bindparam("jobs", expanding=True)))
        .order_by(job.c.job_id)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outset:
    """What every round begins with: facts about the catalog, the settings, and whether any job is active."""

    facts: Mapping[str, str]
    settings: Settings
    has_active_jobs: bool


def read_outset(connection: Connection) -> Outset:
    """One statement: what comes of it is little, and asking takes longer than reading it."""
    found: dict[str, dict[str, str]] = {_FACT: {}, _SETTING: {}, _ACTIVE: {}}
    for row in connection.execute(_outset()):
        found[row.kind][row.name] = row.value
    settings = Settings.from_texts(found[_SETTING])
    return Outset(facts=found[_FACT], settings=settings, has_active_jobs=bool(found[_ACTIVE]))


_FACT, _SETTING, _ACTIVE = "fact", "setting", "active"


@cache
def _outset() -> CompoundSelect[Any]:
    active = select(func.min(job.c.active_table_id).label("first")).subquery("active")
    text = literal("", Text)
    return union_all(
        select(literal(_FACT, String).label("kind"), meta.c.name.label("name"), meta.c.value.label("value")).where(
            meta.c.name.in_(FACTS)
        ),
        select(literal(_SETTING, String), setting.c.name, setting.c.value),
        select(literal(_ACTIVE, String), text, text).select_from(active).where(active.c.first.is_not(None)),
    )


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
def _query(requests: str | None) -> Select[Any]:
    waiting = [] if requests is None else [literal_column(f"({requests})", Integer).label("requests")]
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
        select(meta.c.value).where(meta.c.name == VERSION_KEY).scalar_subquery().label("version"),
        *waiting,
    )
