"""How many statements a run sends and how many connections it takes: upper bounds, so that they stay few."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

import pytest
from sqlalchemy import event

from lapse.app import Lapse
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness

MOST = {
    "postgres": (23, 25, 8),
    # It asks more about a table that was made, or a server that was started, a moment ago.
    "mysql": (42, 34, 9),
    # Its job has a task of its own, however small it is.
    "tidb": (57, 37, 9),
    "sqlite": (40, 27, 8),
}
"""Statements of a run that deletes ten rows, of one that finds nothing, and connections that the first one takes."""


@pytest.fixture(autouse=True)
def _on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked once for what follows at once is asked again after a while."""
    for name in ("runner.describing.DESCRIBED_SECONDS", "runner.beginning.DESCRIBED_SECONDS"):
        monkeypatch.setattr(f"lapse.{name}", 600.0)
    monkeypatch.setattr("lapse.engines.postgres.engine.FACTS_SECONDS", 600.0)


class Watch:
    def __init__(self) -> None:
        self.statements: list[str] = []
        self.taken = 0


@contextmanager
def watched(db: Lapse) -> Iterator[Watch]:
    """What this thread asks, of every pool. Gauges are read beside it, and so many times as it takes."""
    watch = Watch()

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if current_thread() is main_thread():
            watch.statements.append(statement)

    def take(*_: object) -> None:
        watch.taken += current_thread() is main_thread()

    for pool in db.engine.pools:
        event.listen(pool, "before_cursor_execute", note)
        event.listen(pool, "checkout", take)
    try:
        yield watch
    finally:
        for pool in db.engine.pools:
            event.remove(pool, "before_cursor_execute", note)
            event.remove(pool, "checkout", take)


def _small(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 1 DAY")
    h.insert(*((number, h.at(days=-3)) for number in range(10)))
    # What is done once in a table's life is done.
    assert h.db.run("events").deleted == 10


def _most(h: Harness) -> tuple[int, int, int]:
    known = MOST.get(h.db.engine.name if h.features.records_with_batches else "tidb")
    if known is None:
        pytest.skip("counted on its sister")
    # What another role has made is checked before and after it has run.
    foreign = 3 * (h.db is not h.owner)
    # One that takes longer than the supervisor waits is on record as a worker's, and takes itself off.
    most, most_of_nothing, taken = (each + foreign for each in known)
    return most + 3, most_of_nothing + 3, taken + 1


def test_a_run_of_a_small_table_is_a_few_statements(h: Harness) -> None:
    _small(h)
    most, most_of_nothing, most_taken = _most(h)
    h.insert(*((number, h.at(days=-3)) for number in range(10)))
    with watched(h.db) as small:
        assert h.db.run("events").deleted == 10
    with watched(h.db) as nothing:
        assert [job.status for job in h.db.run("events").jobs] == [JobStatus.FINISHED]
    assert len(small.statements) <= most, small.statements
    assert len(nothing.statements) <= most_of_nothing, nothing.statements
    assert small.taken <= most_taken


def test_a_job_and_its_task_are_written_three_times(h: Harness) -> None:
    """When they are created, with the batch, and at their end: never for a claim, nor to be read back."""
    _small(h)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 2)")
    h.run()
    h.insert((1, h.at(days=-3)), *((number, h.at()) for number in range(2, 10)))
    with watched(h.db) as small:
        assert h.db.run("events").deleted == 1
    writes = [verb for each in small.statements if (verb := _write_to(each, "lapse_task"))]
    assert writes == ["INSERT", "UPDATE", "DELETE"]
    writes = [verb for each in small.statements if (verb := _write_to(each, "lapse_job"))]
    assert writes == ["INSERT", "UPDATE"]


def _write_to(statement: str, table: str) -> str | None:
    found = re.match(rf"(?:/\* lapse \*/ )?(INSERT|UPDATE|DELETE)(?: INTO| FROM)? \S*\b{table}\b", statement)
    return found and found[1]
