"""Deleting: every expired row goes, no other, whatever the key and the path."""

from __future__ import annotations

from time import monotonic

import pytest

from lapse.engines.base import Batch
from lapse.model.job import Job, JobStatus, PathKind
from lapse.runner.events import BatchDone, Cause, NullListener
from tests.conformance.harness import Harness


def _fill(h: Harness, count: int, expired_every: int = 3) -> list[int]:
    """Rows 1..count; every n-th has expired. Returns the ids that must stay."""
    rows = [(i, h.at(days=-2) if i % expired_every == 0 else h.at()) for i in range(1, count + 1)]
    for start in range(0, count, 500):
        h.insert(*rows[start : start + 500])
    return [i for i in range(1, count + 1) if i % expired_every]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_paging_misses_nothing(h: Harness, batch: int) -> None:
    h.events()
    h.sql(f"ALTER TABLE events SET (ttl_delete_batch_size = {batch}, ttl_adaptive = 'off')")
    keep = _fill(h, 300)
    job = h.run_one()
    assert h.ids() == keep
    assert job.counts.deleted == 100
    assert job.counts.batches >= 100 // batch
    assert job.status is JobStatus.FINISHED


def test_an_empty_table(h: Harness) -> None:
    h.events()
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 0)


def test_all_rows_expired(h: Harness) -> None:
    h.events()
    h.insert(*((i, h.at(days=-2)) for i in range(500)))
    assert h.run_one().counts.deleted == 500
    assert h.ids() == []


def test_composite_text_key(h: Harness) -> None:
    kind = h.backend.key_text
    h.sql(
        f"CREATE TABLE events (a {kind} NOT NULL, b {kind} NOT NULL, ts {h.backend.instant}, PRIMARY KEY (a, b)) "
        "TTL = ts + INTERVAL 1 DAY"
    )
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 3)")
    words = ["", "A", "a", "ä", "Z", "z", "ß", "日本", "a b", "%", "_", "'", '"', "\\"]
    for i, first in enumerate(words):
        for j, second in enumerate(("x", "X y", "€")):
            moment = h.at(days=-2) if (i + j) % 2 else h.at()
            quoted = (
                first.replace("\\", "\\\\").replace("'", "''")
                if "\\" in first and h.backend.quote("a") == "`a`"
                else first.replace("'", "''")
            )
            h.sql(f"INSERT INTO events (a, b, ts) VALUES ('{i:02}{quoted}', '{second}{j}', {moment})")
    total = len(words) * 3
    job = h.run_one()
    (left,) = h.rows("SELECT count(*) FROM events")[0]
    assert job.counts.deleted + left == total
    (expired_left,) = h.rows(f"SELECT count(*) FROM events WHERE ts < {h.at(days=-1)}")[0]
    assert expired_left == 0


def test_the_index_path_is_taken_when_few_rows_have_expired(h: Harness) -> None:
    h.events()
    h.sql("CREATE INDEX events_ts ON events (ts)")
    rows = [(i, h.at(days=-2) if i % 100 == 0 else h.at(seconds=i % 60)) for i in range(1, 3001)]
    for start in range(0, 3000, 500):
        h.insert(*rows[start : start + 500])
    h.insert((5001, "NULL"))
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 7)")
    job = h.run_one()
    assert job.path.kind is PathKind.INDEX
    assert "events_ts" in (job.path.index or "")
    assert job.counts.deleted == 30
    assert len(h.ids()) == 2971


def test_a_row_renewed_while_the_job_runs_survives(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 1)")
    h.insert(*((i, h.at(days=-2)) for i in range(1, 6)))
    renewed: list[int] = []

    class Renew(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            if not renewed:
                h.sql(f"UPDATE events SET ts = {h.at()} WHERE id = 5")
                renewed.append(5)

    h.db.run("events", listener=Renew())
    assert h.ids() == [5]


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "RESTRICT", "NO ACTION"])
def test_foreign_keys(h: Harness, action: str) -> None:
    big = h.backend.bigint
    h.sql(f"CREATE TABLE events (id {big} PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    h.sql(
        f"CREATE TABLE child (id {big} PRIMARY KEY, event {big}, "
        f"FOREIGN KEY (event) REFERENCES events (id) ON DELETE {action})"
    )
    h.insert(*((i, h.at(days=-2)) for i in range(1, 51)), (51, h.at()))
    h.sql("INSERT INTO child (id, event) VALUES (1, 10), (2, 20), (3, 51)")
    job = h.run_one()
    children = h.rows("SELECT id, event FROM child ORDER BY id")
    if action in ("RESTRICT", "NO ACTION"):
        assert h.ids() == [10, 20, 51]
        assert (job.counts.deleted, job.counts.held) == (48, 2)
        assert children == [(1, 10), (2, 20), (3, 51)]
    else:
        assert h.ids() == [51]
        assert (job.counts.deleted, job.counts.held) == (50, 0)
        assert children == ([(3, 51)] if action == "CASCADE" else [(1, None), (2, None), (3, 51)])
    assert job.status is JobStatus.FINISHED


def test_a_chain_of_rows_that_refer_to_each_other(h: Harness) -> None:
    big = h.backend.bigint
    h.sql(
        f"CREATE TABLE events (id {big} PRIMARY KEY, ts {h.backend.instant}, parent {big}, "
        "FOREIGN KEY (parent) REFERENCES events (id)) TTL = ts + INTERVAL 1 DAY"
    )
    for number in range(1, 6):
        parent = "NULL" if number == 1 else number - 1
        h.sql(f"INSERT INTO events (id, ts, parent) VALUES ({number}, {h.at(days=-2)}, {parent})")
    h.run()
    assert h.ids() == []


def test_where_nothing_has_expired_there_is_no_task(h: Harness) -> None:
    if h.db.engine.dialect == "sqlite":
        h.sql("PRAGMA journal_mode = wal")
    h.events()
    h.insert((1, h.at()), (2, h.at()))
    job = h.run_one()
    assert (job.status, job.tasks_total, job.counts.selected) == (JobStatus.FINISHED, 0, 0)
    h.sql("ALTER TABLE events SET (ttl_select_rate_limit = 100000)")
    assert h.run_one().tasks_total == 1  # read in steps, so that the limit holds


def test_a_scan_that_finds_nothing_keeps_to_its_rate(h: Harness) -> None:
    waited: list[float] = []

    class Watch(NullListener):
        def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
            waited.append(seconds if cause is Cause.RATE_LIMIT else 0.0)

    h.events()
    h.sql("ALTER TABLE events SET (ttl_select_rate_limit = 10000)")
    for start in range(0, 5000, 1000):
        h.insert(*((number, h.at()) for number in range(start, start + 1000)))
    db = h.db
    began = monotonic()
    (job,) = db.run("events", listener=Watch()).jobs
    assert (job.status, job.counts.selected) == (JobStatus.FINISHED, 0)
    # A machine that reads slowly has less to wait for.
    assert monotonic() - began > 0.4
    assert 0 < sum(waited) < 1.0


def test_batches_say_how_long_the_server_was_at_work(h: Harness) -> None:
    """Rests are taken in proportion to it, after batches that only read as well."""
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 20, ttl_select_rate_limit = 1000000)")
    h.insert(*((i, h.at(days=-2) if i < 50 else h.at()) for i in range(100)))
    batches: list[Batch] = []

    class Watch(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            batches.append(event.batch)

    h.db.run("events", listener=Watch())
    assert sum(batch.deleted for batch in batches) == 50
    assert all(batch.read_seconds + batch.busy_seconds > 0 for batch in batches)
    assert all(batch.busy_seconds <= batch.locked_seconds for batch in batches)


def test_a_row_inserted_expired_during_the_run_does_not_keep_the_job_going(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 1)")
    h.insert(*((i, h.at(days=-2)) for i in range(1, 11)))

    class Refill(NullListener):
        added = 100

        def batch_done(self, event: BatchDone) -> None:
            self.added += 1
            h.insert((self.added, h.at(days=-2)))

    job = h.db.run("events", listener=Refill()).jobs[0]
    assert job.status is JobStatus.FINISHED
    h.run()
    assert h.ids() == []
