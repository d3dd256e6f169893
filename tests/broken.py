"""Two hundred tables of which twenty are broken: the others are cleaned, and each broken one says what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import monotonic

from lapse.errors import LapseError
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness

TABLES = 200
EACH = 2
"""How many tables are broken in each way."""
RUN_SECONDS = 100.0
"""Of which the broken tables take a few, by being tried again, and the machine the rest."""
COLUMN = "TTL = ts + INTERVAL 1 DAY"


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakage:
    """`sql` breaks a table, whose name is put in for {t}; `codes` are what it may be blocked for, none where rows are
    held while the job itself ends well."""

    name: str
    sql: tuple[str, ...]
    codes: Collection[BlockCode] = ()
    ttl: str = COLUMN
    leaves_table: bool = True


def make_tables(h: Harness, breakages: Sequence[Breakage]) -> dict[str, Breakage]:
    """Which of the tables are broken, and how; the broken ones come first."""
    broken = {f"t{number:03}": breakages[number % len(breakages)] for number in range(len(breakages) * EACH)}
    for number in range(TABLES):
        name = f"t{number:03}"
        ttl = broken[name].ttl if name in broken else COLUMN
        h.sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, ts {h.backend.instant}, body VARCHAR(20)) {ttl}")
        h.insert((1, h.at(days=-2)), (2, h.at()), table=name)
    for name, how in broken.items():
        with h.client() as connection:
            for statement in how.sql:
                connection.exec_driver_sql(statement.format(t=name))
    return broken


def names_of(broken: dict[str, Breakage], how: str) -> list[str]:
    return [name for name, breakage in broken.items() if breakage.name == how]


def assert_the_others_are_on_time(h: Harness, broken: dict[str, Breakage]) -> None:
    """In one run, in which no broken table keeps the others waiting for long."""
    began = monotonic()
    result = h.run(None)
    assert monotonic() - began < RUN_SECONDS
    assert len({how.name for how in broken.values()}) == len(broken) // EACH
    assert result.failed
    finished = {job.table.name: job for job in result.jobs if job.status is JobStatus.FINISHED}
    others = {f"t{number:03}" for number in range(TABLES)} - set(broken)
    assert others <= set(finished)


def assert_the_others_are_clean(h: Harness, broken: dict[str, Breakage]) -> None:
    status = {each.table.name: each for each in h.db.status()}
    for number in range(TABLES):
        name = f"t{number:03}"
        if name not in broken:
            assert h.ids(name) == [2], name
            assert status[name].state == "idle", (name, status[name].reason)
    for name, how in broken.items():
        found = status[name]
        if how.codes:
            assert found.state == "blocked", (name, how.name, found)
            assert found.blocked in how.codes, (name, how.name, found.blocked, found.reason)
            assert found.reason
        else:
            assert found.last is not None
            assert found.last.counts.held >= 1, (name, how.name, found.last)
        if how.leaves_table:
            try:
                assert 2 in h.ids(name), (name, how.name)
            except LapseError as error:
                raise AssertionError((name, how.name)) from error
