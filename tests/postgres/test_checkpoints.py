"""The row of a task is written with every batch: by its address it is found at once, whatever cannot be cleaned up."""

from __future__ import annotations

import psycopg
import pytest

from lapse.catalog import tasks
from lapse.errors import Fenced
from lapse.model.job import Counts, Task
from lapse.runner.worker import Worker
from tests.conformance.harness import Harness


def _save(h: Harness, lease: Task, deleted: int) -> None:
    progress = tasks.Progress(
        cursor=str(deleted), sweep=0, counts=Counts(deleted=deleted), worked_seconds=0.0, waited_seconds=0.0
    )
    with h.db.catalog.writing(durable=False) as connection:
        tasks.save_progress(connection, lease, progress)


def test_checkpoints_under_an_open_snapshot(h: Harness, client: psycopg.Connection) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    worker = Worker(h.db.catalog)
    worker._scheduler.run_once()
    claim = worker._claim(None)
    assert claim is not None
    lease = claim.task
    with psycopg.connect(h.url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        for number in range(1, 301):
            _save(h, lease, number)
        known = tasks._addresses[lease.id]
        assert client.execute("SELECT ctid::text FROM lapse_ttl.lapse_task").fetchall() == [(known,)]
        # The heartbeat moves the row; a write that was rolled back leaves an address where nothing is.
        with h.db.catalog.writing() as connection:
            assert tasks.beat(connection, [lease], h.now) == []
        _save(h, lease, 301)
        tasks._addresses[lease.id] = "(9999,1)"
        _save(h, lease, 302)
        assert client.execute("SELECT deleted FROM lapse_ttl.lapse_task").fetchall() == [(302,)]
        client.execute("UPDATE lapse_ttl.lapse_task SET fence = fence + 1")
        with pytest.raises(Fenced):
            _save(h, lease, 303)
    assert client.execute("SELECT deleted FROM lapse_ttl.lapse_task").fetchall() == [(302,)]
