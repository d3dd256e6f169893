"""Plans are pinned: whatever the statistics say, a batch reads blocks by address or rows by the index."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.engines.base import Declared, Target
from lapse.engines.postgres.blocks import BlockDeleter
from lapse.engines.postgres.delete import WORKING, PostgresDeleter
from lapse.engines.postgres.session import transaction
from lapse.model.job import JobStatus, KeyRange, Path, PathKind
from lapse.model.table import TableName
from lapse.runner.events import BatchDone, Silent
from tests.conformance.harness import Harness


def nodes(plan: dict[str, Any]) -> list[str]:
    below = [name for child in plan.get("Plans", ()) for name in nodes(child)]
    relation = f" on {plan['Relation Name']}" if "Relation Name" in plan else ""
    return [plan["Node Type"] + relation, *below]


def plan_of(h: Harness, path: Path, *, careful: bool, cursor: str | None = None) -> list[str]:
    engine = h.db.engine
    with engine.connection() as connection:
        table = engine.describe(connection, TableName("events"))
        policy = h.db.policies()[0].policy
        target = Target(declared=Declared(table=table, policy=policy), cutoff=h.now, path=path)
        span = engine.split(connection, target, 1)[0] if path.kind is PathKind.PHYSICAL else KeyRange()
        deleter = engine.deleter(target, span, cursor)
        assert isinstance(deleter, PostgresDeleter)
        with transaction(connection, WORKING):
            sql = deleter._statement(500, careful=careful)
            plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}").scalar_one()
    return nodes(plan[0]["Plan"])


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
    engine = each.db.engine
    with engine.connection() as connection:
        table = engine.describe(connection, TableName("events"))
        declared = Declared(table=table, policy=each.db.policies()[0].policy)
        target = Target(declared=declared, cutoff=each.now, path=Path(kind=PathKind.PHYSICAL))
        deleter = engine.deleter(target, engine.split(connection, target, 1)[0], None)
        assert isinstance(deleter, BlockDeleter)
        with transaction(connection, WORKING):
            plan = connection.exec_driver_sql(
                f"EXPLAIN (FORMAT JSON) {deleter._sweep_statement(0, 0, 50)}"
            ).scalar_one()
    assert nodes(plan[0]["Plan"]) == ["ModifyTable on events", "Tid Range Scan on events"]


def test_a_sweep_that_finds_too_much_deletes_nothing_beyond_the_limit(h: Harness) -> None:
    """The share of expired rows jumps from few to all in the middle of the table."""
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 300)")
    h.sql(
        f"INSERT INTO events SELECT n, TIMESTAMPTZ {h.at()} + CASE WHEN n % 50 = 0 OR n > 20000 THEN -1 ELSE 1 END"
        " * INTERVAL '2 days' FROM generate_series(1, 40000) n"
    )
    sizes: list[int] = []

    class Watch(Silent):
        def batch_done(self, event: BatchDone) -> None:
            sizes.append(event.batch.deleted)

    (job,) = h.db.run("events", listener=Watch()).jobs
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 20_400)
    assert max(sizes) <= 300
    assert sum(sizes) == 20_400


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
