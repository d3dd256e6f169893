"""A preview tells what a run will really do, foreign keys included, before there is a policy, and changes nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter

import pytest

from lapse.app.firstrun import FirstRun
from lapse.app.preview import Outlook
from lapse.errors import CatalogMissing, InvalidValue, NotFound, TableNotFound, UsageError
from lapse.model.table import MANAGED_COLUMN, FkAction
from tests.conformance.harness import Harness

ACTIONS = (FkAction.CASCADE, FkAction.SET_NULL, FkAction.RESTRICT, FkAction.NO_ACTION)
FAMILIES = 6


@dataclass(frozen=True)
class Family:
    """Four tables tied by foreign keys: events, which may refer to itself, child and its grandchild, and other."""

    number: int
    own: FkAction | None
    child: FkAction
    grandchild: FkAction
    other: FkAction

    def name(self, table: str) -> str:
        return f"{table}_{self.number}"

    def make(self, h: Harness, draw: random.Random) -> None:
        big, events, child = h.backend.bigint, self.name("events"), self.name("child")
        key = f"id {big} PRIMARY KEY"
        own = "" if self.own is None else f", FOREIGN KEY (ref) REFERENCES {events} (id) ON DELETE {self.own}"
        h.sql(f"CREATE TABLE {events} ({key}, ts {h.backend.instant}, ref {big}{own})")
        for table, parent, action in (
            ("child", events, self.child),
            ("grandchild", child, self.grandchild),
            ("other", events, self.other),
        ):
            refers = f"FOREIGN KEY (ref) REFERENCES {parent} (id) ON DELETE {action}"
            h.sql(f"CREATE TABLE {self.name(table)} ({key}, ref {big}, {refers})")
        for number in range(1, 13):
            moment = h.at(days=-2) if draw.random() < 0.6 else h.at()
            h.sql(f"INSERT INTO {events} (id, ts) VALUES ({number}, {moment})")
        for number in range(1, 13):
            if self.own is not None and draw.random() < 0.5:
                h.sql(f"UPDATE {events} SET ref = {draw.randint(1, 12)} WHERE id = {number}")
        for table, rows in (("child", 10), ("grandchild", 6), ("other", 3)):
            for number in range(1, rows + 1):
                ref = "NULL" if draw.random() < 0.2 else str(draw.randint(1, 12 if table != "grandchild" else 10))
                h.sql(f"INSERT INTO {self.name(table)} (id, ref) VALUES ({number}, {ref})")

    def look(self, h: Harness) -> dict[str, dict[int, int | None]]:
        """table → id → what it refers to."""
        return {
            table: dict(h.rows(f"SELECT id, ref FROM {self.name(table)}"))
            for table in ("events", "child", "grandchild", "other")
        }


@pytest.mark.parametrize("seed", range(FAMILIES))
def test_what_a_run_does_is_what_the_preview_said(h: Harness, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(2):
        own = draw.choice((None, *ACTIONS))
        family = Family(number, own, *(draw.choice(ACTIONS) for _ in range(3)))
        family.make(h, draw)
        events = family.name("events")
        (preview,) = h.owner.preview(events, column="ts", after="1 day")
        h.sql(f"ALTER TABLE {events} TTL = ts + INTERVAL 1 DAY")
        assert h.owner.preview(events)[0].outlook == preview.outlook, family
        before = family.look(h)
        h.run(events)
        _check(preview.outlook, before, family.look(h), family)


def _check(
    outlook: Outlook,
    before: dict[str, dict[int, int | None]],
    after: dict[str, dict[int, int | None]],
    family: Family,
) -> None:
    assert outlook.exact, family
    assert outlook.followed, family
    touched = {each.table.name: (each.deleted, each.unset) for each in outlook.touched}
    for table in before:
        gone = len(before[table]) - len(after[table])
        unset = sum(1 for key, ref in after[table].items() if ref is None and before[table][key] is not None)
        said = touched.get(family.name(table), (0, 0))
        if table == "events":
            said = (said[0] + outlook.deleted, said[1])
        assert (gone, unset) == said, (table, family)


def test_rows_that_foreign_keys_hold_are_not_promised(h: Harness) -> None:
    h.events()
    h.insert(*((number, h.at(days=-2)) for number in range(1, 8)))
    big = h.backend.bigint
    h.sql(f"CREATE TABLE invoices (id {big} PRIMARY KEY, event {big}, FOREIGN KEY (event) REFERENCES events (id))")
    h.sql("INSERT INTO invoices (id, event) VALUES (1, 1), (2, 2), (3, 2)")
    (preview,) = h.owner.preview("events")
    assert (preview.survey.expired, preview.outlook.held, preview.outlook.deleted) == (7, 2, 5)
    assert [name.name for name in preview.outlook.holders] == ["invoices"]
    assert str(preview.outlook) == "would delete 5 of 7 rows (71%)"
    job = h.run_one()
    assert (job.counts.deleted, job.counts.held) == (5, 2)


def test_a_worker_previews_what_it_may_see(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)))
    big = h.backend.bigint
    h.sql(
        f"CREATE TABLE child (id {big} PRIMARY KEY, event {big}, "
        "FOREIGN KEY (event) REFERENCES events (id) ON DELETE CASCADE)"
    )
    h.sql("INSERT INTO child (id, event) VALUES (1, 1), (2, 1), (3, 2)")
    found = h.db.preview("events")[0].outlook
    # A worker's role need not be able to read a table whose rows only cascades delete.
    assert found.unknown or [(each.table.name, each.deleted) for each in found.touched] == [("child", 3)]
    assert found.deleted == 2


def test_rows_are_told_apart_by_any_key(h: Harness) -> None:
    make_odd_keys(h)
    found = h.owner.preview("events", column="ts", after="1 day")[0].outlook
    assert found.followed
    assert found.deleted == 4
    assert [(each.table.name, each.deleted) for each in found.touched] == [("child", 4), ("loose", 8)]


def make_odd_keys(h: Harness, suffix: str = "") -> None:
    """Six rows of which four have expired, by a key of two columns; a child of each, and two rows without a key."""
    text, big = h.backend.key_text, h.backend.bigint
    h.sql(f"CREATE TABLE events (a {text}, b {big}, ts {h.backend.instant}, PRIMARY KEY (a, b)){suffix}")
    h.sql(
        f"CREATE TABLE child (k {text} PRIMARY KEY, a {text}, b {big}, "
        f"FOREIGN KEY (a, b) REFERENCES events (a, b) ON DELETE CASCADE){suffix}"
    )
    h.sql(f"CREATE TABLE loose (k {text}, FOREIGN KEY (k) REFERENCES child (k) ON DELETE CASCADE)")
    for number in range(6):
        moment = h.at(days=-2) if number < 4 else h.at()
        name = f"'it''s \"{number % 2}\" ä'"
        h.sql(f"INSERT INTO events (a, b, ts) VALUES ({name}, {number}, {moment})")
        h.sql(f"INSERT INTO child (k, a, b) VALUES ('ö{number}', {name}, {number})")
        h.sql(f"INSERT INTO loose (k) VALUES ('ö{number}'), ('ö{number}')")


def test_more_rows_than_are_followed_are_estimated(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.engines.consequences.MOST_ROWS", 300)
    h.events()
    rows = [(number, h.at(days=-2)) for number in range(1, 401)]
    h.insert(*rows)
    big = h.backend.bigint
    h.sql(
        f"CREATE TABLE child (id {big} PRIMARY KEY, event {big}, "
        "FOREIGN KEY (event) REFERENCES events (id) ON DELETE CASCADE)"
    )
    h.sql("INSERT INTO child (id, event) SELECT id, id FROM events")
    estimated = h.owner.preview("events")[0].outlook
    assert not estimated.followed
    assert [(each.table.name, each.deleted) for each in estimated.touched] == [("child", 400)]
    exact = h.owner.preview("events", exact=True)[0].outlook
    assert exact.followed
    assert [(each.table.name, each.deleted) for each in exact.touched] == [("child", 400)]


# Before there is a policy


def test_a_policy_is_tried_without_a_catalog(h: Harness) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    h.insert((1, h.at(days=-40)), (2, h.at(days=-20)), (3, "NULL"))
    (preview,) = h.owner.preview("events", column="ts", after="30 days")
    assert preview.is_candidate
    assert (preview.outlook.rows, preview.outlook.deleted) == (3, 1)
    assert preview.forecast.total(30) == 1
    (same,) = h.owner.preview("events", column="ts", ttl="30 days")
    assert same.outlook == preview.outlook
    (by_expression,) = h.owner.preview("events", expression="ts")
    assert by_expression.outlook.deleted == 2
    assert h.owner.preview("events", column="ts")[0].outlook.deleted == 2
    _nothing_has_changed(h)


def test_a_managed_column_deletes_nothing_at_first(h: Harness) -> None:
    if not h.features.managed_column:
        pytest.skip("there is no managed column")
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    h.insert((1, h.at(days=-40)), (2, h.at(days=-20)))
    for asked in ({"after": "3 days"}, {"ttl": "3 days"}):
        (preview,) = h.owner.preview("events", **asked)  # type: ignore[arg-type]
        assert preview.outlook.deleted == 0
        assert preview.note is not None
        assert "2026-03-18 12:00 UTC" in preview.note
        assert [day.rows > 0 for day in preview.forecast.days[:4]] == [False, False, True, False]
    _nothing_has_changed(h)
    h.sql("ALTER TABLE events SET (ttl_expire_after = '3 days')")
    h.advance(days=2, hours=23)
    assert h.run_one().counts.deleted == 0
    h.advance(hours=1, seconds=1)
    assert h.run_one().counts.deleted == 2


def _nothing_has_changed(h: Harness) -> None:
    with pytest.raises(CatalogMissing):
        h.owner.policies()
    with h.owner.engine.connection() as connection:
        (name,) = h.owner.engine.tables(connection)
        table = h.owner.engine.describe(connection, name)
    assert [column.name for column in table.columns] == ["id", "ts"]
    assert table.column(MANAGED_COLUMN) is None


def test_a_candidate_stands_in_for_the_policy(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 30 DAY", extra=f", seen {h.backend.instant}")
    for number, days in ((1, -40), (2, -20), (3, -10)):
        h.sql(f"INSERT INTO events (id, ts, seen) VALUES ({number}, {h.at(days=days)}, {h.at(days=-1)})")
    assert h.owner.preview("events")[0].outlook.deleted == 1
    assert not h.owner.preview("events")[0].is_candidate
    assert h.owner.preview("events", after="15 days")[0].outlook.deleted == 2
    assert h.owner.preview("events", column="seen", after="15 days")[0].outlook.deleted == 0
    # What it has been from the beginning: the forecast of another TTL, beside what the policy does.
    (other,) = h.owner.preview("events", ttl="15 days")
    assert (other.outlook.deleted, other.forecast.expired) == (1, 2)
    assert h.run_one().counts.deleted == 1


def test_what_cannot_be_tried_is_refused(h: Harness) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    with pytest.raises(NotFound) as refused:
        h.owner.preview("events")
    assert refused.value.hint is not None
    assert all(word in refused.value.hint for word in ("--column", "--after", "--expression"))
    with pytest.raises(TableNotFound):
        h.owner.preview("event")
    with pytest.raises(TableNotFound):
        h.owner.preview("event", after="1 day")
    with pytest.raises(InvalidValue, match="seen"):
        h.owner.preview("events", column="seen", after="1 day")
    with pytest.raises(InvalidValue):
        h.owner.preview("events", column="ts", after="30")
    with pytest.raises(UsageError):
        h.owner.preview("events", expression="ts", after="1 day")
    with pytest.raises(UsageError):
        h.owner.preview("events", column="ts", after="1 day", ttl="1 day")
    _nothing_has_changed(h)


def test_a_preview_says_how_long_workers_wait(h: Harness) -> None:
    h.events()
    (preview,) = h.db.preview("events")
    assert preview.grace_until == h.db.policy("events").grace_until
    h.advance(minutes=11)
    assert h.db.preview("events")[0].grace_until is None


# As soon as it is declared


def _notices(h: Harness, statement: str) -> tuple[str, ...]:
    return tuple(notice for notice in h.sql(statement).notices if "would delete" in notice)


def test_a_declaration_says_what_its_first_run_will_do(h: Harness) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    h.insert((1, h.at(days=-40)), (2, h.at(days=-20)), (3, h.at(days=-10)), (4, h.at()))
    (line,) = _notices(h, "ALTER TABLE events TTL = ts + INTERVAL 30 DAY")
    assert "would delete 1 of 4 rows (25%) at the first run" in line
    assert line.endswith("workers wait until 12:10 UTC (ttl_grace)")
    h.advance(minutes=1)
    assert _notices(h, "ALTER TABLE events SET (ttl_job_cron = '@daily')") == ()
    assert _notices(h, "ALTER TABLE events TTL = ts + INTERVAL 30 DAY") == ()
    assert _notices(h, "SHOW CREATE TABLE events") == ()
    (line,) = _notices(h, "ALTER TABLE events TTL = ts + INTERVAL 15 DAY")
    assert "would delete 2 of 4 rows (50%)" in line
    assert line.endswith("workers wait until 12:11 UTC (ttl_grace)")
    assert h.run_one().counts.deleted == 2
    assert _notices(h, "ALTER TABLE events RESET (ttl)") == ()


def test_an_empty_table_has_nothing_to_say(h: Harness) -> None:
    assert (
        _notices(h, f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY) WITH (ttl_expire_after = '1 day')") == ()
    )


def test_inside_a_transaction_nothing_is_said(h: Harness) -> None:
    if not h.features.transactional_ddl:
        pytest.skip("a statement that changes the schema ends the transaction")
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    h.insert((1, h.at(days=-40)))
    with h.owner.session() as session:
        results = [
            session.execute(statement)
            for statement in session.parse("BEGIN; ALTER TABLE events TTL = ts + INTERVAL 30 DAY; COMMIT")
        ]
    assert not any("would delete" in notice for result in results for notice in result.notices)
    assert h.run_one().counts.deleted == 1


def test_status_counts_the_grace_period_down(h: Harness) -> None:
    h.events()
    (status,) = h.db.status()
    assert (status.state, status.grace_until) == ("grace", h.now + timedelta(minutes=10))
    assert status.reason == "deletes nothing for another 10 min, until 2026-03-15 12:10:00 UTC"
    h.advance(minutes=9, seconds=15)
    assert (h.db.status()[0].reason or "").startswith("deletes nothing for another 45 s,")
    assert (h.db.health()[0].why or "").startswith("deletes nothing for another 45 s,")
    h.advance(minutes=1)
    (status,) = h.db.status()
    assert (status.state, status.grace_until) == ("due", None)
    assert (h.db.health()[0].why or "").startswith("no job has run yet and no worker is running")


def test_a_locked_table_is_declared_without_that_line(h: Harness) -> None:
    if not h.features.table_locks:
        pytest.skip("there is nothing that keeps a whole table locked")
    h.events()
    h.insert((1, h.at(days=-40)))
    h.db.preview("events")
    name = h.owner.policy("events").table
    assert len(FirstRun(h.owner.catalog).notices(name, None)) == 1
    with h.owner.session() as session:
        for text in h.backend.lock or ("BEGIN EXCLUSIVE",):
            for statement in session.parse(text.format(t="events")):
                session.execute(statement)
        started = perf_counter()
        assert FirstRun(h.owner.catalog).notices(name, None) == ()
        assert perf_counter() - started < 10
    assert len(FirstRun(h.owner.catalog).notices(name, None)) == 1


def test_the_times_of_a_candidate_are_its_own(h: Harness) -> None:
    """Not those of the policy that the table has; a worker that may not read the table says none."""
    h.events()
    h.insert((1, h.at(days=-9)), (2, h.at(days=-5)), (3, h.at(days=-1)))
    first, last = h.now - timedelta(days=6), h.now - timedelta(days=2)
    for db in (h.owner, h.db):
        (found,) = db.preview("events", column="ts", after="3 days")
        assert found.survey.expired == 2
        times = (found.survey.oldest, found.survey.newest)
        assert times == (first, last) if db is h.owner else times in ((first, last), (None, None))
    (found,) = h.owner.preview("events")
    assert found.survey.oldest == h.now - timedelta(days=8)
