"""A database under test: its clock, its tables, its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

import lapse.app
from lapse.app import Lapse, Result
from lapse.clock import ManualClock
from lapse.engines.features import Features
from lapse.errors import CatalogMissing, DatabaseError
from lapse.model.job import Job
from lapse.model.table import TableName
from tests.backends import Backend

MAKES_TABLES = re.compile(r"\b(CREATE|ALTER|COMMENT)\b", re.IGNORECASE)
MOST_ROUNDS = 5
USUAL_SCHEMA = "public"
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
        self._grants = Grants(backend, self.owner)
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
            self._grants.give(worker)
        self._may_lack_grants = False

    @property
    def features(self) -> Features:
        return self.owner.engine.features

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def advance(self, **step: float) -> None:
        self.clock.advance(timedelta(**step))

    def let_pass(self, table: str = "events", **step: float) -> None:
        """Time, for rows of a managed table, which the server stamps by its own clock. Where the server also judges by
        it whether they have expired, the rows are aged instead."""
        if not self.features.judges_by_own_clock:
            self.advance(**step)
            return
        seconds = timedelta(**step).total_seconds()
        with self.client() as connection:
            connection.exec_driver_sql(
                f"UPDATE {table} SET crdb_internal_expiration = crdb_internal_expiration - INTERVAL '{seconds} seconds'"
            )

    def q(self, name: str) -> str:
        return self.backend.quote(name)

    def sql(self, text: str) -> Result:
        self._may_lack_grants |= MAKES_TABLES.search(text) is not None
        if "ttl_expire_after" in text and not self.features.managed_column:
            pytest.skip("there is no managed column")
        if "ttl_archive" in text and not self.features.archives:
            pytest.skip("rows cannot be archived")
        if "ttl_ledger_keys" in text and not self.features.records_keys:
            pytest.skip("keys cannot be recorded")
        if "tidb_ttl_" in text and not self.features.own_settings:
            pytest.skip("the server has variables of these names")
        if "ttl_partition_drop" in text and not self.features.table_locks:
            pytest.skip("no partition is dropped")
        if "ttl_keep_last" in text and not self.features.keeps_last:
            pytest.skip("the last rows of a group cannot be kept")
        return self.owner.execute(text)

    def client(self) -> AbstractContextManager[Connection]:
        """A session of the owner's that knows nothing of Lapse; each statement commits by itself."""
        self._may_lack_grants = True
        return closing(self.owner.engine.user_connection())

    @contextmanager
    def locked(self, table: str) -> Iterator[Connection]:
        """By another client, which takes its time: the connection holds the lock until it is closed."""
        if not self.backend.lock:
            pytest.skip("there are no locks of single tables")
        with closing(self.owner.engine.user_connection()) as connection:
            for statement in self.backend.lock:
                connection.exec_driver_sql(statement.format(t=table))
            yield connection

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return list(self.owner.execute(text).rows)

    def ids(self, table: str = "events") -> list[Any]:
        return [row[0] for row in self.rows(f"SELECT id FROM {table} ORDER BY id")]

    def waiting(self, outbox: str = "events_outbox") -> list[Any]:
        """The `id` of every row that waits in an outbox, by itself or in a pack."""
        engine, name, found = self.owner.engine, TableName(outbox), []
        with engine.connection() as connection:
            has_packs = engine.archive_table(connection, name).has_packs
            for pack in engine.packs.read(connection, name, "true") if has_packs else ():
                (column,) = (column for column in pack.columns if column.name == "id")
                (cells,) = engine.packs.cut([column], [pack])
                found += [int(cell) for cell in cells.to_pylist()]
        alone = " WHERE lapse_pack IS NULL" if has_packs else ""
        return sorted([*found, *(row[0] for row in self.rows(f"SELECT id FROM {outbox}{alone}"))])

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


class Grants:
    """What a worker's role is given in one database: exactly what doctor prints when asked as that role.

    Doctor has to be asked again after every answer that opened a schema, as it sees more then: four times for the
    first policy. What it says about the catalog and about the schema of the tables has no word that depends on the
    database, so it is asked for that in the first one with a policy in that schema, and believed in the others. What it
    says of a table is complete, and that it suffices is what the tests show; that doctor itself is content afterwards,
    `grant_what_doctor_prints` does, for test_privileges.py and others.
    """

    _said: ClassVar[dict[type[Backend], tuple[str, ...]]] = {}

    def __init__(self, backend: Backend, owner: Lapse) -> None:
        self._backend = backend
        self._owner = owner
        self._has_begun = False

    def give(self, worker: Lapse) -> None:
        role = _role_of(worker)
        if not self._has_begun and self._schemas() == [USUAL_SCHEMA]:
            self._has_begun = True
            self._run(role, self._said_of_schemas(worker, role))
        for _ in range(MOST_ROUNDS):
            lacking = tuple(_grants_lacking(worker))
            self._run(role, lacking)
            if all(" ON FUNCTION " in grant for grant in lacking):
                return
        raise AssertionError(f"the grants do not suffice: {lacking}")

    def _said_of_schemas(self, worker: Lapse, role: str) -> tuple[str, ...]:
        kind = type(self._backend)
        if kind not in self._said:
            said: list[str] = []
            while lacking := [grant for grant in _grants_lacking(worker) if " SCHEMA " in grant]:
                assert len(said) < MOST_ROUNDS and all(role in grant for grant in lacking), lacking
                self._run(role, lacking)
                # Each database has a role of its own.
                said += [grant.replace(f'"{role}"', "<role>") for grant in lacking]
            self._said[kind] = tuple(said)
        return self._said[kind]

    def _schemas(self) -> list[str]:
        """With a table that has a policy."""
        try:
            with closing(self._owner.engine.user_connection()) as connection:
                asked = "SELECT DISTINCT schema_name FROM lapse_ttl.lapse_policy"
                return list(connection.exec_driver_sql(asked).scalars())
        except DBAPIError:
            return []

    def _run(self, role: str, grants: Sequence[str]) -> None:
        """To let one role act for another takes an administrator."""
        if not grants:
            return
        with closing(self._owner.engine.user_connection()) as connection:
            for grant in grants:
                statement = grant.replace("<role>", role)
                if " ON " in statement:
                    connection.exec_driver_sql(statement)
                else:
                    self._backend.administer(self._owner.url, statement)


def grant_what_doctor_prints(owner: Lapse, worker: Lapse) -> None:
    """Ask as the worker's role what it lacks, and run exactly that as the owner, until nothing is lacking."""
    role = _role_of(worker)
    for _ in range(MOST_ROUNDS):
        lacking = list(_grants_lacking(worker))
        if not lacking:
            return
        for grant in lacking:
            owner.execute(grant.replace("<role>", role))
    raise AssertionError(f"the grants do not suffice: {lacking}")


def _role_of(worker: Lapse) -> str:
    return str(worker.engine.database.url.username)


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
