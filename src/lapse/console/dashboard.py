"""What the pages and the API show: one look at the database each, with a short memory for what is costly to ask."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from threading import Lock
from time import monotonic

from prometheus_client import generate_latest

from lapse.app import CommentProblem, JobProgress, Lapse, Observation, PolicyHealth
from lapse.catalog.policies import StoredPolicy
from lapse.console.options import ConsoleOptions
from lapse.console.session import Signer
from lapse.engines.base import Footprint
from lapse.errors import NotFound
from lapse.metrics import Metrics
from lapse.model.secret import mask

SIZE_SECONDS = 60.0
"""Sizes are estimates that the database has at hand, but not for nothing."""
PACE_SECONDS = 20.0
"""The live rate is that of the last seconds."""
SPARK_DAYS = 14

Sizes = dict[int, Footprint]


class JobRates:
    """Rows per second of each job over the last moments, from what successive looks see."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[float, int]]] = {}
        self._lock = Lock()

    def rate(self, job_id: int, deleted: int, at: float) -> float | None:
        """None until two looks are far enough apart to tell."""
        with self._lock:
            seen = self._seen.setdefault(job_id, deque())
            seen.append((at, deleted))
            while len(seen) > 2 and seen[1][0] < at - PACE_SECONDS:
                seen.popleft()
            first_at, first = seen[0]
        return (deleted - first) / (at - first_at) if at - first_at >= 0.5 else None

    def forget_others(self, job_ids: set[int]) -> None:
        with self._lock:
            for gone in self._seen.keys() - job_ids:
                del self._seen[gone]


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveJob:
    """`rate` is that of the last moments where it is known, of the whole job otherwise."""

    progress: JobProgress
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyView:
    """A policy as a line of the overview; `per_day` ends with today."""

    health: PolicyHealth
    footprint: Footprint
    per_day: tuple[int, ...]

    @property
    def rows(self) -> int | None:
        """Estimated."""
        return self.footprint.rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    now: datetime
    policies: tuple[PolicyView, ...]
    undeclared: tuple[CommentProblem, ...] = ()
    """Tables whose rows the database deletes by its own TTL, and not as a policy says."""
    jobs: tuple[LiveJob, ...]
    workers_alive: int
    workers: int

    def count(self, health: str) -> int:
        return sum(view.health.health == health for view in self.policies)

    @property
    def per_day(self) -> tuple[int, ...]:
        return tuple(sum(day) for day in zip(*(view.per_day for view in self.policies), strict=True))

    @property
    def sentence(self) -> str:
        """For screen readers: what changed is read out, so it says only what matters."""
        parts = [f"{len(self.jobs)} active job{'' if len(self.jobs) == 1 else 's'}"]
        parts += [f"{self.count(word)} {word}" for word in ("late", "blocked") if self.count(word)]
        return ", ".join(parts) + "."


class Dashboard:
    def __init__(
        self,
        database: Lapse,
        metrics: Metrics,
        options: ConsoleOptions,
        *,
        signer: Signer,
        worker_id: str | None = None,
        is_working: Callable[[], bool] = lambda: True,
        root: str = "",
    ) -> None:
        """`root` is what the addresses of its pages begin with, where a console has several databases."""
        self.database = database
        self.root = root
        self.options = options
        self.signer = signer
        self.worker_id = worker_id
        self.is_working = is_working
        self._metrics = metrics
        self._pace = JobRates()
        self._sizes: Sizes = {}
        self._sized_at = float("-inf")
        self._lock = Lock()
        self._secret_url = database.engine.database.url.render_as_string(hide_password=False)

    @property
    def place(self) -> str:
        """The database's address as the console shows it."""
        return re.sub(r"^(\w+)\+\w+:", r"\1:", mask(self.database.url))

    def safe(self, text: str) -> str:
        """Without passwords, wherever a driver has put them."""
        return mask(text, self._secret_url)

    def exposition(self) -> bytes:
        return generate_latest(self._metrics.registry)

    @contextmanager
    def look(self) -> Iterator[DatabaseView]:
        """One connection for everything that a page or an answer shows."""
        with self.database.observe(may_be_empty=True) as seen:
            yield DatabaseView(self, seen)

    def overview(self) -> Overview:
        with self.look() as look:
            return look.overview

    def stored(self, policy_id: int) -> StoredPolicy:
        """Raises NotFound."""
        with self.look() as look:
            return look.stored(policy_id)

    def live(self, progress: JobProgress) -> LiveJob:
        if not progress.job.status.is_active:
            return LiveJob(progress=progress, rate=progress.rate)
        recent = self._pace.rate(progress.job.id, progress.job.counts.deleted, monotonic())
        return LiveJob(progress=progress, rate=progress.rate if recent is None else recent)

    def forget_other_jobs(self, job_ids: set[int]) -> None:
        self._pace.forget_others(job_ids)

    def sizes(self, seen: Observation) -> Sizes:
        with self._lock:
            if monotonic() - self._sized_at > SIZE_SECONDS:
                self._sizes, self._sized_at = seen.sizes, monotonic()
            return self._sizes


class DatabaseView:
    """One observation of the database, as the console shows it."""

    def __init__(self, dashboard: Dashboard, seen: Observation) -> None:
        self._dashboard = dashboard
        self.seen = seen

    @property
    def now(self) -> datetime:
        return self.seen.now

    @cached_property
    def overview(self) -> Overview:
        per_day = self.seen.deleted_per_day(SPARK_DAYS)
        return Overview(
            now=self.now,
            policies=tuple(self._view(each, per_day.get(each.stored.id, {})) for each in self.seen.healths),
            undeclared=tuple(self.seen.undeclared),
            jobs=self.jobs,
            workers_alive=sum(self.seen.workers_alive.values()),
            workers=len(self.seen.workers),
        )

    def _view(self, health: PolicyHealth, per_day: dict[date, int]) -> PolicyView:
        footprint = self._dashboard.sizes(self.seen).get(health.stored.id, Footprint())
        shown = tuple(per_day.get(day, 0) for day in days(self.now))
        return PolicyView(health=health, footprint=footprint, per_day=shown)

    def policy(self, policy_id: int) -> PolicyView:
        """Raises NotFound."""
        found = next((view for view in self.overview.policies if view.health.stored.id == policy_id), None)
        if found is None:
            raise _no_policy()
        return found

    def stored(self, policy_id: int) -> StoredPolicy:
        """Raises NotFound."""
        found = next((stored for stored in self.seen.policies if stored.id == policy_id), None)
        if found is None:
            raise _no_policy()
        return found

    @property
    def policy_ids(self) -> set[int]:
        return {stored.id for stored in self.seen.policies}

    @cached_property
    def jobs(self) -> tuple[LiveJob, ...]:
        """Active ones."""
        found = self.seen.progress
        self._dashboard.forget_other_jobs({progress.job.id for progress in found})
        return tuple(self._dashboard.live(progress) for progress in found)

    def job(self, job_id: int) -> LiveJob:
        """Active or ended. Raises NotFound."""
        return self._dashboard.live(self.seen.job(job_id))


def _no_policy() -> NotFound:
    return NotFound("there is no such policy, or it was removed", hint="the overview lists the policies")


def days(now: datetime, count: int = SPARK_DAYS) -> list[date]:
    return [(now - timedelta(days=back)).date() for back in range(count - 1, -1, -1)]
