"""Foreign keys that point at a table with TTL."""

from __future__ import annotations

import pytest

from lapse.model.job import JobStatus
from tests.conformance.harness import Harness


def fill(h: Harness, action: str, count: int = 100) -> None:
    h.events()
    h.sql(f"CREATE TABLE child (id INTEGER, parent BIGINT DEFAULT 1 REFERENCES events (id) ON DELETE {action})")
    h.sql("CREATE INDEX ON child (parent)")
    h.sql(f"INSERT INTO events SELECT n, {h.at(days=-2)} FROM generate_series(2, {count}) n")
    h.sql(f"INSERT INTO events VALUES (1, {h.at()})")
    h.sql("INSERT INTO child SELECT n, 10 + n FROM generate_series(1, 5) n")


@pytest.mark.parametrize("action", ["RESTRICT", "NO ACTION", "NO ACTION DEFERRABLE INITIALLY DEFERRED"])
def test_referenced_rows_are_held_and_the_rest_goes(h: Harness, action: str) -> None:
    fill(h, action)
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 94, 5)
    assert (job.counts.skipped, job.counts.errors) == (0, 0)
    assert h.ids() == [1, 11, 12, 13, 14, 15]
    h.sql("DELETE FROM child")
    assert h.run_one().counts.deleted == 5


@pytest.mark.parametrize(("action", "left"), [("CASCADE", []), ("SET NULL", [None] * 5), ("SET DEFAULT", [1] * 5)])
def test_actions_are_the_databases(h: Harness, action: str, left: list[int | None]) -> None:
    fill(h, action)
    assert h.run_one().counts.deleted == 99
    assert [row[0] for row in h.rows("SELECT parent FROM child")] == left


def test_the_index_path_holds_referenced_rows_too(h: Harness) -> None:
    fill(h, "RESTRICT", count=300)
    h.sql("CREATE INDEX events_ts ON events (ts); ANALYZE events")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 20)")
    job = h.run_one()
    assert (job.path.index, job.counts.deleted, job.counts.held) == ("events_ts", 294, 5)


def test_set_null_on_a_column_that_must_not_be_null_holds_the_row(h: Harness) -> None:
    fill(h, "SET NULL")
    h.sql("ALTER TABLE child ALTER parent SET NOT NULL")
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 94, 5)


def test_a_missing_index_is_pointed_out_with_the_statement_that_makes_it(h: Harness) -> None:
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ)")
    h.sql("CREATE TABLE child (a TEXT, parent BIGINT REFERENCES events, other BIGINT REFERENCES events)")
    h.sql("CREATE INDEX ON child (other, a); CREATE INDEX ON child (a, parent)")
    notices = h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts')").notices
    (notice,) = [notice for notice in notices if "CREATE INDEX" in notice]
    assert 'CREATE INDEX CONCURRENTLY ON "public"."child" ("parent");' in notice


def test_composite_keys_in_another_order(h: Harness) -> None:
    h.sql("CREATE TABLE events (a INTEGER, b TEXT, ts TIMESTAMPTZ, PRIMARY KEY (a, b)) TTL = ts + INTERVAL 1 DAY")
    h.sql("CREATE TABLE child (y TEXT, x INTEGER, FOREIGN KEY (y, x) REFERENCES events (b, a))")
    h.sql(f"INSERT INTO events VALUES (1, 'p', {h.at(days=-2)}), (1, 'q', {h.at(days=-2)})")
    h.sql("INSERT INTO child VALUES ('q', 1)")
    job = h.run_one()
    assert (job.counts.deleted, job.counts.held) == (1, 1)
    assert h.rows("SELECT b FROM events") == [("q",)]
