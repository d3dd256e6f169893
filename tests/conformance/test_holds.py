"""Holds: from the moment one is placed no held row is deleted, by whichever worker, way or cascade."""

from __future__ import annotations

import traceback
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread

import pytest
from sqlalchemy import update

from lapse.app import Lapse
from lapse.catalog import policies
from lapse.catalog.schema import hold, policy
from lapse.errors import (
    Blocked,
    InvalidValue,
    LapseError,
    NotFound,
    NotPermitted,
    PolicyConflict,
    TtlSyntaxError,
    Unsupported,
)
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus, PathKind
from lapse.runner.events import BatchDone, NullListener
from lapse.runner.worker import Worker
from tests.conformance.harness import Harness

HELD = [3, 13, 23]


def _events(h: Harness, *, more: str = "") -> None:
    """Rows 1 to 30, all expired; those of account 3 are 3, 13 and 23."""
    h.events(extra=f", account {h.backend.bigint}")
    if more:
        h.sql(f"ALTER TABLE events SET ({more})")
    rows = [f"({i}, {h.at(days=-2)}, {i % 10})" for i in range(1, 31)]
    h.sql(f"INSERT INTO events (id, ts, account) VALUES {', '.join(rows)}")


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("index", [False, True])
def test_held_rows_stay_and_go_when_they_are_released(h: Harness, batch: int, index: bool) -> None:
    _events(h, more=f"ttl_delete_batch_size = {batch}, ttl_adaptive = 'off'")
    if index:
        h.sql("CREATE INDEX events_ts ON events (ts)")
    placed = h.owner.hold("events", "account = 3", reason="case 12")
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 27, 0)
    assert job.path.kind is (PathKind.INDEX if index else PathKind.PHYSICAL)
    assert h.ids() == HELD
    assert [(each.id, each.where, each.reason) for each in h.db.holds()] == [(placed.id, "account = 3", "case 12")]
    h.owner.release(placed.id)
    assert h.run_one().counts.deleted == 3
    assert h.db.holds() == []
    (ended,) = h.db.holds(ended=True)
    assert ended.released_by == ended.placed_by is not None


def test_everything_that_looks_at_what_will_go_knows_it(h: Harness) -> None:
    _events(h)
    h.owner.hold("events", "account = 3")
    (preview,) = h.db.preview("events", exact=True)
    assert preview.survey.expired == 27
    assert not {row["id"] for row in preview.sample} & set(HELD)
    assert "account" in preview.condition


def test_several_all_rows_and_a_row_for_which_it_is_not_known(h: Harness) -> None:
    _events(h)
    h.sql("UPDATE events SET account = NULL WHERE id = 13")
    first, second = h.owner.hold("events", "account = 3"), h.owner.hold("events", "id IN (5, 6) OR account IS NULL")
    h.run_one()
    assert h.ids() == [3, 5, 6, 13, 23]
    whole = h.owner.hold("events")
    h.owner.release(first.id)
    h.owner.release(second.id)
    h.run_one()
    assert h.ids() == [3, 5, 6, 13, 23]
    h.owner.release(whole.id)
    h.run_one()
    assert h.ids() == []


def test_it_ends_by_the_clock_of_the_database(h: Harness) -> None:
    _events(h)
    h.owner.hold("events", "account = 3", until=h.now + timedelta(hours=2))
    h.run_one()
    assert h.ids() == HELD
    h.advance(hours=1)
    h.run_one()
    assert h.ids() == HELD
    h.advance(hours=1)
    h.run_one()
    assert h.ids() == []
    assert h.db.holds() == []


def test_it_outlives_changes_of_the_policy_and_its_removal(h: Harness) -> None:
    _events(h)
    h.owner.hold("events", "account = 3")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 5)")
    h.run_one()
    assert h.ids() == HELD
    h.sql("ALTER TABLE events RESET (ttl)")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 hour''')")
    h.run_one()
    assert h.ids() == HELD


def test_it_follows_a_table_that_is_renamed(h: Harness) -> None:
    _events(h)
    placed = h.owner.hold("events", "account = 3")
    h.sql("ALTER TABLE events RENAME TO happenings")
    h.run("happenings")
    assert h.ids("happenings") == HELD
    assert [each.table.name for each in h.db.holds()] == ["happenings"]
    h.owner.release(placed.id)
    h.run("happenings")
    assert h.ids("happenings") == []


class Placing(NullListener):
    """Another session places a hold after the first batch of a job."""

    def __init__(self, database: Lapse) -> None:
        self._database = database
        self.held_since: list[int] = []

    def batch_done(self, event: BatchDone) -> None:
        if not self.held_since:
            self.held_since.append(event.job.id)
            self._database.hold("events", "account = 3")


def test_a_running_job_deletes_no_row_that_is_held_meanwhile(h: Harness) -> None:
    _events(h, more="ttl_delete_batch_size = 1, ttl_adaptive = 'off'")
    placing = Placing(h.owner)
    result = h.db.run("events", listener=placing, confirm=True)
    assert placing.held_since
    assert [job.status for job in result.jobs] == [JobStatus.CANCELLED]
    assert set(HELD) <= set(h.ids())
    h.run_one()
    assert h.ids() == HELD


def test_what_was_planned_before_the_hold_is_never_begun(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a worker that has looked at the table, and made the job, a moment before."""
    _events(h)
    worker, before = Worker(h.db.catalog), h.db.policy("events")
    tick = worker._scheduler.run_once(only=before)
    assert len(tick.jobs) == 1
    h.owner.hold("events", "account = 3")
    assert worker.work_once() is None
    # By a worker that did not see the hold: no job is created, and one that is there all the same is not begun.
    with h.db.catalog.reading() as connection:
        (physical,) = policies.list_tables(connection)
    # A worker that may do no more than call the table's function cannot even plan it: the function knows of the hold.
    with suppress(Blocked, NotPermitted):
        assert worker._keeper.create(before, physical, tick.settings) is None
        monkeypatch.setattr(policies, "is_current", lambda *_, **__: True)
        made = worker._keeper.create(before, physical, tick.settings)
        assert made is not None
        assert worker.work_once() is None
        assert worker._keeper.settle(made.id).status is JobStatus.CANCELLED
    assert len(h.ids()) == 30


def test_a_parent_whose_deletes_would_reach_held_rows_stops(h: Harness) -> None:
    h.events()
    h.sql(
        f"CREATE TABLE details (id {h.backend.bigint} PRIMARY KEY, event_id {h.backend.bigint},"
        " FOREIGN KEY (event_id) REFERENCES events (id) ON DELETE CASCADE)"
    )
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)))
    h.sql("INSERT INTO details VALUES (10, 1), (20, 2)")
    placed = h.owner.hold("details", "id = 10")
    result = h.run("events")
    assert result.failed
    assert h.ids() == [1, 2]
    (health,) = h.db.health()
    assert health.blocked is BlockCode.HELD
    assert f"hold {placed.id} keeps rows with id = 10" in str(result.jobs[0].reason)
    h.owner.release(placed.id)
    assert not h.run("events").failed
    assert h.ids() == []


def test_a_column_that_is_gone_blocks_the_table(h: Harness) -> None:
    _events(h)
    placed = h.owner.hold("events", "account = 3")
    with pytest.raises(PolicyConflict, match="account"):
        h.sql("ALTER TABLE events DROP COLUMN account")
    with h.client() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME COLUMN account TO customer")
    result = h.run("events")
    assert result.failed and f"hold {placed.id}" in str(result.jobs[0].reason)
    assert len(h.ids()) == 30


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("account", Unsupported, "true or false"),
        ("acount = 3", LapseError, "acount"),
        ("account = (SELECT 1)", TtlSyntaxError, "sub-queries"),
        ("account = 3 --", TtlSyntaxError, "comments"),
        ("random() < 1", LapseError, "random"),
        (" ", InvalidValue, "empty"),
        ("account = 'many'", Unsupported, "no number"),
        ("'x1' <> account OR account IS NULL", Unsupported, "no number"),
        ("account IN (3, 'four')", Unsupported, "no number"),
        ("account LIKE 'a%'", Unsupported, "no number"),
    ],
)
def test_what_is_no_condition_is_refused(h: Harness, where: str, error: type[LapseError], words: str) -> None:
    _events(h)
    with pytest.raises(error, match=words):
        h.owner.hold("events", where)
    assert h.db.holds(ended=True) == []
    h.run_one()
    assert h.ids() == []


def test_other_mistakes_are_refused(h: Harness) -> None:
    _events(h)
    with pytest.raises(LapseError, match="no table"):
        h.owner.hold("evnts")
    with pytest.raises(NotFound, match="no hold 77"):
        h.owner.release(77)
    with pytest.raises(InvalidValue, match="past"):
        h.owner.hold("events", until=h.now - timedelta(seconds=1))
    placed = h.owner.hold("events")
    h.owner.release(placed.id)
    with pytest.raises(PolicyConflict, match="released before"):
        h.owner.release(placed.id)


def test_the_same_in_sql(h: Harness) -> None:
    _events(h)
    (number,) = h.owner.execute(
        "ALTER TABLE events HOLD UNTIL '2099-01-01T00:00:00Z' REASON 'it''s needed' WHERE account = 3 AND id < 20;"
    ).rows[0]
    shown = h.owner.execute("SHOW HOLDS")
    row = dict(zip(shown.columns, shown.rows[0], strict=True))
    assert (row["hold"], row["where"], row["reason"]) == (number, "account = 3 AND id < 20", "it's needed")
    h.run_one()
    assert h.ids() == [3, 13]
    h.owner.execute(f"RELEASE HOLD {number}")
    assert h.owner.execute("SHOW HOLDS").rows == ()
    h.owner.execute("ALTER TABLE events HOLD")
    h.run_one()
    assert h.ids() == [3, 13]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ALTER TABLE events HOLD account = 3", "expected UNTIL, REASON or WHERE"),
        ("ALTER TABLE events HOLD UNTIL '2099-01-01'", "no zone"),
        ("ALTER TABLE events HOLD UNTIL 'soon'", "no time"),
        ("ALTER TABLE events HOLD REASON case12", "in quotes"),
        ("ALTER TABLE events HOLD WHERE", "ends too early"),
        ("RELEASE HOLD events", "number of a hold"),
        ("RELEASE HOLD 1 2", "nothing after"),
    ],
)
def test_sql_that_is_wrong_is_told_where(h: Harness, text: str, words: str) -> None:
    h.events()
    with pytest.raises(TtlSyntaxError, match=words):
        h.owner.execute(text)
    assert h.db.holds(ended=True) == []


def test_not_inside_a_transaction(h: Harness) -> None:
    h.events()
    for statement in ("ALTER TABLE events HOLD", "RELEASE HOLD 1"):
        with pytest.raises(LapseError, match="outside of a transaction"):
            h.owner.execute(f"BEGIN; {statement}")
    assert h.db.holds(ended=True) == []


def test_a_partition_with_held_rows_is_not_dropped(h: Harness) -> None:
    if not (h.features.partitions and h.features.table_locks):
        pytest.skip("there are no partitions that can be dropped")
    old, new = h.at(days=-40), h.at(days=40)
    if h.db.engine.dialect == "postgres":
        h.sql(
            "CREATE TABLE events (id bigint, ts timestamptz NOT NULL, account bigint) PARTITION BY RANGE (ts);"
            f" CREATE TABLE p0 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ({old}::timestamptz);"
            f" CREATE TABLE p1 PARTITION OF events FOR VALUES FROM ({old}::timestamptz) TO ({new}::timestamptz)"
        )
    else:
        h.sql(
            "CREATE TABLE events (id INTEGER, ts DATETIME(3) NOT NULL, account INTEGER, PRIMARY KEY (id, ts))"
            f" PARTITION BY RANGE COLUMNS (ts) (PARTITION p0 VALUES LESS THAN ({h.at(days=-90)}),"
            f" PARTITION p1 VALUES LESS THAN ({old}), PARTITION p2 VALUES LESS THAN ({new}))"
        )
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''1 day''', ttl_partition_drop = 'on')")
    rows = [f"({i}, {h.at(days=-50)}, {i % 10})" for i in range(1, 31)]
    h.sql(f"INSERT INTO events (id, ts, account) VALUES {', '.join(rows)}")
    placed = h.owner.hold("events", "account = 3")
    assert not h.run("events").failed
    assert h.ids() == HELD
    h.owner.release(placed.id)
    assert not h.run("events").failed
    assert h.ids() == []


def test_placed_and_released_while_workers_delete(h: Harness) -> None:
    """Whenever it is placed, what is there when the call returns and is held stays until it is released."""
    _events(h, more="ttl_delete_batch_size = 2, ttl_adaptive = 'off'")
    stop, clock = Event(), h.db.engine.clock
    met: list[str] = []

    def work() -> None:
        with Lapse(h.url, clock=clock) as database:
            while not stop.is_set():
                try:
                    database.run("events", confirm=True)
                except Exception:
                    met.append(traceback.format_exc())

    workers = [Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for number in range(6):
            base = 1000 * (number + 1)
            rows = [f"({base + i}, {h.at(days=-2)}, {i % 4})" for i in range(40)]
            h.sql(f"INSERT INTO events (id, ts, account) VALUES {', '.join(rows)}")
            placed = h.owner.hold("events", f"account = 3 AND id >= {base}")
            kept = [row for row in h.ids() if row >= base and (row - base) % 4 == 3]
            for _ in range(3):
                h.db.run("events", confirm=True)
                assert [row for row in h.ids() if row >= base and (row - base) % 4 == 3] == kept
            h.owner.release(placed.id)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert met == []
    h.run("events")
    assert h.ids() == []


def test_a_worker_without_the_owners_rights_can_neither_place_nor_undo_one(h: Harness) -> None:
    if h.db is h.owner or h.db.engine.dialect != "postgres":
        pytest.skip("owner and worker are one role")
    _events(h)
    with pytest.raises(NotPermitted):
        h.db.hold("events")
    placed = h.owner.hold("events", "account = 3")
    with pytest.raises(NotPermitted):
        h.db.release(placed.id)
    assert [each.id for each in h.db.holds()] == [placed.id]
    # What a worker may write, its password may write: the function of the owner's still knows.
    with h.db.catalog.writing() as connection:
        connection.execute(update(policy).values(holds=None))
        connection.execute(update(hold).values(released_at=h.now))
    h.db.run("events", confirm=True)
    assert set(HELD) <= set(h.ids())


def test_one_on_a_table_that_is_gone_can_be_released(h: Harness) -> None:
    _events(h)
    placed = h.owner.hold("events", "account = 3")
    with h.client() as connection:
        connection.exec_driver_sql("DROP TABLE events")
    h.owner.release(placed.id)
    assert h.db.holds() == []
    assert h.db.policies()[0].holds == ()


def test_only_rows_of_tables_are_held_and_only_by_conditions(h: Harness) -> None:
    h.sql(f"CREATE TABLE bare (id {h.backend.bigint} PRIMARY KEY)")
    h.sql("CREATE VIEW seen AS SELECT id FROM bare")
    with pytest.raises(Unsupported, match="true or false"):
        h.owner.hold("bare", "id")
    for name in ("seen", "lapse_ttl.lapse_job" if h.db.engine.catalog_schema else "lapse_job"):
        h.owner.hold("bare")
        with pytest.raises(LapseError):
            h.owner.hold(name)
    assert {each.table.name for each in h.owner.holds(ended=True)} == {"bare"}


def test_holds_that_cannot_be_computed_any_more_are_released_one_by_one(h: Harness) -> None:
    _events(h)
    first, second = h.owner.hold("events", "account = 3"), h.owner.hold("events", "account = 4")
    with h.client() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME COLUMN account TO customer")
        connection.exec_driver_sql(f"ALTER TABLE events ADD COLUMN account {h.backend.key_text}")
    assert h.run("events").failed
    h.owner.release(first.id)
    h.owner.release(second.id)
    assert h.db.holds() == []
    assert len(h.ids()) == 30
