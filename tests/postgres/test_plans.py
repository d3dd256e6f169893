"""Plans are pinned: whatever the statistics say, a batch reads blocks by address or rows by the index."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from lapse.engines.base import BoundPolicy
from lapse.engines.postgres import paths
from lapse.engines.postgres.delete import WORKING, PostgresDeleter
from lapse.engines.postgres.session import transaction
from lapse.model.job import JobStatus, KeyRange, Path, PathKind
from lapse.model.table import TableName
from tests.conformance.harness import Harness
from tests.postgres.test_stretches import sizes, watch_sizes


def nodes(plan: dict[str, Any]) -> list[str]:
    below = [name for child in plan.get("Plans", ()) for name in nodes(child)]
    relation = f" on {plan['Relation Name']}" if "Relation Name" in plan else ""
    return [plan["Node Type"] + relation, *below]


def plans_of(h: Harness, path: Path, calls: Callable[[PostgresDeleter], str], cursor: str | None = None) -> list[str]:
    """The plans of the statements that a call of the batch function runs, as the server itself reports them."""
    engine = h.db.engine
    with engine.connection() as connection:
        table = engine.describe(connection, TableName("events"))
        policy = h.db.policies()[0].policy
        target = engine.target(connection, BoundPolicy(table=table, policy=policy), h.now, path=path)
        span = engine.split(connection, target, 1)[0] if path.kind is PathKind.PHYSICAL else KeyRange()
        deleter = engine.deleter(target, span, cursor)
        assert isinstance(deleter, PostgresDeleter)
        raw: Any = connection.connection.driver_connection
        said: list[str] = []
        raw.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
        connection.exec_driver_sql(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
            " SET auto_explain.log_format = json; SET auto_explain.log_level = notice"
        )
        try:
            with transaction(connection, WORKING):
                deleter._work.function.call(connection, calls(deleter))
                raise Undone
        except Undone:
            connection.invalidate()
    plans = [json.loads(text[text.index("{") :]) for text in said if "Query Text" in text]
    deleting = [plan for plan in plans if "DELETE FROM ONLY" in plan["Query Text"]]
    return [name for plan in deleting for name in nodes(plan["Plan"])]


class Undone(Exception):
    pass


def plan_of(h: Harness, path: Path, *, careful: bool, cursor: str | None = None) -> list[str]:
    found = plans_of(h, path, lambda deleter: deleter._call(500, careful=careful), cursor)
    return [name for name in found if "pg_" not in name]


def fill(h: Harness, expired: int) -> None:
    h.events()
    h.sql("CREATE INDEX events_ts ON events (ts)")
    h.sql(
        f"INSERT INTO events SELECT n, TIMESTAMPTZ {h.at()} + CASE WHEN n <= {expired} THEN -1 ELSE 1 END"
        " * INTERVAL '2 days' FROM generate_series(1, 20000) n"
    )


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("expired", [10, 19_000])
def test_physical_order_never_uses_the_index(each: Harness, careful: bool, analyzed: bool, expired: int) -> None:
    fill(each, expired)
    if analyzed:
        each.sql("ANALYZE events")
    found = plan_of(each, Path(kind=PathKind.PHYSICAL), careful=careful)
    assert "Tid Range Scan on events" in found
    assert "Tid Scan on events" in found
    assert not [node for node in found if "Index" in node or "Bitmap" in node or "Seq Scan" in node]


def test_a_sweep_reads_its_blocks_once(each: Harness) -> None:
    fill(each, 10)
    each.sql("ANALYZE events")

    def sweep(deleter: PostgresDeleter) -> str:
        return deleter._message("sweep", limit=500, places=["(0,0)", "(50,0)"])

    found = plans_of(each, Path(kind=PathKind.PHYSICAL), sweep)
    assert [name for name in found if "events" in name] == ["ModifyTable on events", "Tid Range Scan on events"]
    assert not [name for name in found if name.startswith("Seq Scan")]


def test_a_sweep_that_finds_too_much_deletes_nothing_beyond_the_limit(h: Harness, client: psycopg.Connection) -> None:
    """The share of expired rows jumps from few to all in the middle of the table."""
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 300, ttl_guard = 'off')")
    h.sql(
        f"INSERT INTO events SELECT n, TIMESTAMPTZ {h.at()} + CASE WHEN n % 50 = 0 OR n > 20000 THEN -1 ELSE 1 END"
        " * INTERVAL '2 days' FROM generate_series(1, 40000) n"
    )
    watch_sizes(client)
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 20_400)
    rows = [rows for rows, _ in sizes(client)]
    assert max(rows) <= 300 and sum(rows) == 20_400


@pytest.mark.parametrize("cursor", [None, '["2026-03-01 00:00:00+00", "(3,4)"]'])
@pytest.mark.parametrize("analyzed", [False, True])
def test_the_index_path_uses_the_index_alone(each: Harness, cursor: str | None, analyzed: bool) -> None:
    fill(each, 19_000)
    if analyzed:
        each.sql("ANALYZE events")
    found = plan_of(each, Path(kind=PathKind.INDEX, index="events_ts"), careful=False, cursor=cursor)
    assert "Index Scan on events" in found
    assert not [node for node in found if "Bitmap" in node or "Seq Scan" in node or "Range" in node]


def test_the_path_follows_the_share_of_expired_rows(h: Harness) -> None:
    fill(h, 100)
    h.sql("ANALYZE events")
    (found,) = h.db.preview("events")
    assert found.path.kind is PathKind.INDEX
    assert "100 of about 20000 rows" in found.path.evidence
    h.sql(f"UPDATE events SET ts = {h.at(days=-3)} WHERE id <= 15000")
    h.sql("ANALYZE events")
    (found,) = h.db.preview("events")
    assert found.path.kind is PathKind.PHYSICAL
    h.db.confirm("events")
    assert h.run_one().counts.deleted == 15_000


def test_the_index_path_deletes_everything_that_has_expired(h: Harness) -> None:
    fill(h, 700)
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 50)")
    h.sql("ANALYZE events")
    job = h.run_one()
    assert job.path.kind is PathKind.INDEX
    assert (job.counts.deleted, job.counts.held, job.counts.skipped) == (700, 0, 0)
    assert h.rows("SELECT count(*), min(id) FROM events") == [(19_300, 701)]


def test_a_partial_index_without_nulls_serves_as_well(h: Harness) -> None:
    h.events()
    h.sql("CREATE INDEX events_ts ON events (ts) WHERE ts IS NOT NULL")
    h.insert((1, h.at(days=-2)), (2, "NULL"), (3, h.at()))
    job = h.run_one()
    assert job.path.index == "events_ts"
    assert h.ids() == [2, 3]


def test_equal_expiries_are_no_slower_than_others(h: Harness) -> None:
    """In an index rows with one expiry are in the order of their addresses already; sorting them would be done anew for
    every batch."""
    h.sql("CREATE TABLE events (id INTEGER, ts DATE); CREATE INDEX events_ts ON events (ts)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off', ttl_delete_batch_size = 1000)")
    h.sql("INSERT INTO events SELECT n, '2026-03-01' FROM generate_series(1, 100000) n; ANALYZE events")
    found = plan_of(h, Path(kind=PathKind.INDEX, index="events_ts"), careful=False)
    assert not [node for node in found if "Sort" in node]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "INDEX_PATH_SHARE", 1.0)
        job = h.run_one()
    assert (job.path.kind, job.status, job.counts.deleted) == (PathKind.INDEX, JobStatus.FINISHED, 100_000)


def test_equal_expiries_of_which_some_cannot_go(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, ts DATE); CREATE INDEX events_ts ON events (ts)")
    h.sql("CREATE TABLE child (parent INTEGER REFERENCES events)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 7)")
    h.sql("INSERT INTO events SELECT n, '2026-03-01' FROM generate_series(1, 500) n; ANALYZE events")
    h.sql("INSERT INTO child SELECT n FROM generate_series(3, 500, 5) n")
    with psycopg.connect(h.url) as other:
        other.execute("SELECT * FROM events WHERE id IN (1, 250, 499) FOR UPDATE")
        job = h.run_one()
    assert job.path.kind is PathKind.INDEX
    assert (job.counts.deleted, job.counts.held, job.counts.skipped) == (397, 100, 3)
