"""What the pages and the API look at: the facade, with a short memory for what is costly to ask."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from threading import Lock
from time import monotonic

from prometheus_client import generate_latest

from lapse.app import JobProgress, Lapse, PolicyHealth
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.workers import WorkerRow
from lapse.console.options import Options
from lapse.console.session import Signer
from lapse.engines.base import Footprint
from lapse.errors import CatalogMissing, NotFound
from lapse.metrics import Metrics
from lapse.model.job import Job
from lapse.model.secret import mask

SIZE_SECONDS = 60.0
"""Sizes are estimates that the database has at hand, but not for nothing."""
PACE_SECONDS = 20.0
"""The live rate is that of the last seconds."""
SPARK_DAYS = 14

Sizes = dict[int, Footprint]


class Pace:
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


class Desk:
    def __init__(
        self,
        database: Lapse,
        metrics: Metrics,
        options: Options,
        *,
        signer: Signer,
        worker_id: str | None = None,
        is_working: Callable[[], bool] = lambda: True,
    ) -> None:
        self.database = database
        self.options = options
        self.signer = signer
        self.worker_id = worker_id
        self.is_working = is_working
        self._metrics = metrics
        self._pace = Pace()
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

    def overview(self) -> Overview:
        now = self.database.clock()
        try:
            healths = self.database.health()
        except CatalogMissing:
            return Overview(now=now, policies=(), jobs=(), workers_alive=0, workers=0)
        per_day = self.database.deleted_per_day(SPARK_DAYS)
        workers = self.database.workers()
        return Overview(
            now=now,
            policies=tuple(self._view(each, per_day.get(each.stored.id, {}), now) for each in healths),
            jobs=self.jobs(),
            workers_alive=sum(self.alive(workers).values()),
            workers=len(workers),
        )

    def _view(self, health: PolicyHealth, per_day: dict[date, int], now: datetime) -> PolicyView:
        footprint = self.sizes().get(health.stored.id, Footprint())
        return PolicyView(health=health, footprint=footprint, per_day=tuple(per_day.get(day, 0) for day in days(now)))

    def policy(self, policy_id: int) -> PolicyView:
        """Raises NotFound."""
        found = next((view for view in self.overview().policies if view.health.stored.id == policy_id), None)
        if found is None:
            raise NotFound("there is no such policy, or it was removed", hint="the overview lists the policies")
        return found

    def stored(self, policy_id: int) -> StoredPolicy:
        return self.policy(policy_id).health.stored

    def history(self, stored: StoredPolicy | None = None, *, limit: int) -> list[Job]:
        try:
            return self.database.history(stored, limit=limit)
        except CatalogMissing:
            return []

    def workers(self) -> list[WorkerRow]:
        try:
            return self.database.workers()
        except CatalogMissing:
            return []

    def jobs(self) -> tuple[LiveJob, ...]:
        try:
            found = self.database.progress()
        except CatalogMissing:
            return ()
        self._pace.forget_others({progress.job.id for progress in found})
        return tuple(self.live(progress) for progress in found)

    def live(self, progress: JobProgress) -> LiveJob:
        if not progress.job.status.is_active:
            return LiveJob(progress=progress, rate=progress.rate)
        recent = self._pace.rate(progress.job.id, progress.job.counts.deleted, monotonic())
        return LiveJob(progress=progress, rate=progress.rate if recent is None else recent)

    def alive(self, workers: list[WorkerRow]) -> dict[str, bool]:
        """Worker → is its heartbeat recent?"""
        if not workers:
            return {}
        since = self.database.alive_since()
        return {worker.id: worker.heartbeat_at >= since for worker in workers}

    def sizes(self) -> Sizes:
        with self._lock:
            if monotonic() - self._sized_at > SIZE_SECONDS:
                self._sizes, self._sized_at = self.database.sizes(), monotonic()
            return self._sizes


def days(now: datetime, count: int = SPARK_DAYS) -> list[date]:
    return [(now - timedelta(days=back)).date() for back in range(count - 1, -1, -1)]
