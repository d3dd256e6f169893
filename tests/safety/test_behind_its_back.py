"""Random histories in which other clients drop, swap, rebuild and retype tables between any two statements of Lapse's.

From the moment of a change that makes `events` another table than the one that the policy was declared on, none of its
rows may go until a person has resumed the policy. At all other times no row may go before it expires, and a run leaves
no row that has expired.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lapse.app import Lapse
from lapse.clock import ManualClock
from lapse.errors import LapseError
from lapse.model.job import JobStatus
from lapse.model.table import CATALOG_TABLES, REQUEST_TABLE
from lapse.runner.events import Listener, NullListener
from tests.backends import Backend
from tests.conftest import Servers
from tests.safety.meddling import meddling
from tests.safety.vocabulary import RETYPED, VOCABULARIES, Statements, Vocabulary

LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
HEARTBEATS_MISSED = timedelta(seconds=60)
TTL = timedelta(hours=1)
TOLERANCE = timedelta(seconds=5)
"""Between this process's clock and that of a statement which stamps a row."""
offsets = st.integers(min_value=-6 * 3600, max_value=6 * 3600)
moments = st.integers(min_value=0, max_value=60)
"""Statements of a run, or of its job, before a change comes."""
MANY_EXAMPLES, THOROUGH_STRIDE = 40, 3
"""What `make chaos` tries on every engine; `make test` tries what the vocabulary says."""


class Databases:
    """Databases of one backend, with a catalog and nothing else in them: most of the time would go into making it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._spare: list[str] = []

    def take(self) -> str:
        return self._spare.pop() if self._spare else self._backend.create()

    def give_back(self, url: str) -> None:
        """Kept only where dropping every table has left no policy and no job behind."""
        with Lapse(url) as db:
            with db.engine.connection() as connection:
                tables = [
                    name for name in db.engine.tables(connection) if name.name not in {*CATALOG_TABLES, REQUEST_TABLE}
                ]
            with suppress(LapseError):
                for name in tables:
                    db.execute(f"DROP TABLE {name}")
                if not db.policies() and not db.jobs():
                    self._spare.append(url)
                    return
        self._backend.drop(url)

    def close(self) -> None:
        for url in self._spare:
            self._backend.drop(url)


class BehindItsBack(RuleBasedStateMachine):
    """What is drawn depends on what was drawn before, and never on what the server did in the meantime: whether a
    change comes before a run has ended is a matter of luck."""

    databases: Databases
    vocabulary: Vocabulary

    @initialize(data=st.data(), batch=st.integers(1, 5))
    def create_one(self, data: st.DataObject, batch: int) -> None:
        self.create(data.draw(st.sampled_from(list(self.vocabulary.kinds))), batch)

    def create(self, kind: str, batch: int) -> None:
        logging.disable(logging.CRITICAL)
        self.kind = kind
        self.url = self.databases.take()
        self.clock = ManualClock(datetime.now(UTC))
        self.db = Lapse(self.url, clock=self.clock)
        if self.db.engine.features.judges_by_own_clock:
            # Time must pass here without running ahead of the server's.
            self.clock.set(datetime.now(UTC) - timedelta(days=365))
        self.expiry: dict[int, datetime] = {}
        self.must_stay: set[int] | None = None
        self.number = 1
        self.away: dict[str, set[int]] = {}
        self.used_up: set[str] = set()
        self.unseen: set[str] = set()
        """Harmless changes since Lapse has last looked at the table in peace."""
        for statement in self.vocabulary.create(self.kind):
            self.db.execute(statement.replace("{number}", "0"))
        parameters = f"ttl_delete_batch_size = {batch}, ttl_adaptive = 'off', ttl_guard = 'off'"
        self.db.execute(f"ALTER TABLE events SET ({parameters})")
        self.insert([-7200, 0] * 5)

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        if hasattr(self, "db"):
            self.db.close()
            self.databases.give_back(self.url)

    @rule(seconds=st.lists(offsets, min_size=1, max_size=8))
    def insert(self, seconds: list[int]) -> None:
        rows = []
        for offset in seconds:
            moment = self.clock.now() + timedelta(seconds=offset)
            rows.append(f"({self.number}, '{_text(moment)}')")
            self.expiry[self.number] = self._expires(moment)
            if self.must_stay is not None:
                self.must_stay.add(self.number)
            self.number += 1
        self.db.execute(f"INSERT INTO events (id, ts) VALUES {', '.join(rows)}")

    @rule(which=st.integers(0, 1_000), offset=offsets)
    def renew(self, which: int, offset: int) -> None:
        if not self.expiry:
            return
        number = sorted(self.expiry)[which % len(self.expiry)]
        moment = self.clock.now() + timedelta(seconds=offset)
        self.db.execute(f"UPDATE events SET ts = '{_text(moment)}' WHERE id = {number}")
        self.expiry[number] = self._expires(moment)

    @rule(seconds=st.integers(0, 7200))
    def wait(self, seconds: int) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    @rule(data=st.data())
    def block(self, data: st.DataObject) -> None:
        assert self._change(self._draw(data, blocking=True), blocking=True)

    @rule(data=st.data())
    def meddle(self, data: st.DataObject) -> None:
        assert self._change(self._draw(data, blocking=False), blocking=False)

    @rule(data=st.data(), after=moments, at_once=st.booleans())
    def block_during_a_run(self, data: st.DataObject, after: int, at_once: bool) -> None:
        statements = self._draw(data, blocking=True)
        if self.must_stay is None:
            self.block_during_this_run(statements, after, at_once=at_once)

    def block_during_this_run(self, statements: list[str], after: int, *, at_once: bool) -> bool:
        """True when the change came before the run had ended."""
        self.clock.advance(HEARTBEATS_MISSED)
        change = partial(self._change, statements, blocking=True)
        with meddling(after, change, at_once=at_once) as meddler, suppress(LapseError):
            self.db.run("events", listener=meddler)
        return meddler.done

    @rule(data=st.data(), after=moments, at_once=st.booleans())
    def meddle_during_a_run(self, data: st.DataObject, after: int, at_once: bool) -> None:
        change = partial(self._change, self._draw(data, blocking=False), blocking=False)
        if self.must_stay is not None:
            return
        with meddling(after, change, at_once=at_once) as meddler:
            self._run(meddler)

    @rule()
    def run(self) -> None:
        if self.must_stay is None:
            self._run(NullListener())
            self.unseen = set()
        else:
            self.clock.advance(HEARTBEATS_MISSED)
            with suppress(LapseError):
                assert self.db.run("events").deleted == 0

    def _run(self, listener: Listener) -> None:
        self.clock.advance(HEARTBEATS_MISSED)
        jobs = self.db.run("events", listener=listener).jobs
        if any(job.created_at < self.clock.now() for job in jobs):
            # Taken up again: rows that came since, behind its cursor, are for the next one.
            jobs = self.db.run("events", listener=listener).jobs
        assert jobs
        assert all(job.status is JobStatus.FINISHED for job in jobs), [job.reason for job in jobs]
        cutoff, left = min(job.cutoff for job in jobs), self._stored()
        assert not [number for number, expiry in left.items() if expiry <= cutoff]

    @rule()
    def resume(self) -> None:
        if self.must_stay is None:
            return
        self.db.doctor(repair=True)
        self.db.resume("events")
        self.must_stay, self.unseen = None, set()
        self.expiry = self._stored()

    @invariant()
    def live_rows_live(self) -> None:
        if not hasattr(self, "db"):
            return
        ids = {row[0] for row in self.db.execute("SELECT id FROM events").rows}
        if self.must_stay is not None:
            assert self.must_stay <= ids, f"rows of a table that is not the policy's are gone: {self.must_stay - ids}"
        else:
            gone = [number for number in self.expiry if number not in ids]
            early = [number for number in gone if self.expiry[number] > self.clock.now()]
            assert not early, f"live rows are gone: {early}"
        self.expiry = {number: self.expiry.get(number, datetime.max.replace(tzinfo=UTC)) for number in ids}
        for table, before in self.away.items():
            assert self._ids_of(table) == before, f"rows of {table} are gone, which has no policy"

    def _ids_of(self, table: str) -> set[int]:
        return {row[0] for row in self.db.execute(f"SELECT id FROM {table}").rows}

    def _draw(self, data: st.DataObject, *, blocking: bool) -> list[str]:
        changes = self.vocabulary.blocking(self.kind) if blocking else self.vocabulary.harmless(self.kind)
        # The type that a column has already would be no change.
        left = changes.keys() - self.used_up
        if not blocking:
            left = {name for name in left if not self.vocabulary.looks_replaced({*self.unseen, name})}
        drawn = data.draw(st.sampled_from(sorted(changes)))
        name = drawn if drawn in left else min(left)
        self.used_up |= {name} & {RETYPED}
        self.unseen |= set() if blocking else {name}
        return self.written(changes[name])

    def written(self, statements: Statements) -> list[str]:
        self.number += 1_000
        moment = _text(LONG_AGO + timedelta(seconds=self.number))
        return [each.replace("{number}", str(self.number)).replace("{moment}", moment) for each in statements]

    def _change(self, statements: list[str], *, blocking: bool) -> bool:
        found = self.vocabulary.change(self.url, statements)
        self.number += 2
        if found is None:
            return False
        for table in re.findall(r"\b(?:RENAME )?TO (away_\d+)", " ".join(statements)):
            self.away[table] = self._ids_of(table)
        if blocking or self.must_stay is not None:
            self.must_stay = found
        return True

    def _expires(self, moment: datetime) -> datetime:
        return datetime.now(UTC) + TTL - TOLERANCE if self.kind == "managed" else moment + TTL

    def _stored(self) -> dict[int, datetime]:
        """When each row expires, as the database has it."""
        if self.kind == "managed":
            stamped = f"SELECT id, {MANAGED} FROM events WHERE {MANAGED} IS NOT NULL"
            return {row[0]: _instant(row[1]) for row in self.db.execute(stamped).rows}
        return {
            row[0]: _instant(row[1]) + TTL
            for row in self.db.execute("SELECT id, ts FROM events WHERE ts IS NOT NULL").rows
        }


MANAGED = "crdb_internal_expiration"


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _instant(value: datetime | str) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@pytest.fixture(scope="module")
def databases(servers: Servers) -> Iterator[Callable[[str], Databases]]:
    """By the name of their backend."""
    made: dict[str, Databases] = {}

    def of(name: str) -> Databases:
        return made.setdefault(name, Databases(servers.get(name)))

    yield of
    for each in made.values():
        each.close()


def _machine(found: Databases, name: str) -> type[BehindItsBack]:
    class Machine(BehindItsBack):
        databases = found
        vocabulary = VOCABULARIES[name]()

    return Machine


@pytest.mark.parametrize("name", list(VOCABULARIES))
def test_any_history(databases: Callable[[str], Databases], name: str) -> None:
    _any_history(_machine(databases(name), name), VOCABULARIES[name].examples)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(VOCABULARIES))
def test_any_of_many_histories(databases: Callable[[str], Databases], name: str) -> None:
    _any_history(_machine(databases(name), name), MANY_EXAMPLES)


def _any_history(machine: type[BehindItsBack], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            # A history is short enough to read, and on a server it would take long to make it shorter.
            phases=(Phase.generate,),
            stateful_step_count=15,
            # The same ones in every run of the suite; LAPSE_RANDOM=1 looks for others.
            derandomize="LAPSE_RANDOM" not in os.environ,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


CHANGES = [
    (name, kind, change)
    for name, vocabulary in VOCABULARIES.items()
    for kind in vocabulary.kinds
    for change in vocabulary().blocking(kind)
]


@pytest.mark.parametrize(("name", "kind", "change"), CHANGES)
def test_a_change_between_two_statements_of_a_job(
    databases: Callable[[str], Databases], name: str, kind: str, change: str
) -> None:
    """Some places in the job, others for every change."""
    _change_between(_machine(databases(name), name), kind, change, VOCABULARIES[name].stride)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "change"), CHANGES)
def test_a_change_between_any_two_statements_of_a_job(
    databases: Callable[[str], Databases], name: str, kind: str, change: str
) -> None:
    _change_between(_machine(databases(name), name), kind, change, THOROUGH_STRIDE)


def _change_between(machine_of: type[BehindItsBack], kind: str, change: str, stride: int) -> None:
    """Until the job is over before the change comes."""
    came, after = True, crc32(f"{kind} {change}".encode()) % stride
    while came:
        machine = machine_of()
        try:
            machine.create(kind, batch=3)
            machine.wait(7200)
            statements = machine.written(machine.vocabulary.blocking(kind)[change])
            came = machine.block_during_this_run(statements, after, at_once=False)
            machine.live_rows_live()
            machine.run()
            machine.live_rows_live()
        finally:
            machine.teardown()
        after += stride
