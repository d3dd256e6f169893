"""Archives in files: `ttl_archive = 'file:///…'`, from the declaration to a row that came back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, sleep

import pytest
from sqlalchemy import Connection, update

import lapse.archive
from lapse.app.archiving import ArchiveState
from lapse.app.doctor import Level
from lapse.catalog import Catalog, archive_files, exports
from lapse.catalog.archive_files import StoredFile
from lapse.catalog.schema import archive_file
from lapse.errors import ArchiveConflict, ArchiveDamaged, ArchiveUnavailable, LapseError, PolicyConflict
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from lapse.runner import exports as exports_module
from lapse.runner.destination import open_claimed
from lapse.runner.events import BatchDone, NullListener
from lapse.runner.exporting import Outbox
from tests.backends.base import quick_folder
from tests.conformance.harness import Harness
from tests.conformance.test_archive import archived_events

EXPIRED = list(range(1, 31))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In memory where it can be: every file is made durable."""
    with TemporaryDirectory(prefix="lapse-archive-", dir=quick_folder()) as name:
        monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{name}")
        yield Path(name)


def to(folder: Path, more: str = "") -> str:
    return f"ttl_archive = 'file://{folder}'{more}"


def in_files(folder: Path) -> list[int]:
    """As a reader of the folder finds them."""
    found = lapse.archive.open(f"file://{folder}")
    return sorted(int(number) for batch in found for number in batch.column("id").to_pylist())


def recorded(h: Harness) -> list[StoredFile]:
    with Catalog(h.owner.engine).reading() as connection:
        return archive_files.list_files(connection)


def others(h: Harness) -> None:
    h.sql(f"CREATE TABLE others (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")


def test_rows_go_into_files_and_come_back(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    result = h.db.run("events")
    (job,), (export,) = result.jobs, result.exports
    assert (job.status, job.counts.deleted, result.complete) == (JobStatus.FINISHED, 30, True)
    assert (export.rows, export.files, export.destination) == (30, 1, f"file://{folder}")
    assert (h.ids(), h.ids("events_outbox"), in_files(folder)) == ([31, 32], [], EXPIRED)
    (listed,) = h.owner.archive("events", verify=True)
    assert (listed.job, listed.rows, listed.files, listed.verdict) == (job.id, 30, 1, ArchiveState.COMPLETE)
    assert listed.archive == f"file://{folder}" and listed.bytes == recorded(h)[0].bytes

    looked = h.owner.undo(job.id, dry_run=True)
    assert (looked.rows, h.ids(), in_files(folder)) == (30, [31, 32], EXPIRED)
    done = h.owner.undo(job.id)
    assert (done.restored, done.archive, h.ids()) == (30, f"file://{folder}", [*EXPIRED, 31, 32])
    assert (h.ids("events_outbox"), in_files(folder), recorded(h)) == ([], [], [])
    assert done.hold is not None and h.run_one().counts.deleted == 0
    assert h.rows("SELECT note FROM events WHERE id = 7") == [("note 7",)]
    kinds = [entry.kind for entry in h.owner.ledger("events")]
    assert kinds.count("archived") == 1 and kinds.count("restored") == 1


def test_some_rows_of_a_file_come_back_and_the_others_stay_in_one(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    h.db.run("events")
    h.insert((3, h.at()))
    looked = h.owner.restore("events", where="id < 10", dry_run=True)
    assert (looked.rows, looked.existing) == (9, 1)
    done = h.owner.restore("events", where="id < 10")
    assert (done.restored, done.existing) == (8, 1)
    assert h.ids() == [*range(1, 10), 31, 32]
    assert in_files(folder) == [3, *range(10, 31)] and h.ids("events_outbox") == []
    (listed,) = h.owner.archive("events", verify=True)
    assert (listed.rows, listed.restored, listed.verdict) == (22, 8, ArchiveState.COMPLETE)


def test_a_file_that_was_changed_stops_a_restore_before_it_begins(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    h.db.run("events")
    h.insert((50, h.at(days=-2)))
    h.sql("DELETE FROM events WHERE id > 50")
    h.db.run("events")
    _, last = recorded(h)
    path = folder / last.path
    path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    (_, wrong) = h.owner.archive("events", verify=True)
    assert wrong.verdict is ArchiveState.WRONG and last.path in wrong.problems[0]
    with pytest.raises(ArchiveDamaged, match=f"job-{last.job}-{last.id}.parquet"):
        h.owner.restore("events")
    assert (h.ids(), h.ids("events_outbox")) == ([31, 32], [])


def test_files_are_removed_once_they_were_kept_for_long_enough(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder, ", ttl_archive_keep = '7 days'"))
    h.db.run("events")
    with Catalog(h.owner.engine).writing() as connection:
        # Their times are the server's own.
        connection.execute(update(archive_file).values(last_at=h.now - timedelta(days=8)))
    h.db.run("events")
    assert (in_files(folder), recorded(h)) == ([], [])
    assert [entry.kind for entry in h.owner.ledger("events")].count("archive_removed") == 1


def test_what_cannot_be_written_to_is_refused_and_changes_nothing(h: Harness, folder: Path) -> None:
    h.events()
    for text, why in (
        ("file:///nowhere/at/all", "may not archive to"),
        ("s3://bucket/prefix", "may not archive to"),
        (f"file://{folder}/gone", "is not there"),
    ):
        with pytest.raises(ArchiveUnavailable, match=why):
            h.sql(f"ALTER TABLE events SET (ttl_archive = '{text}')")
    for text in ("s3://KEY:hidden@bucket/x", "s3://bucket/x?secret_key=hidden", "https://u:hidden@h/x"):
        with pytest.raises(LapseError) as caught:
            h.sql(f"ALTER TABLE events SET (ttl_archive = '{text}')")
        assert "hidden" not in f"{caught.value} {caught.value.hint}"
    assert "hidden" not in json.dumps([entry.after for entry in h.owner.ledger()])
    assert h.owner.policy("events").policy.archive is None
    with pytest.raises(LapseError):
        h.ids("events_outbox")
    assert list(folder.iterdir()) == []


def test_an_archive_that_is_away_blocks_its_table_alone_and_loses_nothing(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    others(h)
    h.insert((1, h.at(days=-2)), table="others")
    away = folder.with_name(folder.name + "-away")
    folder.rename(away)
    try:
        result = h.db.run("events")
        assert result.failed and "is not there" in str(result.exports[0].problem)
        assert (h.ids(), h.waiting()) == ([31, 32], EXPIRED)
        h.insert((60, h.at(days=-2)))
        (skip,) = h.db.run("events").skipped
        assert (skip.blocked, h.ids()) == (BlockCode.ARCHIVE, [31, 32, 60])
        assert h.db.run("others").complete and h.ids("others") == []
    finally:
        away.rename(folder)
    assert h.db.run("events").complete
    assert (h.ids(), h.ids("events_outbox"), in_files(folder)) == ([31, 32], [], [*EXPIRED, 60])


def test_an_outbox_that_is_full_stops_its_table(h: Harness, folder: Path) -> None:
    """Not one row more than one batch goes beyond the bound."""
    archived_events(h, to(folder, ", ttl_delete_batch_size = 5, ttl_adaptive = 'off'"))
    h.sql("SET GLOBAL lapse_archive_backlog = 10")
    worker = h.db.worker()
    worker._exports.run_once()
    away = folder.with_name(folder.name + "-away")
    folder.rename(away)
    try:

        class Measuring(NullListener):
            def batch_done(self, event: BatchDone) -> None:
                running._exports.run_once()

        running = h.db.worker(Measuring())
        (job,) = running.run(h.owner.policy("events")).jobs
        assert (job.status, "rows wait for their export" in str(job.reason)) == (JobStatus.FAILED, True)
        assert 5 <= len(h.waiting()) <= 15 and len(h.ids()) >= 17
    finally:
        away.rename(folder)
    h.db.run("events")
    h.db.run("events")
    assert (h.ids(), in_files(folder)) == ([31, 32], EXPIRED)


def test_an_archive_belongs_to_one_database(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    h.db.run("events")
    (folder / "_lapse_owner").write_text("another\n")
    h.insert((60, h.at(days=-2)))
    assert "the archive of another database" in str(h.db.run("events").exports[0].problem)
    h.sql("ALTER TABLE events RESET (ttl_archive)")
    with pytest.raises(ArchiveConflict, match="another database"):
        h.sql(f"ALTER TABLE events SET ({to(folder)})")


def test_a_table_that_is_renamed_keeps_its_outbox_and_its_files(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    h.db.run("events")
    h.sql("ALTER TABLE events RENAME TO happenings")
    h.insert((60, h.at(days=-2)), table="happenings")
    assert h.db.run("happenings").exports[0].rows == 1
    assert in_files(folder) == [*EXPIRED, 60]
    assert h.owner.restore("happenings").restored == 31
    assert h.ids("happenings") == [*EXPIRED, 31, 32, 60]


def test_two_tables_have_one_destination_and_two_outboxes(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    others(h)
    h.sql(f"ALTER TABLE others SET ({to(folder)})")
    with pytest.raises(PolicyConflict, match="is the archive of table"):
        h.sql(f"ALTER TABLE others SET (ttl_archive = 'file://{folder}#events_outbox')")
    h.insert((1, h.at(days=-2)), table="others")
    assert {export.rows for export in h.db.run().exports} == {1, 30}
    assert len(lapse.archive.open(f"file://{folder}").tables()) == 2


def test_rows_that_waited_go_to_the_new_destination(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    (folder / "new").mkdir()
    (folder / "_lapse_owner").unlink()
    h.db.run("events")
    assert h.waiting() == EXPIRED
    h.sql(f"ALTER TABLE events SET ({to(folder / 'new')})")
    h.db.run("events")
    assert (in_files(folder / "new"), h.ids("events_outbox")) == (EXPIRED, [])
    assert h.owner.restore("events").restored == 30


def test_doctor_tells_of_files_and_records_that_miss_each_other(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    h.db.run("events")
    (file,) = recorded(h)
    path = folder / file.path
    path.rename(path.with_name("stray.parquet"))
    found = {finding.subject: (finding.level, finding.text) for finding in h.owner.doctor()}
    assert found[f"file://{folder}/{file.path}"] == (Level.PROBLEM, "the file is gone, and 30 rows with it")
    stray = found[f"file://{folder}/{file.path.rpartition('/')[0]}/stray.parquet"]
    assert stray == (Level.ADVICE, "no record is about this file")
    with pytest.raises(ArchiveDamaged, match="is not there"):
        h.owner.undo(file.job)
    folder.rename(folder.with_name(folder.name + "-away"))
    try:
        assert "is not there" in next(each.text for each in h.owner.doctor() if each.subject == f"file://{folder}")
    finally:
        folder.with_name(folder.name + "-away").rename(folder)


def test_rows_outlive_the_policy_that_archived_them(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    h.db.run("events")
    h.sql("ALTER TABLE events RESET (ttl_archive)")
    assert h.owner.restore("events", where="id = 1").restored == 1
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.owner.restore("events").restored == 29
    assert (h.ids(), in_files(folder)) == ([*EXPIRED, 31, 32], [])


def test_a_run_says_that_rows_wait_for_another_process(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    outbox = Outbox.of(h.owner.policy("events").table, str(h.owner.policy("events").policy.archive)).outbox
    with Catalog(h.owner.engine).writing() as connection:
        assert exports.take(connection, outbox, "another", h.owner.engine.stopwatch(connection))
    result = h.db.run("events")
    assert (result.exports[0].waiting >= 30, result.complete, result.failed) == (True, False, False)
    with Catalog(h.owner.engine).writing() as connection:
        exports.give_back(connection, outbox, "another")
    assert h.db.run("events").complete
    assert in_files(folder) == EXPIRED


def test_a_destination_that_does_not_answer_delays_no_other_table(
    h: Harness, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "quick"):
        (folder / name).mkdir()
    archived_events(h, to(folder / "slow"))
    others(h)
    h.sql(f"ALTER TABLE others SET ({to(folder / 'quick')})")
    h.insert((1, h.at(days=-2)), table="others")
    answer = Event()

    def slowly(connection: Connection, url: str) -> lapse.archive.Archive:
        assert "slow" not in url or answer.wait(30)
        return open_claimed(connection, url)

    monkeypatch.setattr(exports_module, "open_claimed", slowly)
    worker = h.db.worker()
    running = Thread(target=worker.run)
    running.start()
    try:
        until = monotonic() + 30
        while not list((folder / "quick").rglob("*.parquet")):
            assert monotonic() < until
            sleep(0.02)
        assert (in_files(folder / "slow"), h.waiting()) == ([], EXPIRED)
    finally:
        answer.set()
        running.join()
    assert in_files(folder / "slow") == EXPIRED
