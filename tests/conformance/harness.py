"""A database under test: its clock, its tables, its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import lapse.app
from lapse.app import Lapse, Result
from lapse.clock import ManualClock
from lapse.engines.features import Features
from lapse.errors import CatalogMissing, DatabaseError
from lapse.model.job import Job
from tests.backends import Backend

MAKES_TABLES = re.compile(r"\b(CREATE|ALTER|COMMENT)\b", re.IGNORECASE)
MOST_ROUNDS = 5
START = datetime(2026, 3, 15, 12, 0, 0, tzinfo=UTC)


class Harness:
    """`now` is the database's clock, which only moves when told to.

    Statements are the `owner`'s, who declares; `db` runs and looks. Both are the same role on most backends.
    """

    def __init__(self, backend: Backend, url: str) -> None:
        self.backend = backend
        self.url = url
        self.clock = ManualClock(START)
        self.owner = Lapse(url, clock=self.clock)
        self._may_lack_grants = False
        self._worker = self.open() if backend.worker_url(url) != url else self.owner

    @classmethod
    @contextmanager
    def fresh(cls, backend: Backend) -> Iterator[Harness]:
        """On a new database, which is dropped afterwards."""
        url = backend.create()
        harness = cls(backend, url)
        try:
            yield harness
        finally:
            harness.close()
            backend.drop(url)

    def open(self) -> Lapse:
        """Another worker's view of the same database, with the same clock."""
        opened = Lapse(self.backend.worker_url(self.url), clock=self.clock)
        self._grant(opened)
        return opened

    def close(self) -> None:
        self.owner.close()
        self._worker.close()

    @property
    def db(self) -> Lapse:
        self._grant(self._worker)
        return self._worker

    def _grant(self, worker: Lapse) -> None:
        if self._may_lack_grants and self._worker is not self.owner:
            grant_what_doctor_prints(self.owner, worker)
        self._may_lack_grants = False

    @property
    def features(self) -> Features:
        return self.owner.engine.features

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def advance(self, **step: float) -> None:
        self.clock.advance(timedelta(**step))

    def q(self, name: str) -> str:
        return self.backend.quote(name)

    def sql(self, text: str) -> Result:
        self._may_lack_grants |= MAKES_TABLES.search(text) is not None
        return self.owner.execute(text)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return list(self.owner.execute(text).rows)

    def ids(self, table: str = "events") -> list[Any]:
        return [row[0] for row in self.rows(f"SELECT id FROM {table} ORDER BY id")]

    def at(self, **offset: float) -> str:
        """A literal for now plus an offset, with milliseconds."""
        moment = self.now + timedelta(**offset)
        return "'" + moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03}'"

    def events(self, *, ttl: str = "TTL = ts + INTERVAL 1 DAY", key: str | None = None, extra: str = "") -> None:
        """The table most tests use: id, ts, and a policy."""
        key = key or f"id {self.backend.bigint} PRIMARY KEY"
        self.sql(f"CREATE TABLE events ({key}, ts {self.backend.instant}{extra}) {ttl}")

    def insert(self, *rows: tuple[int, str], table: str = "events") -> None:
        values = ", ".join(f"({number}, {moment})" for number, moment in rows)
        self.sql(f"INSERT INTO {table} (id, ts) VALUES {values}")

    def run(self, table: str | None = "events") -> lapse.app.RunResult:
        return self.db.run(table)

    def run_one(self, table: str = "events") -> Job:
        (job,) = self.db.run(table).jobs
        return job


def grant_what_doctor_prints(owner: Lapse, worker: Lapse) -> None:
    """Ask as the worker's role what it lacks, and run exactly that as the owner, until nothing is lacking."""
    (role,) = worker.execute("SELECT current_user").rows[0]
    for _ in range(MOST_ROUNDS):
        lacking = list(_grants_lacking(worker))
        if not lacking:
            return
        for grant in lacking:
            owner.execute(grant.replace("<role>", role))
    raise AssertionError(f"the grants do not suffice: {lacking}")


def _grants_lacking(worker: Lapse) -> Iterator[str]:
    try:
        findings = worker.doctor()
    except CatalogMissing:
        return
    except DatabaseError as error:
        assert error.hint is not None, error
        yield error.hint
        return
    fixes = [each.fix or "" for each in findings if each.level == "problem"]
    yield from (fix for fix in fixes if fix.startswith("GRANT"))
