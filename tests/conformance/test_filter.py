"""`ttl_filter`: a term of the condition beside the expiry, which everything that looks at rows has to know."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection

from lapse.app.records import expiry_words
from lapse.engines.base import BoundPolicy
from lapse.errors import InvalidValue, LapseError, PolicyConflict, TtlSyntaxError, Unsupported
from lapse.model.job import JobStatus, PathKind
from lapse.runner.policy_manager import load_bound
from tests.conformance.harness import Harness

DONE = "ttl_filter = 'status = ''done'''"


def _events(h: Harness, *, more: str = "", extra: str = "") -> None:
    """Rows 1 to 60: all but every fifth have expired, and of these every third is done, every tenth has no status."""
    h.events(extra=f", status {h.backend.key_text}{extra}")
    h.sql(f"ALTER TABLE events SET ({DONE}{more})")
    rows = [f"({i}, {h.at() if i % 5 == 0 else h.at(days=-2)}, {_status(i)})" for i in range(1, 61)]
    h.sql(f"INSERT INTO events (id, ts, status) VALUES {', '.join(rows)}")


def _status(number: int) -> str:
    return "NULL" if number % 10 == 7 else "'done'" if number % 3 == 0 else "'open'"


EXPIRED = [i for i in range(1, 61) if i % 5 and _status(i) == "'done'"]
KEPT = [i for i in range(1, 61) if i not in EXPIRED]


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("index", [False, True])
def test_only_rows_for_which_it_is_true_are_deleted(h: Harness, batch: int, index: bool) -> None:
    _events(h, more=f", ttl_delete_batch_size = {batch}, ttl_adaptive = 'off'")
    if index:
        h.sql("CREATE INDEX events_ts ON events (ts)")
    job = h.run_one()
    assert h.ids() == KEPT
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, len(EXPIRED), 0)
    assert job.path.kind is (PathKind.INDEX if index else PathKind.PHYSICAL)


def test_everything_that_looks_at_rows_knows_it(h: Harness) -> None:
    _events(h, more=", ttl_hide_expired = 'view'")
    (preview,) = h.db.preview("events", exact=True)
    assert preview.survey.expired == len(EXPIRED)
    assert {row["id"] for row in preview.sample} <= set(EXPIRED)
    assert "status" in preview.condition
    assert expiry_words(preview.policy) == "1 day after ts, if status = 'done'"
    with h.db.engine.connection() as connection:
        later = h.db.engine.expiring(
            connection, _declared(h, connection), [h.now, h.now + timedelta(days=5)], exact=True
        )
    assert later.counts == (len(EXPIRED), sum(_status(i) == "'done'" for i in range(1, 61)))
    # The view goes by the server's clock.
    h.sql("UPDATE events SET ts = '2020-01-01 00:00:00'")
    assert h.ids("events_live") == [i for i in range(1, 61) if _status(i) != "'done'"]


def _declared(h: Harness, connection: Connection) -> BoundPolicy:
    return load_bound(h.db.engine, connection, h.db.policies()[0])


def test_a_renewed_row_stays(h: Harness) -> None:
    _events(h)
    h.sql("UPDATE events SET status = 'open' WHERE id = 3")
    h.run_one()
    assert h.ids() == sorted([*KEPT, 3])


def test_what_is_filtered_goes_once_it_is_done(h: Harness) -> None:
    _events(h)
    h.run_one()
    h.sql("UPDATE events SET status = 'done' WHERE id IN (1, 5)")
    h.run_one()
    assert h.ids() == [i for i in KEPT if i != 1]
    h.sql("ALTER TABLE events RESET (ttl_filter)")
    h.run_one()
    assert h.ids() == [i for i in range(1, 61) if i % 5 == 0]


def test_it_may_compare_times_and_combine(h: Harness) -> None:
    _events(h, extra=f", closed {h.backend.instant}")
    h.sql("ALTER TABLE events SET (ttl_filter = 'status IN (''done'', ''open'') AND (closed IS NULL OR closed < ts)')")
    h.sql(f"UPDATE events SET closed = {h.at()} WHERE id = 3")
    h.sql(f"UPDATE events SET closed = {h.at(days=-9)} WHERE id = 6")
    h.run_one()
    assert h.ids() == [i for i in range(1, 61) if i % 5 == 0 or i % 10 == 7 or i == 3]


def test_a_partition_of_which_rows_stay_is_not_dropped(h: Harness) -> None:
    if not (h.features.partitions and h.features.table_locks):
        pytest.skip("there are no partitions that can be dropped")
    old, new = h.at(days=-40), h.at(days=40)
    if h.db.engine.dialect == "postgres":
        h.sql(
            "CREATE TABLE events (id bigint, ts timestamptz NOT NULL, status text) PARTITION BY RANGE (ts);"
            f" CREATE TABLE p0 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ({old}::timestamptz);"
            f" CREATE TABLE p1 PARTITION OF events FOR VALUES FROM ({old}::timestamptz) TO ({new}::timestamptz)"
        )
    else:
        h.sql(
            "CREATE TABLE events (id INTEGER, ts DATETIME(3) NOT NULL, status VARCHAR(20), PRIMARY KEY (id, ts))"
            f" PARTITION BY RANGE COLUMNS (ts) (PARTITION p0 VALUES LESS THAN ({h.at(days=-90)}),"
            f" PARTITION p1 VALUES LESS THAN ({old}), PARTITION p2 VALUES LESS THAN ({new}))"
        )
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 day''')")
    h.sql(f"ALTER TABLE events SET (ttl_partition_drop = 'on', {DONE})")
    rows = [f"({i}, {h.at(days=-50)}, {_status(i)})" for i in range(1, 31)]
    h.sql(f"INSERT INTO events (id, ts, status) VALUES {', '.join(rows)}")
    result = h.run("events")
    assert not result.failed
    assert h.ids() == [i for i in range(1, 31) if _status(i) != "'done'"]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("status", Unsupported, "true or false"),
        ("1", Unsupported, "true or false"),
        ("statsu = 1", LapseError, "statsu"),
        ("status = (SELECT 1)", TtlSyntaxError, "sub-queries"),
        ("status = ''done'' --", TtlSyntaxError, "comments"),
        ("", InvalidValue, "ttl_filter"),
        ("random() < 1", LapseError, "random"),
    ],
)
def test_what_is_no_filter_is_refused(h: Harness, text: str, error: type[LapseError], words: str) -> None:
    _events(h)
    with pytest.raises(error, match=words):
        h.sql(f"ALTER TABLE events SET (ttl_filter = '{text}')")
    assert h.db.policies()[0].policy.filter == "status = 'done'"


def test_alone_it_is_no_policy(h: Harness) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, status {h.backend.key_text})")
    with pytest.raises(PolicyConflict, match="ttl_filter"):
        h.sql(f"ALTER TABLE events SET ({DONE})")


def test_a_column_that_it_reads_is_watched(h: Harness) -> None:
    _events(h)
    with h.client() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME COLUMN status TO state")
        connection.exec_driver_sql(f"ALTER TABLE events ADD COLUMN status {h.backend.key_text} DEFAULT 'done'")
    before = h.ids()
    result = h.run("events")
    assert result.failed and "was changed" in str(result.jobs[0].reason)
    assert h.ids() == before
