"""A database under test: its clock, its tables, its rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import lapse.app
from lapse.app import Lapse, Result
from lapse.clock import ManualClock
from lapse.engines.features import Features
from lapse.model.job import Job
from tests.backends import Backend

START = datetime(2026, 3, 15, 12, 0, 0, tzinfo=UTC)


class Harness:
    """`now` is the database's clock, which only moves when told to."""

    def __init__(self, backend: Backend, url: str) -> None:
        self.backend = backend
        self.url = url
        self.clock = ManualClock(START)
        self.db = self.open()

    def open(self) -> Lapse:
        """Another process's view of the same database, with the same clock."""
        return Lapse(self.url, clock=self.clock)

    def close(self) -> None:
        self.db.close()

    @property
    def features(self) -> Features:
        return self.db.engine.features

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def advance(self, **step: float) -> None:
        self.clock.advance(timedelta(**step))

    def q(self, name: str) -> str:
        return self.backend.quote(name)

    def sql(self, text: str) -> Result:
        return self.db.execute(text)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return list(self.db.execute(text).rows)

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
