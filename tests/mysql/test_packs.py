"""Packs: rows that a batch has deleted are one row of the outbox until they are in a file. MariaDB alone has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import lapse.archive
from lapse.app import Lapse
from lapse.app.archiving import ArchiveState
from lapse.catalog import Catalog, archive_files
from lapse.catalog.archive_files import FileState
from lapse.engines.mysql import packets, packs
from lapse.errors import ArchiveDamaged, DatabaseUnavailable, LapseError
from tests.backends.base import quick_folder
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness
from tests.conformance.test_archive import archived_events
from tests.conformance.test_archive_files import in_files, to
from tests.conformance.test_exporting import killing, pending_rows
from tests.exporting import BACK_STEPS, EXPORT_STEPS, exporter
from tests.mysql.test_archive import TYPES
from tests.safety.crash import CrashAfter, dying
from tests.unit.archive.duck import ask

EXPIRED = list(range(1, 31))
BATCHES = ", ttl_delete_batch_size = 7, ttl_adaptive = 'off'"


@pytest.fixture(autouse=True)
def _only_where_a_delete_returns_rows(server: MariadbServer) -> None:
    if type(server) is not MariadbServer:
        pytest.skip("a DELETE does not return what it has deleted")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(prefix="lapse-archive-", dir=quick_folder()) as name:
        monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{name}")
        yield Path(name)


@pytest.fixture
def packed(h: Harness, folder: Path) -> Harness:
    """Thirty rows of one job wait in packs."""
    archived_events(h, to(folder, BATCHES))
    _run_without_export(h, folder)
    assert (h.ids(), h.waiting(), in_files(folder)) == ([31, 32], EXPIRED, [])
    assert h.rows("SELECT lapse_rows FROM events_outbox ORDER BY lapse_seq") == [(7,), (7,), (7,), (7,), (2,)]
    return h


def _run_without_export(h: Harness, folder: Path) -> None:
    away = folder.with_name(folder.name + "-away")
    folder.rename(away)
    try:
        assert h.db.run("events").failed
    finally:
        away.rename(folder)


def test_packs_go_into_a_file_and_come_back(packed: Harness, folder: Path) -> None:
    (listed,) = packed.owner.archive("events")
    assert (listed.rows, listed.waiting, listed.verdict) == (30, 30, ArchiveState.COMPLETE)
    assert packed.db.run("events").complete
    assert (packed.waiting(), in_files(folder)) == ([], EXPIRED)
    (listed,) = packed.owner.archive("events", verify=True)
    assert (listed.rows, listed.files, listed.waiting, listed.verdict) == (30, 1, 0, ArchiveState.COMPLETE)
    _, rows = ask(folder, "SELECT id, note, lapse_seq, lapse_job FROM archive ORDER BY id LIMIT 1")
    assert rows == [[1, "note 1", None, listed.job]]
    assert packed.owner.restore("events").restored == 30
    assert packed.ids() == [*EXPIRED, 31, 32] and packed.waiting() == [] and in_files(folder) == []
    assert packed.rows("SELECT note FROM events WHERE id = 7") == [("note 7",)]


def test_killed_between_any_two_steps(packed: Harness, folder: Path) -> None:
    with killing(packed, folder) as kill:
        for step in EXPORT_STEPS:
            kill("export", step)
            assert sorted(in_files(folder) + packed.waiting() + pending_rows(packed, folder)) == EXPIRED, step
        exporter(packed.owner, folder).run_once()
        assert (packed.waiting(), in_files(folder)) == ([], EXPIRED)
        for step in BACK_STEPS:
            kill("back", step)
            exporter(packed.owner, folder).run_once()
            assert (packed.waiting(), in_files(folder)) == ([], EXPIRED), step
    with Catalog(packed.owner.engine).reading() as connection:
        files = archive_files.list_files(connection)
    assert {file.state for file in files} == {FileState.PUBLISHED}
    assert lapse.archive.open(f"file://{folder}").orphans([file.path for file in files]) == []


def test_a_process_that_dies_between_any_two_statements_leaves_each_row_in_one_place(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder, BATCHES))
    everything = [*EXPIRED, 31, 32]
    for statements in range(1, 300, 13):
        doomed = h.open()
        crash = CrashAfter(doomed, statements)
        with dying():
            doomed.run("events")
        doomed.close()
        h.advance(minutes=1)
        there = in_files(folder) + pending_rows(h, folder)
        assert sorted([*h.ids(), *h.waiting(), *there]) == everything, statements
        if not crash.crashed:
            break
    h.db.run("events")
    assert (h.ids(), h.waiting(), in_files(folder)) == ([31, 32], [], EXPIRED)
    assert all(each.verdict is ArchiveState.COMPLETE for each in h.owner.archive(verify=True))


def test_some_rows_of_packs_come_back_and_the_others_are_exported(packed: Harness, folder: Path) -> None:
    dry = packed.owner.restore("events", where="id < 10", dry_run=True)
    assert (dry.rows, packed.waiting()) == (9, EXPIRED)
    assert packed.rows("SELECT count(*) FROM events_outbox WHERE lapse_pack IS NOT NULL") == [(5,)]
    done = packed.owner.restore("events", where="id < 10")
    assert (done.restored, done.rows) == (9, 9)
    assert packed.ids() == [*range(1, 10), 31, 32]
    packed.db.run("events")
    assert (packed.waiting(), in_files(folder)) == ([], list(range(10, 31)))
    assert all(each.verdict is ArchiveState.COMPLETE for each in packed.owner.archive(verify=True))


def test_packs_are_found_when_their_outbox_has_become_an_archive_table(packed: Harness, folder: Path) -> None:
    packed.sql("ALTER TABLE events SET (ttl_archive = 'table:events_outbox')")
    (listed,) = packed.owner.archive("events")
    assert (listed.rows, listed.verdict) == (30, ArchiveState.COMPLETE)
    assert packed.owner.restore("events", dry_run=True).rows == 30
    assert packed.owner.restore("events").restored == 30
    assert (packed.ids(), packed.waiting()) == ([*EXPIRED, 31, 32], [])


def test_a_restore_that_dies_anywhere_leaves_each_row_in_one_place(packed: Harness, folder: Path) -> None:
    everything = [*EXPIRED, 31, 32]
    for statements in range(1, 200, 11):
        doomed = Lapse(packed.url, clock=packed.clock)
        crash = CrashAfter(doomed, statements)
        with dying():
            doomed.restore("events", keep="0 seconds")
        doomed.close()
        with Catalog(packed.owner.engine).writing() as connection:
            connection.exec_driver_sql("DELETE FROM lapse_meta WHERE name LIKE 'export:%'")
        there = in_files(folder) + pending_rows(packed, folder)
        assert sorted([*packed.ids(), *packed.waiting(), *there]) == everything, statements
        if not crash.crashed:
            break
    assert packed.ids() == everything


def test_rows_that_waited_for_the_version_before_are_exported_with_packs(h: Harness, folder: Path) -> None:
    """Whose outboxes have no place for packs; theirs is made by the next declaration, or as doctor says."""
    archived_events(h, to(folder, BATCHES))
    h.sql("ALTER TABLE events_outbox DROP COLUMN lapse_rows, DROP COLUMN lapse_pack")
    _run_without_export(h, folder)
    assert h.ids("events_outbox") == EXPIRED
    h.insert((60, h.at(days=-2)))
    (told,) = [each for each in h.owner.doctor() if "earlier version" in each.text]
    assert told.fix is not None
    h.sql(told.fix)
    assert not [each for each in h.owner.doctor() if "earlier version" in each.text]
    _finish_blocked(h)
    assert (h.ids(), h.waiting(), in_files(folder)) == ([31, 32], [], [*EXPIRED, 60])
    h.insert((61, h.at(days=-2)))
    _run_without_export(h, folder)
    assert h.rows("SELECT lapse_rows FROM events_outbox") == [(1,)]
    h.sql("INSERT INTO events_outbox (lapse_job, id, ts) VALUES (NULL, 99, '2020-01-01')")
    h.db.run("events")
    assert (h.waiting(), in_files(folder)) == ([], [*EXPIRED, 60, 61, 99])
    assert h.owner.restore("events").restored == 33


def _finish_blocked(h: Harness) -> None:
    h.db.run("events")
    h.db.run("events")


def test_a_declaration_makes_place_for_packs(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder))
    h.sql("ALTER TABLE events_outbox DROP COLUMN lapse_rows, DROP COLUMN lapse_pack")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 5)")
    _run_without_export(h, folder)
    assert h.rows("SELECT count(*) > 5, count(lapse_pack) = count(*) FROM events_outbox") == [(1, 1)]


def test_a_table_that_changed_since_is_in_two_files(packed: Harness, folder: Path) -> None:
    """A pack says which columns it has: what was deleted is archived as it was, whatever the table is now."""
    packed.sql("ALTER TABLE events ADD COLUMN more INT DEFAULT 5, DROP COLUMN note")
    packed.sql("ALTER TABLE events SET (ttl_grace = '0 seconds')")
    packed.owner.doctor(repair=True)
    packed.insert((60, packed.at(days=-2)))
    packed.db.run("events")
    packed.db.run("events")
    assert (packed.waiting(), in_files(folder)) == ([], [*EXPIRED, 60])
    names = [
        tuple(column.name for column in file.header.columns) for file in lapse.archive.open(f"file://{folder}").files()
    ]
    own = ("lapse_seq", "lapse_job", "archived_at", "id", "ts")
    assert sorted(names) == [(*own, "more"), (*own, "note")]
    done = packed.owner.restore("events", ignore_missing_columns=True)
    assert done.restored == 31 and packed.ids() == [*EXPIRED, 31, 32, 60]


@pytest.mark.parametrize("is_known", [True, False])
def test_every_type_is_packed_value_for_value(h: Harness, folder: Path, is_known: bool) -> None:
    odd = {name: "`" + name.replace("`", "``") + "`" for name in TYPES}
    made = ", ".join(f"{odd[name]} {kind}" for name, (kind, _) in TYPES.items() if name != "d")
    h.sql(f"CREATE TABLE events (id BIGINT PRIMARY KEY, ts DATETIME, {made}, g2 INT AS (id + 1) VIRTUAL)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE events SET ({to(folder)}, ttl_guard = 'off')")
    values = ", ".join(value for name, (_, value) in TYPES.items() if name != "d")
    columns = ", ".join(quoted for name, quoted in odd.items() if name != "d")
    h.sql("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
    h.sql(f"INSERT INTO events (id, ts, {columns}) VALUES (1, '2020-01-01', {values}), (2, '2020-01-01', {values})")
    must = next(odd[name] for name, (kind, _) in TYPES.items() if "NOT NULL" in kind)
    h.sql(f"INSERT INTO events (id, ts, {must}) VALUES (3, '2020-01-01', 8)")
    shown = ", ".join(f"HEX({quoted}), {quoted} + 0" for name, quoted in odd.items() if name not in ("d", "u"))
    asked = f"SELECT id, ts, HEX(u), {shown} FROM events ORDER BY id"
    before = h.rows(asked)
    if is_known:
        _run_without_export(h, folder)
        assert h.rows("SELECT sum(lapse_rows), count(lapse_pack) > 0 FROM events_outbox") == [(3, 1)]
    h.db.run("events")
    assert h.ids() == [] and h.owner.restore("events").restored == 3
    assert h.rows(asked) == before


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows(h: Harness, folder: Path, rows: int) -> None:
    archived_events(h, to(folder), expired=rows)
    assert h.db.run("events").complete
    assert (h.waiting(), in_files(folder)) == ([], list(range(1, rows + 1)))


def test_rows_that_are_too_large_are_copied_by_the_server(
    h: Harness, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, whatever the rows are: a batch that has more is undone, and nothing of it is packed."""
    monkeypatch.setattr(packs, "MOST_BATCH_BYTES", 1_000)
    archived_events(h, to(folder, BATCHES))
    h.sql("UPDATE events SET note = concat(sha2(id, 512), sha2(id + 1000, 512), sha2(id + 2000, 512))")
    before = h.rows("SELECT note FROM events WHERE id = 17")
    _run_without_export(h, folder)
    assert h.rows("SELECT count(*), count(lapse_pack) FROM events_outbox") == [(30, 0)]
    h.db.run("events")
    assert (h.waiting(), in_files(folder)) == ([], EXPIRED)
    assert h.owner.restore("events").restored == 30
    assert h.rows("SELECT note FROM events WHERE id = 17") == before


def test_a_row_that_is_larger_than_a_pack_is_archived(h: Harness, folder: Path) -> None:
    """Even one that becomes small when it is compressed."""
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts DATETIME, note LONGTEXT)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE events SET ({to(folder)}, ttl_guard = 'off')")
    for number in range(1, 6):
        h.sql(
            f"INSERT INTO events SELECT {number}, '2020-01-01', repeat('ü', {packs.MOST_PACK_BYTES // 2 + number % 2})"
        )
    _run_without_export(h, folder)
    assert h.waiting() == [1, 2, 3, 4, 5]
    h.db.run("events")
    assert (h.ids(), h.waiting(), in_files(folder)) == ([], [], [1, 2, 3, 4, 5])
    assert h.owner.restore("events").restored == 5
    asked = "SELECT id, char_length(note), sha2(note, 256) = sha2(repeat('ü', char_length(note)), 256) FROM events"
    assert [same for _, _, same in h.rows(asked)] == [1, 1, 1, 1, 1]


def test_a_pack_is_no_larger_than_the_server_takes(h: Harness, folder: Path, server: MariadbServer) -> None:
    ((before,),) = server.execute("SELECT @@GLOBAL.max_allowed_packet")
    server.execute("SET GLOBAL max_allowed_packet = 16384")
    try:
        archived_events(h, to(folder))
        for number in EXPIRED:
            noise = ", ".join(f"sha2({number} * {each}, 512)" for each in range(1, 11))
            h.sql(f"UPDATE events SET note = concat({noise}) WHERE id = {number}")
        with Lapse(h.url, clock=h.clock) as db:
            db.run("events")
    finally:
        server.execute(f"SET GLOBAL max_allowed_packet = {before}")
    h.db.run("events")
    assert (h.ids(), h.waiting(), in_files(folder)) == ([31, 32], [], EXPIRED)


def test_rows_that_others_hold_or_renew_stay(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder, BATCHES))
    with h.client() as client:
        client.exec_driver_sql("BEGIN")
        client.exec_driver_sql("SELECT * FROM events WHERE id IN (7, 8) FOR UPDATE")
        client.exec_driver_sql(f"UPDATE events SET ts = {h.at()} WHERE id IN (20, 21)")
        h.db.run("events")
        client.exec_driver_sql("COMMIT")
    assert h.ids() == [7, 8, 20, 21, 31, 32]
    h.db.run("events")
    assert h.ids() == [20, 21, 31, 32]
    assert in_files(folder) == [number for number in EXPIRED if number not in (20, 21)]


@pytest.mark.parametrize("how", ["KILL", "KILL QUERY"])
def test_a_session_that_is_killed_while_rows_come_loses_none(
    h: Harness, folder: Path, server: MariadbServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The rows are on their way to the client, and the DELETE has not ended."""
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts DATETIME, note LONGTEXT)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE events SET ({to(folder)}, ttl_guard = 'off')")
    h.sql("INSERT INTO events SELECT seq, '2020-01-01', repeat('x', 1000000) FROM seq_1_to_40")
    whole, killed = packets.whole, list[int]()

    def slowly(raw: Any, result: Any, batch_bytes: int) -> Iterator[packets.Batch]:
        for batch in whole(raw, result, batch_bytes):
            yield batch
            if not killed:
                killed.append(raw.thread_id())
                server.execute(f"{how} {raw.thread_id()}")

    monkeypatch.setattr(packets, "whole", slowly)
    with suppress(DatabaseUnavailable):
        h.db.run("events")
    assert killed
    found = sorted([*h.ids(), *h.waiting(), *in_files(folder)])
    assert found == list(range(1, 41))
    monkeypatch.undo()
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{folder}")
    h.advance(minutes=1)
    h.db.run("events")
    h.db.run("events")
    assert (h.ids(), h.waiting(), in_files(folder)) == ([], [], list(range(1, 41)))


def test_a_pack_that_was_damaged_is_told_and_kept(packed: Harness, folder: Path) -> None:
    packed.sql(
        "UPDATE events_outbox SET lapse_pack = concat(left(lapse_pack, 60), 'x', substr(lapse_pack, 62)) LIMIT 1"
    )
    with pytest.raises(ArchiveDamaged, match="is not what Lapse has written there"):
        exporter(packed.owner, folder).run_once()
    assert in_files(folder) == []
    assert packed.rows("SELECT sum(lapse_rows) FROM events_outbox") == [(30,)]
    assert "is not what Lapse has written there" in str(packed.db.run("events").exports[0].problem)


def test_a_result_of_which_rows_were_read_before_is_refused(h: Harness) -> None:
    h.sql("CREATE TABLE source (id int primary key)")
    h.sql("INSERT INTO source VALUES (1), (2), (3)")
    from lapse.engines.mysql import cells

    with h.db.engine.transaction() as connection, cells.as_sent(connection) as raw, cells.streaming(raw) as cursor:
        cursor.execute("SELECT id FROM source")
        cursor.fetchone()
        with pytest.raises(LapseError, match="were read already"):
            list(packets.whole(raw, cursor._result))


def test_the_history_of_a_table_does_not_get_into_packs(h: Harness, folder: Path) -> None:
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, ts DATETIME, note TEXT) WITH SYSTEM VERSIONING")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE events SET ({to(folder)}, ttl_guard = 'off')")
    h.sql("INSERT INTO events VALUES (1, '2020-01-01', 'x')")
    _run_without_export(h, folder)
    assert h.rows("SELECT count(*), count(lapse_pack) FROM events_outbox") == [(1, 0)]
    h.db.run("events")
    assert in_files(folder) == [1]


def test_keys_of_packed_rows_are_recorded(h: Harness, folder: Path) -> None:
    archived_events(h, to(folder, f"{BATCHES}, ttl_ledger_keys = 'on'"))
    _run_without_export(h, folder)
    assert h.rows("SELECT count(lapse_pack) = count(*) FROM events_outbox") == [(1,)]
    h.db.run("events")
    assert (h.ids(), in_files(folder)) == ([31, 32], EXPIRED)
    assert len(h.owner.deleted("events", 7).found) == 1


def test_what_is_kept_and_what_is_referred_to_stays(h: Harness, folder: Path) -> None:
    h.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, who INT, ts DATETIME, KEY (who, ts, id))")
    h.sql("CREATE TABLE others (id BIGINT PRIMARY KEY, event BIGINT, FOREIGN KEY (event) REFERENCES events (id))")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE events SET ({to(folder)}, ttl_keep_last = '2 BY (who) ORDER BY ts', ttl_guard = 'off')")
    h.sql("INSERT INTO events SELECT seq, seq % 3, '2020-01-01' FROM seq_1_to_30")
    h.sql("INSERT INTO others VALUES (1, 5)")
    h.db.run("events")
    left = h.ids()
    assert 5 in left and len(left) == 7
    assert in_files(folder) == [number for number in EXPIRED if number not in left]
