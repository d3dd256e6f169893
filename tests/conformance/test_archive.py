"""Archives: expired rows move to another table in the transaction that deletes them, each of them once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lapse.app import Lapse
from lapse.app.archiving import ArchiveState
from lapse.errors import InvalidValue, LapseError, PolicyConflict, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus, PathKind
from lapse.runner.events import BatchDone, NullListener
from tests.conformance.harness import Harness
from tests.safety.crash import CrashAfter, dying

ARCHIVE = "ttl_archive = 'table:'"


def archived_events(h: Harness, more: str = ARCHIVE, *, extra: str = "", expired: int = 30) -> None:
    """Rows 1 to `expired` have expired, and two more have not."""
    if not h.features.archives:
        pytest.skip("rows cannot be archived")
    h.events(extra=f", note {h.backend.text}{extra}")
    h.sql(f"ALTER TABLE events SET ({more})")
    rows = [f"({i}, {h.at(days=-2)}, 'note {i}')" for i in range(1, expired + 1)]
    rows += [f"({i}, {h.at(hours=-2)}, 'note {i}')" for i in (expired + 1, expired + 2)]
    h.sql(f"INSERT INTO events (id, ts, note) VALUES {', '.join(rows)}")


def _blocked(h: Harness) -> str:
    """Why the table gets no job; nothing may have gone."""
    before = h.ids()
    (skip,) = h.db.run("events").skipped
    assert skip.blocked is BlockCode.PARTS_MISSING
    assert h.ids() == before
    return skip.reason


@pytest.mark.parametrize(("batch", "index"), [(1, False), (7, True), (1000, False)])
def test_each_expired_row_moves_once(h: Harness, batch: int, index: bool) -> None:
    archived_events(h, f"{ARCHIVE}, ttl_delete_batch_size = {batch}, ttl_adaptive = 'off'")
    if index:
        h.sql("CREATE INDEX events_ts ON events (ts)")
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 30)
    assert job.path.kind is (PathKind.INDEX if index else PathKind.PHYSICAL)
    assert h.ids() == [31, 32]
    assert h.ids("events_archive") == list(range(1, 31))
    assert {row[0] for row in h.rows("SELECT lapse_job FROM events_archive")} == {job.id}
    assert h.rows("SELECT count(*) FROM events_archive WHERE archived_at IS NULL OR ts IS NULL")[0][0] == 0
    assert h.rows("SELECT note FROM events_archive WHERE id = 7") == [("note 7",)]
    assert len({row[0] for row in h.rows("SELECT lapse_seq FROM events_archive")}) == 30
    (listed,) = h.owner.archive("events")
    assert (listed.job, listed.rows, listed.moved, listed.verdict) == (job.id, 30, 30, ArchiveState.COMPLETE)


def test_many_rows_in_many_batches(h: Harness) -> None:
    """More than one window, so that every statement an engine has for a batch is used."""
    archived_events(h, f"{ARCHIVE}, ttl_guard = 'off'")
    for start in range(1000, 13_000, 3000):
        values = ", ".join(f"({i}, {h.at(days=-2 if i % 3 else 0)}, 'x')" for i in range(start, start + 3000))
        h.sql(f"INSERT INTO events (id, ts, note) VALUES {values}")
    job = h.run_one()
    assert job.counts.deleted == 8030
    assert h.rows("SELECT count(*), count(DISTINCT id) FROM events_archive") == [(8030, 8030)]
    assert h.rows("SELECT count(*) FROM events") == [(4002,)]
    assert h.rows("SELECT count(*) FROM events_archive WHERE id IN (SELECT id FROM events)") == [(0,)]


def test_a_row_that_is_renewed_meanwhile_is_neither_deleted_nor_archived(h: Harness) -> None:
    archived_events(h, f"{ARCHIVE}, ttl_delete_batch_size = 5, ttl_adaptive = 'off'")
    renewed: list[int] = []

    class Renewing(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            if not renewed:
                renewed.append(max(h.ids()[:-2]))
                with h.client() as client:
                    client.exec_driver_sql(f"UPDATE events SET ts = {h.at()} WHERE id = {renewed[0]}")

    h.db.run("events", listener=Renewing())
    assert h.ids() == [*renewed, 31, 32]
    assert h.ids("events_archive") == [number for number in range(1, 31) if number not in renewed]


def test_a_job_that_began_before_archives_what_is_left(h: Harness) -> None:
    """From the moment a declaration returns nothing goes that is not archived."""
    archived_events(h, "ttl_delete_batch_size = 5, ttl_adaptive = 'off'")
    left: list[int] = []

    class Declaring(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            if not left:
                h.owner.execute(f"ALTER TABLE events SET ({ARCHIVE})")
                left.extend(h.ids())

    h.db.run("events", listener=Declaring())
    h.db.run("events")
    assert h.ids() == [31, 32]
    assert h.ids("events_archive") == left[:-2]


def test_names_of_archives(h: Harness) -> None:
    archived_events(h, 'ttl_archive = \'table:"Odd ""name"""\'')
    assert h.run_one().counts.deleted == 30
    assert len(h.ids(h.q('Odd "name"'))) == 30
    h.sql("ALTER TABLE events RENAME TO happenings")
    h.insert((50, h.at(days=-2)), table="happenings")
    assert h.run_one("happenings").counts.deleted == 1
    assert len(h.ids(h.q('Odd "name"'))) == 31
    assert h.owner.restore("happenings").restored == 31


def test_what_is_not_lapses_own_is_refused(h: Harness) -> None:
    h.events()
    h.sql(f"CREATE TABLE events_archive (id {h.backend.bigint}, ts {h.backend.instant})")
    with pytest.raises(PolicyConflict, match="not an archive"):
        h.sql(f"ALTER TABLE events SET ({ARCHIVE})")
    for place in ("http://host/rows", "file:rows", "events", "", "table:a.b.c"):
        with pytest.raises(InvalidValue):
            h.sql(f"ALTER TABLE events SET (ttl_archive = '{place}')")
    with pytest.raises(PolicyConflict, match="own archive"):
        h.sql("ALTER TABLE events SET (ttl_archive = 'table:events')")
    with pytest.raises(PolicyConflict, match="ttl_archive is not set"):
        h.sql("ALTER TABLE events SET (ttl_archive_keep = '1 day')")
    assert h.owner.policy("events").policy.archive is None


@pytest.mark.parametrize("column", ["lapse_seq", "archived_at", "lapse_rows", "lapse_pack"])
def test_a_column_that_an_archive_has_for_its_own_is_refused(h: Harness, column: str) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}, {column} {h.backend.text})")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    with pytest.raises(Unsupported, match=f"column {column}, which the archive needs"):
        h.sql(f"ALTER TABLE events SET ({ARCHIVE})")
    assert h.owner.policy("events").policy.archive is None


def test_two_tables_have_two_archives(h: Harness) -> None:
    archived_events(h)
    h.sql(f"CREATE TABLE others (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}, note {h.backend.text})")
    with pytest.raises(PolicyConflict, match="archive of table"):
        h.sql("ALTER TABLE others TTL = ts + INTERVAL 1 DAY")
        h.sql("ALTER TABLE others SET (ttl_archive = 'table:events_archive')")
    h.run_one()
    h.sql("ALTER TABLE events RESET (ttl)")
    with pytest.raises(PolicyConflict, match="archive of table"):
        h.sql("ALTER TABLE others SET (ttl_archive = 'table:events_archive')")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE events SET ({ARCHIVE})")
    assert h.owner.restore("events").restored == 30


def test_rows_that_would_go_or_change_elsewhere_are_refused(h: Harness) -> None:
    h.events()
    h.sql(
        f"CREATE TABLE notes (id {h.backend.bigint} PRIMARY KEY, event {h.backend.bigint},"
        " FOREIGN KEY (event) REFERENCES events (id) ON DELETE CASCADE)"
    )
    with pytest.raises(Unsupported, match=r"deletes rows of table .*notes"):
        h.sql(f"ALTER TABLE events SET ({ARCHIVE})")
    h.sql(f"CREATE TABLE own (id {h.backend.bigint} PRIMARY KEY, archived_at {h.backend.instant})")
    h.sql("ALTER TABLE own TTL = archived_at + INTERVAL 1 DAY")
    with pytest.raises(Unsupported, match="archived_at"):
        h.sql(f"ALTER TABLE own SET ({ARCHIVE})")


def test_a_column_that_is_added_follows(h: Harness) -> None:
    archived_events(h)
    h.sql("ALTER TABLE events ADD COLUMN later INTEGER")
    h.sql("UPDATE events SET later = id")
    assert "later" in _blocked(h)
    assert any(found.fixed for found in h.owner.doctor(repair=True))
    assert h.run_one().counts.deleted == 30
    assert h.rows("SELECT later FROM events_archive WHERE id = 7") == [(7,)]
    h.sql("ALTER TABLE events ADD COLUMN again INTEGER")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 10)")
    h.insert((1, h.at(days=-2)))
    assert h.run_one().counts.deleted == 1


def test_a_column_that_is_added_in_the_middle_of_a_job_loses_nothing(h: Harness) -> None:
    archived_events(h, f"{ARCHIVE}, ttl_delete_batch_size = 5, ttl_adaptive = 'off'")
    seen: list[int] = []

    class Adding(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            if not seen:
                with h.client() as client:
                    client.exec_driver_sql("ALTER TABLE events ADD COLUMN later INTEGER")
                    client.exec_driver_sql("UPDATE events SET later = id")
                seen.extend(h.ids())

    h.db.run("events", listener=Adding())
    assert h.ids() == seen
    h.owner.doctor(repair=True)
    h.db.run("events")
    assert h.ids() == [31, 32]
    assert h.rows("SELECT count(*) FROM events_archive WHERE later = id") == [(len(seen) - 2,)]


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE events_archive",
        "ALTER TABLE events_archive RENAME COLUMN lapse_job TO job",
        "CREATE UNIQUE INDEX one ON events_archive (id)",
    ],
)
def test_an_archive_that_was_changed_behind_its_back_takes_nothing(h: Harness, change: str) -> None:
    archived_events(h)
    with h.client() as client:
        client.exec_driver_sql(change)
    assert "events_archive" in _blocked(h)


def test_a_type_that_was_changed_blocks_until_there_is_another_archive(h: Harness) -> None:
    archived_events(h)
    h.run_one()
    h.sql("DROP TABLE events")
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}, note INTEGER)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    with pytest.raises(PolicyConflict, match="column note"):
        h.sql(f"ALTER TABLE events SET ({ARCHIVE})")
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:events_archive_2')")
    h.insert((1, h.at(days=-2)))
    assert h.run_one().counts.deleted == 1


def test_undo_brings_back_what_a_job_took_and_holds_it(h: Harness) -> None:
    archived_events(h)
    job = h.run_one()
    done = h.owner.undo(job.id)
    assert (done.rows, done.restored, done.existing, done.refused) == (30, 30, 0, 0)
    assert h.ids() == list(range(1, 33)) and h.ids("events_archive") == []
    assert h.rows("SELECT note FROM events WHERE id = 7") == [("note 7",)]
    assert done.hold is not None and done.hold.until == h.now + timedelta(days=7)
    assert done.hold.placed_by
    assert h.run_one().counts.deleted == 0
    again = h.owner.undo(job.id)
    assert (again.rows, again.restored, again.hold) == (0, 0, None)
    (listed,) = h.owner.archive()
    assert (listed.rows, listed.restored, listed.verdict) == (0, 30, ArchiveState.COMPLETE)
    h.owner.release(done.hold.id)
    assert h.run_one().counts.deleted == 30


def test_a_hold_of_restored_rows_is_for_their_times_alone(h: Harness) -> None:
    archived_events(h)
    job = h.run_one()
    h.owner.undo(job.id)
    h.insert((100, h.at(days=-3)))
    assert h.run_one().counts.deleted == 1
    assert 7 in h.ids()


def test_restore_some_rows_with_a_word_before(h: Harness) -> None:
    archived_events(h)
    job = h.run_one()
    h.insert((3, h.at()), (4, h.at()))
    looked = h.owner.restore("events", where="id <= 5", dry_run=True)
    assert (looked.rows, looked.existing, looked.restored, looked.hold) == (5, 2, 0, None)
    assert h.db.holds() == [] and h.ids() == [3, 4, 31, 32]
    done = h.owner.restore("events", where="id <= 5 AND note <> 'x'", job=job.id)
    assert (done.rows, done.restored, done.existing) == (5, 3, 2)
    assert h.ids() == [1, 2, 3, 4, 5, 31, 32]
    assert h.rows("SELECT note FROM events WHERE id IN (3, 4)") == [(None,), (None,)]
    assert h.ids("events_archive") == [3, 4, *range(6, 31)]
    assert h.owner.restore("events", where='"id" <= 7 AND "note" <> \'note\'', dry_run=True).rows == 4
    after = h.owner.restore("events", since=h.now + timedelta(days=9999))
    assert after.rows == 0
    with pytest.raises(LapseError):
        h.owner.restore("events", where="nothing = 1")
    with pytest.raises(LapseError):
        h.owner.restore("events", where="id IN (SELECT 1)")


def test_restore_without_a_hold_lets_rows_go_again(h: Harness) -> None:
    archived_events(h)
    h.run_one()
    assert h.owner.restore("events", keep="0 seconds").hold is None
    assert h.run_one().counts.deleted == 30


def test_restore_into_another_table(h: Harness) -> None:
    archived_events(h)
    h.run_one()
    h.sql(f"CREATE TABLE other (note {h.backend.text}, ts {h.backend.instant}, id {h.backend.bigint} PRIMARY KEY)")
    done = h.owner.restore("events", into="other")
    assert (done.restored, done.hold) == (30, None)
    assert h.ids("other") == list(range(1, 31)) and h.ids() == [31, 32]


def test_columns_that_came_and_went_since(h: Harness) -> None:
    archived_events(h)
    h.run_one()
    h.sql("ALTER TABLE events DROP COLUMN note")
    h.sql("ALTER TABLE events ADD COLUMN later INTEGER DEFAULT 7")
    with pytest.raises(PolicyConflict, match="no column note"):
        h.owner.restore("events")
    assert h.ids() == [31, 32] and h.db.holds() == []
    done = h.owner.restore("events", ignore_missing_columns=True)
    assert (done.restored, done.dropped) == (30, ("note",))
    assert h.rows("SELECT DISTINCT later FROM events") == [(7,)]


def test_a_column_that_must_have_a_value_gets_its_default(h: Harness) -> None:
    """Also once the archive has followed the table, where rows of before have none."""
    archived_events(h, expired=3)
    h.run_one()
    h.sql("ALTER TABLE events ADD COLUMN stars INTEGER DEFAULT 5 NOT NULL")
    h.owner.doctor(repair=True)
    h.insert((50, h.at(days=-2)))
    h.sql("UPDATE events SET stars = 7 WHERE id = 50")
    h.db.run("events")
    assert h.owner.restore("events").restored == 4
    assert h.rows("SELECT id, stars FROM events ORDER BY id") == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5), (50, 7)]


def test_rows_that_the_table_refuses_stay_in_the_archive(h: Harness) -> None:
    archived_events(h)
    h.run_one()
    h.sql("ALTER TABLE events ADD COLUMN later INTEGER DEFAULT 5")
    # Of all rows that come back with the default, one fits.
    h.sql("UPDATE events SET later = id")
    h.sql("CREATE UNIQUE INDEX one_each ON events (later)")
    done = h.owner.restore("events")
    assert (done.restored, done.existing) == (1, 29)
    assert h.ids() == [1, 31, 32] and len(h.ids("events_archive")) == 29


def test_a_managed_column_gives_restored_rows_the_whole_time(h: Harness) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, note {h.backend.text})")
    h.sql(f"ALTER TABLE events SET (ttl_expire_after = '1 hour', {ARCHIVE})")
    h.sql("INSERT INTO events (id, note) VALUES (1, 'a'), (2, 'b')")
    h.sql(f"UPDATE events SET crdb_internal_expiration = {h.at(hours=-2)}")
    job = h.run_one()
    assert job.counts.deleted == 2
    done = h.owner.undo(job.id)
    assert (done.restored, done.hold) == (2, None)
    assert h.ids() == [1, 2]
    assert h.rows(f"SELECT id FROM events WHERE crdb_internal_expiration <= {h.at(hours=1)}") == []
    assert h.run_one().counts.deleted == 0


def test_archived_rows_go_after_a_while(h: Harness) -> None:
    archived_events(h, f"{ARCHIVE}, ttl_archive_keep = '30 days', ttl_grace = '0 seconds'")
    h.run_one()
    assert {str(each.table).rpartition(".")[2] for each in h.owner.policies()} == {"events", "events_archive"}
    h.db.run("events_archive")
    assert len(h.ids("events_archive")) == 30
    with h.client() as client:
        client.exec_driver_sql(f"UPDATE events_archive SET archived_at = {h.at(days=-31)} WHERE id <= 10")
        client.exec_driver_sql(f"UPDATE events_archive SET archived_at = {h.at(days=-29)} WHERE id > 10")
    assert h.run_one("events_archive").counts.deleted == 10
    assert h.ids("events_archive") == list(range(11, 31))
    h.sql("ALTER TABLE events RESET (ttl_archive_keep)")
    assert [str(each.table).rpartition(".")[2] for each in h.owner.policies()] == ["events"]
    h.sql("ALTER TABLE events SET (ttl_archive_keep = '1 day')")
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.owner.policies() == []
    assert len(h.ids("events_archive")) == 20
    assert any("no policy names" in found.text for found in h.owner.doctor())


def test_an_archive_that_lost_rows_is_told(h: Harness) -> None:
    archived_events(h)
    h.run_one()
    with h.client() as client:
        client.exec_driver_sql("DELETE FROM events_archive WHERE id = 7")
    (listed,) = h.owner.archive()
    assert (listed.rows, listed.moved, listed.verdict) == (29, 30, ArchiveState.WRONG)


def test_a_policy_file_says_it_and_stays_as_it_is(h: Harness) -> None:
    archived_events(h)
    assert h.owner.policy("events").policy.archive in ("table:events_archive", "table:public.events_archive")
    (preview,) = h.db.preview("events")
    assert preview.policy.archive is not None


def test_a_process_that_dies_between_any_two_statements_leaves_each_row_in_one_table(h: Harness) -> None:
    archived_events(h, f"{ARCHIVE}, ttl_delete_batch_size = 11, ttl_adaptive = 'off'")
    everything = list(range(1, 33))
    for statements in range(1, 200, 17):
        doomed = h.open()
        crash = CrashAfter(doomed, statements)
        with dying():
            doomed.run("events")
        doomed.close()
        h.advance(minutes=1)
        assert sorted([*h.ids(), *h.ids("events_archive")]) == everything
        if not crash.crashed:
            break
    h.db.run("events")
    assert h.ids() == [31, 32]
    assert all(each.verdict is ArchiveState.COMPLETE for each in h.owner.archive())
    for statements in range(1, 200, 11):
        doomed = Lapse(h.url, clock=h.clock)
        crash = CrashAfter(doomed, statements)
        with dying():
            doomed.restore("events", keep="0 seconds")
        doomed.close()
        assert sorted([*h.ids(), *h.ids("events_archive")]) == everything
        if not crash.crashed:
            break
    assert h.ids() == everything
    assert all(each.verdict is ArchiveState.COMPLETE for each in h.owner.archive())
