"""Policies follow their tables, through whatever statement renames or replaces them."""

from __future__ import annotations

from contextlib import closing

import pytest

import lapse
from lapse.errors import LapseError
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness


def policies(h: Harness) -> dict[str, str]:
    return {stored.table.name: str(stored.policy.interval) for stored in h.db.policies()}


def make(h: Harness, name: str, days: int) -> None:
    h.sql(
        f"CREATE TABLE {h.q(name)} (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}) "
        f"TTL = ts + INTERVAL {days} DAY"
    )


def test_a_policy_goes_with_its_table(h: Harness) -> None:
    make(h, "a", 1)
    h.insert((1, h.at(days=-2)), (2, h.at()), table="a")
    h.sql("ALTER TABLE a RENAME TO b")
    assert policies(h) == {"b": "1 day"}
    assert h.run_one("b").counts.deleted == 1


def test_what_lapse_installed_goes_with_it(h: Harness) -> None:
    h.sql(
        f"CREATE TABLE a (id {h.backend.bigint} PRIMARY KEY)"
        " WITH (ttl_expire_after = '1 day', ttl_hide_expired = 'view')"
    )
    h.sql("ALTER TABLE a RENAME TO b")
    h.sql("INSERT INTO b (id) VALUES (1)")
    assert h.rows("SELECT id FROM b_live") == [(1,)]
    with pytest.raises(LapseError):
        h.rows("SELECT id FROM a_live")
    assert [finding for finding in h.db.doctor() if finding.level == "problem"] == []


def test_three_steps_swap_two_policies(h: Harness) -> None:
    for name, days in (("a", 1), ("b", 3650)):
        make(h, name, days)
        h.insert((1, h.at(days=-2)), table=name)
    for step in ("a RENAME TO tmp", "b RENAME TO a", "tmp RENAME TO b"):
        h.sql(f"ALTER TABLE {step}")
    assert policies(h) == {"a": "3650 days", "b": "1 day"}
    h.run(None)
    assert (h.ids("a"), h.ids("b")) == ([1], [])


def test_a_rename_that_fails_moves_nothing(h: Harness) -> None:
    make(h, "a", 1)
    make(h, "b", 2)
    with pytest.raises(LapseError):
        h.sql("ALTER TABLE a RENAME TO b")
    assert policies(h) == {"a": "1 day", "b": "2 days"}


def test_a_rename_ends_the_job_that_knows_the_old_name(h: Harness) -> None:
    make(h, "a", 1)
    h.insert((1, h.at(days=-2)), table="a")
    h.advance(hours=1)
    h.db.worker()._scheduler.run_once()
    assert len(h.db.jobs()) == 1
    h.sql("ALTER TABLE a RENAME TO b")
    (job,) = h.db.history()
    assert job.status is JobStatus.CANCELLED


def test_a_policy_whose_table_is_gone_does_not_stand_in_the_way(h: Harness) -> None:
    make(h, "a", 1)
    make(h, "b", 2)
    # Behind Lapse's back, as far as the catalog can tell.
    with closing(lapse.connect(h.url, autocommit=True)) as connection:
        connection.session.raw.cursor().execute("DROP TABLE b")
    h.sql("ALTER TABLE a RENAME TO b")
    assert policies(h) == {"b": "1 day"}


def test_case_decides_where_the_engine_says_so(h: Harness) -> None:
    make(h, "Events", 1)
    if h.owner.engine.dialect == "mysql" and h.rows("SELECT @@lower_case_table_names") != [(0,)]:
        pytest.skip("names that differ by case are the same")
    if h.features.time_types:
        h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY)")
        h.sql("ALTER TABLE events RENAME TO archive")
        h.sql("DROP TABLE archive")
        assert policies(h) == {"Events": "1 day"}
    else:
        h.sql("ALTER TABLE EVENTS RENAME TO archive")
        assert policies(h) == {"archive": "1 day"}


def test_drop_ttl_removes_the_policy_or_the_column(h: Harness) -> None:
    make(h, "a", 1)
    h.sql("ALTER TABLE a DROP TTL")
    assert policies(h) == {}
    h.sql(
        f"CREATE TABLE b (id {h.backend.bigint} PRIMARY KEY, ttl INT, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY"
    )
    h.sql("ALTER TABLE b DROP ttl")
    assert policies(h) == {"b": "1 day"}
    with pytest.raises(LapseError):
        h.rows("SELECT ttl FROM b")


def test_drop_ttl_of_nothing(h: Harness) -> None:
    h.sql(f"CREATE TABLE a (id {h.backend.bigint} PRIMARY KEY)")
    with pytest.raises(LapseError, match="nothing to remove"):
        h.sql("ALTER TABLE a DROP TTL")
    with pytest.raises(LapseError, match="missing"):
        h.sql("ALTER TABLE missing DROP TTL")


def test_the_same_again_is_no_new_version(h: Harness) -> None:
    make(h, "a", 1)
    before = h.db.policy("a")
    h.sql("ALTER TABLE a TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE a SET (ttl_pause = 'off')")
    after = h.db.policy("a")
    assert (after.version, after.changed_at, after.grace_until) == (
        before.version,
        before.changed_at,
        before.grace_until,
    )
    h.sql("ALTER TABLE a SET (ttl_pause = 'on')")
    assert h.db.policy("a").version == before.version + 1


def test_a_temporary_table_takes_no_policy_along(h: Harness) -> None:
    """It may be renamed to what another table is called, which has no policy."""
    if not h.features.lists_temporary_tables:
        pytest.skip("TiDB can neither alter nor list a temporary table")
    columns = f"id INTEGER PRIMARY KEY, ts {h.backend.instant}"
    h.sql(f"CREATE TABLE events ({columns}) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"CREATE TABLE orders ({columns})")
    h.insert((1, h.at(days=-2)), table="orders")
    h.sql(f"CREATE TEMPORARY TABLE events ({columns}); ALTER TABLE events RENAME TO orders")
    h.insert((1, h.at(days=-2)), (2, h.at()))
    h.run(None)
    assert (h.ids("events"), h.ids("orders")) == ([2], [1])


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE events TTL = ts + INTERVAL 1 DAY", "ALTER TABLE events SET (ttl_expire_after = '1 hour')"],
)
def test_a_temporary_table_hides_the_table_it_is_named_after(h: Harness, statement: str) -> None:
    word = "temporary" if h.features.lists_temporary_tables else "no table"
    columns = f"id INTEGER PRIMARY KEY, ts {h.backend.instant}"
    h.sql(f"CREATE TABLE events ({columns})")
    h.insert((1, h.at(days=-2)))
    with pytest.raises(LapseError, match=word):
        h.sql(f"CREATE TEMPORARY TABLE events ({columns}); {statement}")
    make(h, "other", 1)
    assert policies(h) == {"other": "1 day"}
    assert [len(row) for row in h.rows("SELECT * FROM events")] == [2], "it has its row, and no column more"


def test_dropping_a_temporary_table_keeps_the_policy_of_the_table_it_hid(h: Harness) -> None:
    h.events()
    h.sql(f"CREATE TEMPORARY TABLE events (id INTEGER PRIMARY KEY, ts {h.backend.instant}); DROP TABLE events")
    assert [stored.table.name for stored in h.db.policies()] == ["events"]
