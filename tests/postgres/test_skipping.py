"""Blocks that cannot hold an expired row are not read: an index rules them out, whoever wrote to the table since."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lapse.engines.postgres import paths, split
from lapse.model.job import JobStatus, PathKind
from lapse.runner.events import BatchDone, NullListener
from tests.conformance.harness import Harness

WIDE = "repeat('x', 1000)"


class _Read(NullListener):
    """How many rows a job has read."""

    def __init__(self) -> None:
        self.examined = 0

    def batch_done(self, event: BatchDone) -> None:
        self.examined += event.batch.examined


def _log(h: Harness, rows: int = 20_000) -> None:
    """Rows in the order of their time, one a minute; the body makes a few of them fill a block."""
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ, body TEXT)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off')")
    h.sql(
        f"INSERT INTO events SELECT n, {h.at()}::timestamptz + (n - {rows}) * interval '1 minute', {WIDE}"
        f" FROM generate_series(1, {rows}) n"
    )


@pytest.mark.parametrize("method", ["brin", "btree"])
def test_the_rest_of_a_log_is_not_read(h: Harness, client: psycopg.Connection, method: str) -> None:
    _log(h)
    options = " WITH (pages_per_range = 8)" if method == "brin" else ""
    h.sql(f"CREATE INDEX events_ts ON events USING {method} (ts){options}")
    client.execute("UPDATE events SET ts = ts + interval '1 month' WHERE id > 5000")
    client.execute("VACUUM FULL events")
    client.execute("ANALYZE events")
    read = _Read()
    (job,) = h.db.run("events", listener=read).jobs
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 5000)
    assert (job.path.kind, job.path.index) == (PathKind.PHYSICAL, "events_ts")
    assert read.examined < 7500
    assert h.ids()[0] == 5001


def test_an_index_tells_that_nothing_has_expired(h: Harness) -> None:
    _log(h, 1000)
    h.sql("CREATE INDEX events_ts ON events USING brin (ts)")
    h.sql("ALTER TABLE events SET (ttl_select_rate_limit = 100000)")
    job = h.run_one()
    assert (job.status, job.tasks_total, job.counts.selected) == (JobStatus.FINISHED, 0, 0)


@pytest.mark.parametrize("columns", ["(ts) WHERE id > 500", "(id, ts) WHERE id IS NOT NULL", "(id)"])
def test_a_summary_that_may_leave_rows_out_rules_nothing_out(h: Harness, columns: str) -> None:
    h.sql("CREATE TABLE events (id BIGINT, ts TIMESTAMPTZ)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off')")
    h.sql(f"CREATE INDEX events_ts ON events USING brin {columns}")
    h.sql(f"INSERT INTO events SELECT nullif(n, 1), {h.at(days=-2)}::timestamptz FROM generate_series(1, 1000) n")
    job = h.run_one()
    assert (job.path.kind, job.path.index, job.counts.deleted) == (PathKind.PHYSICAL, None, 1000)


minutes = st.integers(-3000, 3000)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("INSERT INTO events VALUES ({id}, {at}, repeat('x', 1000))"), minutes),
        st.tuples(st.just("UPDATE events SET ts = {at} WHERE id = {id}"), minutes),
        st.tuples(st.just("UPDATE events SET ts = NULL WHERE id % 7 = {id} % 7"), minutes),
        st.tuples(st.just("DELETE FROM events WHERE id = {id}"), minutes),
        st.tuples(st.just("VACUUM events"), minutes),
        st.tuples(st.just("SELECT brin_summarize_new_values('events_ts')"), minutes),
    ),
    max_size=15,
)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(before=changes, after=changes, hours=st.integers(1, 72))
def test_whatever_was_written_no_expired_row_is_overlooked(
    h: Harness, client: psycopg.Connection, before: list[tuple[str, int]], after: list[tuple[str, int]], hours: int
) -> None:
    client.execute("DROP TABLE IF EXISTS events")
    h.run(None)
    _log(h, 300)
    h.sql("CREATE INDEX events_ts ON events USING brin (ts) WITH (pages_per_range = 1)")
    number = 1000
    for round in (before, after):
        for text, minute in round:
            if text.startswith("INSERT"):
                number += 1
            id = number if text.startswith("INSERT") else minute % 300 + 1
            client.execute(text.format(id=id, at=h.at(minutes=minute)))
        # Another expiry for the same index, and each run must find all that has expired by then.
        h.sql(f"ALTER TABLE events TTL = ts + INTERVAL {hours} HOUR")
        expired = f"ts <= {h.at()}::timestamptz - interval '{hours} hours'"
        ((total, gone),) = h.rows(f"SELECT count(*), count(*) FILTER (WHERE {expired}) FROM events")
        job = h.run_one()
        assert job.counts.deleted == gone
        assert h.rows(f"SELECT count(*), count(*) FILTER (WHERE {expired}) FROM events") == [(total - gone, 0)]
        hours += 5


def test_a_look_before_a_job_that_takes_long_is_left_to_the_job(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler looks at one table after another, so each look is short; all expired rows are found."""
    _log(h)
    h.sql("CREATE INDEX events_ts ON events USING brin (ts)")
    monkeypatch.setattr(paths, "PROBE_MS", 1)
    monkeypatch.setattr(split, "PRESCAN_MS", 1)
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 20_000 - 1440)
    h.sql("DROP INDEX events_ts")
    h.sql(f"INSERT INTO events SELECT n, {h.at()}::timestamptz, {WIDE} FROM generate_series(30000, 60000) n")
    job = h.run_one()
    assert (job.status, job.tasks_total > 0, job.counts.deleted) == (JobStatus.FINISHED, True, 0)
