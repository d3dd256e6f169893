"""`ttl_keep_last` on PostgreSQL: what its batch function refuses, and how the last rows are found."""

from __future__ import annotations

import psycopg
import pytest

from lapse.errors import Unsupported
from tests.conformance.harness import Harness

KEEP = "ttl_keep_last = '1 BY (account) ORDER BY ts'"


def _events(h: Harness, *, account: str = "bigint", index: str = "(account, ts, id)") -> None:
    h.sql(f"CREATE TABLE events (id bigint PRIMARY KEY, account {account}, ts timestamptz) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"CREATE INDEX events_last ON events {index}")


def _function(client: psycopg.Connection) -> str:
    found = client.execute(
        "SELECT p.oid::regproc::text, c.oid FROM pg_proc p JOIN pg_class c ON p.proname = 'lapse_ttl_' || c.oid"
        " WHERE c.relname = 'events'"
    ).fetchone()
    assert found is not None
    cutoff = "ARRAY[now()], ARRAY['2026-01-01']"
    return f"SELECT {found[0]}('{{op}}', {found[1]}, {cutoff}, ARRAY[100, 0], {{places}}, NULL)"


def test_the_function_judges_by_what_is_committed_whatever_it_is_asked(h: Harness, client: psycopg.Connection) -> None:
    _events(h)
    h.sql(f"ALTER TABLE events SET ({KEEP})")
    client.execute("INSERT INTO events VALUES (1, 1, '2020-01-01'), (2, 1, '2020-01-02')")
    call, blocks = _function(client), "ARRAY['(0,0)', '(10,0)']"
    with psycopg.connect(h.url) as worker:
        worker.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        worker.execute("SELECT 1")
        # It would count this row, which is gone, among the last ones.
        client.execute("DELETE FROM events WHERE id = 2")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction, match="READ COMMITTED"):
            worker.execute(call.format(op="blocks", places=blocks))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="unknown operation"):
        client.execute(call.format(op="sweep", places=blocks))
    client.execute(call.format(op="blocks", places=blocks))
    assert h.ids() == [1]


def test_without_the_index_a_batch_does_not_look_through_the_table(h: Harness, client: psycopg.Connection) -> None:
    _events(h)
    h.sql(f"ALTER TABLE events SET ({KEEP})")
    call = _function(client).format(op="blocks", places="ARRAY['(0,0)', '(10,0)']")
    client.execute(call)
    client.execute("REINDEX INDEX CONCURRENTLY events_last")
    client.execute(call)
    client.execute("DROP INDEX events_last")
    with pytest.raises(psycopg.DatabaseError, match="no index on") as error:
        client.execute(call)
    assert error.value.sqlstate == "LT005"


@pytest.mark.parametrize(
    ("account", "index"),
    [
        ("bigint", "(account, ts DESC, id)"),
        ("bigint", "(account, ts, id) WHERE id > 0"),
        ("bigint", "(account, ts)"),
        ("bigint", "(account, (id + 1), id)"),
        ("text", '(account COLLATE "C", ts, id)'),
        ("text", "(account text_pattern_ops, ts, id)"),
    ],
)
def test_an_index_that_does_not_lead_to_the_last_rows_does_not_do(h: Harness, account: str, index: str) -> None:
    _events(h, account=account, index=index)
    with pytest.raises(Unsupported, match="no index"):
        h.sql(f"ALTER TABLE events SET ({KEEP})")


def test_the_last_rows_are_found_without_a_sort(each: Harness) -> None:
    h = each
    _events(h)
    h.sql(f"ALTER TABLE events SET ({KEEP})")
    h.sql("INSERT INTO events SELECT i, i % 20, to_timestamp(i) FROM generate_series(1000000000, 1000003999) i")
    h.sql("ANALYZE events")
    (preview,) = h.db.preview("events", exact=True)
    with psycopg.connect(h.url) as connection:
        plan = connection.execute(f"EXPLAIN (ANALYZE) SELECT id FROM events WHERE {preview.condition}").fetchall()
    text = "\n".join(str(row[0]) for row in plan)
    assert "Backward using events_last" in text and "Sort" not in text
    assert preview.survey.expired == 3980


def test_row_security_cannot_know_it(h: Harness) -> None:
    _events(h)
    with pytest.raises(Unsupported, match="row security"):
        h.sql(f"ALTER TABLE events SET ({KEEP}, ttl_hide_expired = 'policy')")
    assert h.db.policies()[0].policy.keep_last is None


def test_types_with_operators_of_their_own_are_refused(h: Harness, client: psycopg.Connection) -> None:
    try:
        client.execute("CREATE EXTENSION citext")
    except psycopg.Error:
        pytest.skip("citext is not installed")
    _events(h, account="citext")
    with pytest.raises(Unsupported, match="citext"):
        h.sql(f"ALTER TABLE events SET ({KEEP})")


def test_a_partitioned_table_is_refused(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id bigint, account bigint, ts timestamptz, PRIMARY KEY (id, ts)) PARTITION BY RANGE (ts)"
    )
    h.sql("CREATE INDEX events_last ON events (account, ts, id)")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 day''')")
    with pytest.raises(Unsupported, match="partitioned"):
        h.sql(f"ALTER TABLE events SET ({KEEP})")
    assert h.db.policies()[0].policy.keep_last is None
